from __future__ import annotations

import numpy as np
import pytest
import torch
from numba import njit

from argosy.kernels import simd_math
from argosy.kernels.simd import load, splat, store


@njit
def _exp2(x, y, n):
    for i in range(0, 4 * n, 32):
        store(y + i, simd_math.exp2(load(x + i)))


@njit
def _exp(x, y, n):
    for i in range(0, 4 * n, 32):
        store(y + i, simd_math.exp(load(x + i)))


@njit
def _softcap(x, y, n):
    for i in range(0, 4 * n, 32):
        store(y + i, simd_math.softcap(load(x + i), splat(np.float32(30.0))))


@njit
def _silu(x, y, n):
    for i in range(0, 4 * n, 32):
        store(y + i, simd_math.silu(load(x + i)))


@njit
def _gelu_tanh(x, y, n):
    for i in range(0, 4 * n, 32):
        store(y + i, simd_math.gelu_tanh(load(x + i)))


def apply(function, x):
    x = np.ascontiguousarray(x, dtype=np.float32)
    y = np.full_like(x, -1.0)
    function(x.ctypes.data, y.ctypes.data, len(x))
    return y


@pytest.mark.parametrize(
    ("function", "reference", "low", "high"), [(_exp2, np.exp2, -125.9, 127.9), (_exp, np.exp, -87, 88.7)]
)
def test_powers_are_right_to_one_and_a_half_units_in_the_last_place(function, reference, low, high):
    x = np.linspace(low, high, 1 << 20, dtype=np.float32)
    expected = reference(x.astype(np.float64))
    units = np.abs(apply(function, x) - expected) / np.spacing(expected.astype(np.float32))
    assert units.max() < 1.5


@pytest.mark.parametrize("function", [_exp2, _exp])
def test_powers_of_the_extremes(function):
    got = apply(function, [0.0, -0.0, -np.inf, -1e30, -150.0, np.inf, 1e30, np.nan])
    np.testing.assert_array_equal(got, np.array([1, 1, 0, 0, 0, np.inf, np.inf, np.nan], np.float32))
    payload = np.frombuffer(np.full(8, 0x7FC00101, np.uint32).tobytes(), np.float32)
    assert np.isnan(apply(function, payload)).all()


@pytest.mark.parametrize(
    ("function", "reference"),
    [
        (_silu, torch.nn.functional.silu),
        (_gelu_tanh, lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
        (_softcap, lambda x: 30.0 * torch.tanh(x / 30.0)),
    ],
)
def test_functions_are_those_of_torch(function, reference):
    x = np.concatenate([np.linspace(-60, 60, 1 << 16), np.linspace(-2, 2, 1 << 16), [-1e4, 1e4] * 4]).astype(np.float32)
    expected = reference(torch.from_numpy(x).double()).numpy()
    np.testing.assert_allclose(apply(function, x), expected, rtol=5e-7, atol=4e-6 if function is _softcap else 4e-7)
