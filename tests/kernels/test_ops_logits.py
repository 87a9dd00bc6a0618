from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.kernels.ops_logits import (
    CHUNK_COLUMNS,
    FOUND_WORDS,
    ArgMaxArgs,
    arg_max_op,
    chunk_arg_max_op,
    greatest_of,
    num_chunks,
)


def arg_max(run_op, logits: np.ndarray, softcap: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    rows, vocab = logits.shape
    chunks = num_chunks(vocab)
    found = np.zeros((rows, chunks, FOUND_WORDS), np.int64)
    token_ids, greatest = np.full(rows, -1, np.int64), np.zeros(rows, np.float32)
    addresses = (found.ctypes.data, token_ids.ctypes.data, greatest.ctypes.data)
    args = ArgMaxArgs(logits.ctypes.data, vocab, softcap, *addresses)
    run_op(chunk_arg_max_op, args, rows * chunks, chunk=3)
    run_op(arg_max_op, args, rows, chunk=2)
    return token_ids, greatest


@pytest.mark.parametrize("vocab", [1, 7, 16, 100, CHUNK_COLUMNS, CHUNK_COLUMNS + 1, 49_152])
def test_the_greatest_logit_of_each_row(run_op, rng, vocab):
    logits = rng.standard_normal((5, vocab), dtype=np.float32)
    token_ids, greatest = arg_max(run_op, logits)
    np.testing.assert_array_equal(token_ids, logits.argmax(axis=1))
    np.testing.assert_array_equal(greatest, logits.max(axis=1))


def test_equal_logits_the_first_wins_within_and_across_chunks(run_op):
    logits = np.zeros((3, 3 * CHUNK_COLUMNS), np.float32)
    logits[0, [5, 9, CHUNK_COLUMNS + 1]] = 2.0
    logits[1, [CHUNK_COLUMNS + 7, 2 * CHUNK_COLUMNS]] = 2.0
    assert arg_max(run_op, logits)[0].tolist() == [5, CHUNK_COLUMNS + 7, 0]


@pytest.mark.parametrize("place", [0, 3, 4100, 9000])
def test_nan_is_the_greatest(run_op, rng, place):
    logits = rng.standard_normal((2, 9001), dtype=np.float32)
    logits[1, 50] = np.inf
    logits[1, place] = np.nan
    token_ids, greatest = arg_max(run_op, logits)
    assert token_ids[1] == place
    assert np.isnan(greatest[1])
    assert np.isfinite(greatest[0])


def test_infinities(run_op):
    logits = np.full((2, 5000), -np.inf, np.float32)
    logits[1, 4500] = np.inf
    token_ids, greatest = arg_max(run_op, logits)
    assert token_ids.tolist() == [0, 4500]
    assert greatest.tolist() == [-np.inf, np.inf]


def test_soft_cap_changes_the_logits_in_place(run_op, rng):
    logits = rng.standard_normal((3, 5003), dtype=np.float32) * 50
    expected = 30.0 * torch.tanh(torch.from_numpy(logits.copy()).double() / 30.0)
    token_ids, greatest = arg_max(run_op, logits, softcap=30.0)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=6e-6)
    np.testing.assert_array_equal(token_ids, logits.argmax(axis=1))
    np.testing.assert_array_equal(greatest, logits.max(axis=1))


@settings(deadline=None)
@given(st.lists(st.sampled_from([-np.inf, -1.0, -0.0, 0.0, 3.0, np.inf, np.nan]), min_size=1, max_size=70))
def test_greatest_of_any_floats(values):
    array = np.array(values, np.float32)
    np.testing.assert_array_equal(greatest_of(array.ctypes.data, len(array)), array.max())
