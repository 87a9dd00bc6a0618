from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from argosy.kernels.quantize_activations import (
    QuantizeArgs,
    padded_columns,
    quantize_groups_op,
    quantize_tokens_op,
    quantize_whole_row,
)

SMALLEST_NORMAL = np.float32(2.0**-126)

Quantized = tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.float32]]


def reference(x: NDArray[np.float32], *, per_token: bool) -> Quantized:
    padded = np.zeros((len(x), padded_columns(x.shape[1])), np.float32)
    padded[:, : x.shape[1]] = x
    groups = padded.reshape(len(x), 1 if per_token else -1, padded.shape[1] if per_token else 32)
    scales = np.abs(groups).max(axis=2) / np.float32(127)
    scales[scales < SMALLEST_NORMAL] = 0
    safe = np.where(scales == 0, np.float32(1), scales)
    q = np.where(scales[..., None] == 0, 0, np.rint(groups / safe[..., None])).astype(np.int8)
    sums = q.sum(axis=2, dtype=np.int32).astype(np.float32) * scales
    return q.reshape(padded.shape), scales, sums


@pytest.fixture
def quantize(run_op: Callable[..., None]) -> Callable[..., Quantized]:
    """quantize(x, per_token=…): run the op on rows with a gap between them, in chunks of two tokens."""

    def run(x: NDArray[np.float32], *, per_token: bool) -> Quantized:
        tokens, columns = x.shape
        spaced = np.full((tokens, columns + 5), 1e9, np.float32)
        spaced[:, :columns] = x
        q = np.full((tokens, padded_columns(columns)), 99, np.int8)
        scales, sums = (np.full((tokens, 1 if per_token else q.shape[1] // 32), np.nan, np.float32) for _ in range(2))
        args = QuantizeArgs(
            spaced.ctypes.data, spaced.strides[0], columns, q.ctypes.data, scales.ctypes.data, sums.ctypes.data
        )
        run_op(quantize_tokens_op if per_token else quantize_groups_op, args, tokens, chunk=2)
        return q, scales, sums

    return run


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("columns", [1, 31, 32, 33, 64, 100, 576])
def test_equals_the_formula_bit_for_bit(quantize, rng, columns, per_token):
    x = rng.standard_normal((5, columns)).astype(np.float32) * np.float32(10) ** rng.integers(-30, 30, (5, 1))
    for found, expected in zip(quantize(x, per_token=per_token), reference(x, per_token=per_token), strict=True):
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("per_token", [False, True])
def test_halves_round_to_even_and_the_largest_is_127(quantize, per_token):
    x = np.zeros((1, 32), np.float32)
    x[0, :8] = [127, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5, -127]
    q, scales, sums = quantize(x, per_token=per_token)
    assert q[0, :8].tolist() == [127, 0, 2, 2, 0, -2, 126, -127]
    assert scales.tolist() == [[1]]
    assert sums.tolist() == [[128]]


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("magnitude", [0.0, 1e-45, 1.4e-36])
def test_what_is_too_small_for_a_scale_becomes_zero(quantize, per_token, magnitude):
    q, scales, sums = quantize(np.full((2, 40), magnitude, np.float32), per_token=per_token)
    assert not q.any()
    assert not scales.any()
    assert not sums.any()


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, 45])
def test_what_is_not_finite_stays_visible(quantize, per_token, broken, column):
    x = np.ones((2, 46), np.float32)
    x[1, column] = broken
    _, scales, _ = quantize(x, per_token=per_token)
    assert np.isfinite(scales[0]).all()
    assert not np.isfinite(scales[1, 0 if per_token else column // 32])


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=70))
def test_error_is_at_most_half_a_scale(values):
    x = np.array(values, np.float32)
    q, scale, scale_sum = np.zeros(96, np.int8), np.zeros(1, np.float32), np.zeros(1, np.float32)
    quantize_whole_row(x.ctypes.data, len(x), q.ctypes.data, scale.ctypes.data, scale_sum.ctypes.data)
    if scale[0] == 0:
        assert np.abs(x).max() < 127.1 * SMALLEST_NORMAL
        return
    back = q[: len(x)].astype(np.float64) * scale[0]
    assert np.all(np.abs(back - x) <= scale[0] * (0.5 + 1e-4))
    assert np.abs(q).max() == 127
    assert not q[len(x) :].any()
