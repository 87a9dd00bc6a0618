from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.executors.filters import filtered_probabilities
from argosy.engine.executors.philox import token_keys
from argosy.engine.executors.race import draw
from argosy.kernels.sampling import SampleArgs, keep_greatest, sample_op, sample_rows


def keys_of(rows: int, seed: int = 0) -> np.ndarray:
    seeds = np.full(rows, seed, np.uint64)
    return token_keys(seeds, np.zeros(rows, np.uint64), np.arange(rows, dtype=np.uint64))


def columns_of(params: list[SamplingParams]) -> tuple[np.ndarray, ...]:
    return (
        np.array([p.temperature for p in params], np.float32),
        np.array([p.top_k for p in params], np.int64),
        np.array([p.top_p for p in params], np.float64),
        np.array([p.min_p for p in params], np.float64),
    )


def by_torch(logits: np.ndarray, params: list[SamplingParams], keys: np.ndarray) -> list[int]:
    return draw(filtered_probabilities(torch.from_numpy(logits.copy()), params), keys).tolist()


def peaked(rng: np.random.Generator, rows: int, vocab: int) -> np.ndarray:
    """As a language model's: a few tokens far above the many."""
    return (rng.standard_normal((rows, vocab)) * 3 + 12 * (rng.random((rows, vocab)) < 0.002)).astype(np.float32)


SETTINGS = [
    {},
    {"temperature": 0.05},
    {"temperature": 5.0},
    {"top_p": 0.9},
    {"top_p": 0.9, "temperature": 4.0},  # a nucleus of thousands
    {"top_p": 1e-9},
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": 2000},  # more than the heap takes
    {"top_k": 40, "top_p": 0.8},
    {"top_k": 2000, "top_p": 0.999, "temperature": 3.0},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"top_k": 300, "top_p": 0.95, "min_p": 0.01, "temperature": 1.3},
]


@pytest.mark.parametrize("kwargs", SETTINGS, ids=str)
@pytest.mark.parametrize("vocab", [5003, 64, 61])
def test_the_tokens_are_those_that_torch_draws(rng, kwargs, vocab):
    logits = peaked(rng, 40, vocab)
    params = [SamplingParams(**{"temperature": 1.0, **kwargs})] * 40
    keys = keys_of(40)
    assert sample_rows(logits, *columns_of(params), keys).tolist() == by_torch(logits, params, keys)


@settings(deadline=None, max_examples=200)
@given(
    values=st.lists(st.sampled_from([-np.inf, -30.0, -2.0, 0.0, 1.0, 1.5, 3.0]), min_size=1, max_size=150).filter(
        lambda v: max(v) > -np.inf
    ),
    temperature=st.sampled_from([1e-3, 0.7, 3.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 100, 1025]),
    top_p=st.sampled_from([0.1, 0.5, 0.97, 1.0]),
    min_p=st.sampled_from([0.0, 0.2, 1.0]),
    seed=st.integers(0, 2**64 - 1),
)
def test_equal_and_masked_logits(values, temperature, top_k, top_p, min_p, seed):
    """Ties at every border; a masked token is never drawn."""
    logits = np.tile(np.array(values, np.float32), (4, 1))
    params = [SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)] * 4
    keys = keys_of(4, seed)
    tokens = sample_rows(logits, *columns_of(params), keys)
    assert tokens.tolist() == by_torch(logits, params, keys)
    assert (logits[0, tokens] > -np.inf).all()


def test_rows_of_an_op_have_settings_of_their_own(run_op, rng):
    logits = peaked(rng, len(SETTINGS), 3000)
    params = [SamplingParams(**{"temperature": 1.0, **kwargs}) for kwargs in SETTINGS]
    arrays, keys, token_ids = columns_of(params), keys_of(len(params)), np.full(len(params), -1, np.int64)
    addresses = [a.ctypes.data for a in (*arrays, keys, token_ids)]
    before = logits.copy()
    run_op(sample_op, SampleArgs(logits.ctypes.data, 3000, *addresses), len(params), chunk=3)
    assert token_ids.tolist() == by_torch(logits, params, keys)
    np.testing.assert_array_equal(logits, before)
    in_reverse, order = np.full_like(token_ids, -1), np.arange(len(params))[::-1].copy()
    columns = [np.ascontiguousarray(a[::-1]) for a in (*arrays, keys)]
    addresses = [a.ctypes.data for a in (*columns, in_reverse, order)]
    run_op(sample_op, SampleArgs(logits.ctypes.data, 3000, *addresses), len(params), chunk=3)
    assert in_reverse[::-1].tolist() == token_ids.tolist()


@settings(deadline=None)
@given(st.lists(st.integers(-4, 4), min_size=1, max_size=60), st.integers(1, 70))
def test_the_greatest_come_in_order_and_of_equal_ones_the_first(values, size):
    logits = np.array(values, np.float32)
    kept_values, kept_tokens = np.zeros(size, np.float32), np.zeros(size, np.int64)
    kept = keep_greatest(logits.ctypes.data, len(logits), size, kept_values, kept_tokens)
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))[:size]
    assert kept_tokens[:kept].tolist() == expected
    assert kept_values[:kept].tolist() == [values[i] for i in expected]
