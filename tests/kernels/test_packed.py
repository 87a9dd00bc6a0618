from __future__ import annotations

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize as ggml_dequantize
from gguf.quants import quantize

from argosy.kernels.pack_ggml import dequantize, pack
from argosy.kernels.packed import (
    PackedMatrix,
    WeightKind,
    aligned,
    aligned_empty,
    concat_rows,
    interleave_panels,
    num_panels,
)

Q4_1 = GGMLQuantizationType.Q4_1


def matrix_of(rng: np.random.Generator, rows: int, columns: int = 64) -> PackedMatrix:
    return pack(Q4_1, quantize(rng.standard_normal((rows, columns)).astype(np.float32), Q4_1))


@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 2368)])
def test_alignment(shape):
    for _ in range(20):
        array = aligned_empty(shape, np.float32)
        assert array.shape == shape
        assert array.dtype == np.float32
        assert array.ctypes.data % 64 == 0
        assert array.flags.c_contiguous


def test_aligned_copies_only_what_is_not():
    array = aligned_empty((100,), np.uint8)
    assert aligned(array) is array
    crooked = array[1:]
    crooked[:] = np.arange(99)
    moved = aligned(crooked)
    assert moved.ctypes.data % 64 == 0
    assert np.array_equal(moved, crooked)
    columns = np.arange(6.0).reshape(2, 3).T
    assert np.array_equal(aligned(columns), columns)
    assert aligned(columns).flags.c_contiguous


@pytest.mark.parametrize(("rows", "panels"), [(0, 0), (1, 1), (16, 1), (17, 2), (32, 2)])
def test_num_panels(rows, panels):
    assert num_panels(rows) == panels


def test_concat_rows(rng):
    parts = [matrix_of(rng, rows) for rows in (32, 16, 7)]
    bias = rng.standard_normal(16).astype(np.float32)
    parts[1] = parts[1].with_bias(bias)
    whole = concat_rows(parts)
    assert (whole.rows, whole.columns, whole.num_panels) == (55, 64, 4)
    assert np.array_equal(dequantize(whole), np.concatenate([dequantize(p) for p in parts]))
    assert whole.bias is not None
    assert np.array_equal(whole.bias, np.concatenate([np.zeros(32), bias, np.zeros(7)]).astype(np.float32))
    assert whole.data.ctypes.data % 64 == 0
    assert concat_rows([parts[0], parts[2]]).bias is None


def test_concat_rows_refuses_what_does_not_fit(rng):
    with pytest.raises(AssertionError, match="partial panel"):
        concat_rows([matrix_of(rng, 7), matrix_of(rng, 16)])
    with pytest.raises(AssertionError, match="one kind and width"):
        concat_rows([matrix_of(rng, 16), matrix_of(rng, 16, columns=32)])


def test_interleave_panels(rng):
    gate, up = matrix_of(rng, 48), matrix_of(rng, 48)
    both = dequantize(interleave_panels(gate, up)).reshape(3, 2, 16, 64)
    assert np.array_equal(both[:, 0].reshape(48, 64), dequantize(gate))
    assert np.array_equal(both[:, 1].reshape(48, 64), dequantize(up))
    with pytest.raises(AssertionError):
        interleave_panels(matrix_of(rng, 7), matrix_of(rng, 7))


def test_sizes(rng):
    matrix = matrix_of(rng, 40)
    assert matrix.kind is WeightKind.Q4_1
    assert (matrix.num_panels, matrix.panel_bytes, matrix.num_bytes) == (3, 16 * 2 * 20, 3 * 16 * 2 * 20)
    stored = quantize(np.ones((40, 64), np.float32), Q4_1)
    assert np.array_equal(dequantize(pack(Q4_1, stored)), ggml_dequantize(stored, Q4_1))
