"""The ggml types beyond the 4-bit ones, packed: dequantised they equal the gguf library's values bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize as ggml_dequantize

from argosy.kernels.gemm.int8_layout import quantize_rows
from argosy.kernels.pack_ggml import dequantize, pack
from argosy.kernels.packed import WeightKind

G = GGMLQuantizationType
BITS = {
    G.Q2_K: 2.625,
    G.Q3_K: 4.5625,
    G.Q5_0: 5.5,
    G.Q5_1: 6,
    G.Q5_K: 5.625,
    G.Q6_K: 6.5625,
    G.Q8_0: 8.5,
    G.IQ4_NL: 8.5,
}


@pytest.mark.parametrize("ggml_type", BITS, ids=lambda t: t.name)
@pytest.mark.parametrize("rows", [1, 16, 17])
def test_every_value_is_kept(rng, random_blocks, ggml_type, rows):
    raw = random_blocks(rng, ggml_type, rows, 768)
    matrix = pack(ggml_type, raw)
    assert (matrix.rows, matrix.columns) == (rows, 768)
    assert np.array_equal(dequantize(matrix), ggml_dequantize(raw, ggml_type))


@pytest.mark.parametrize(("ggml_type", "bits"), BITS.items(), ids=lambda v: getattr(v, "name", ""))
def test_bits_per_weight(rng, random_blocks, ggml_type, bits):
    assert pack(ggml_type, random_blocks(rng, ggml_type, 32, 512)).num_bytes * 8 == 32 * 512 * bits


@pytest.mark.parametrize(("dtype", "ggml_type"), [(np.float32, G.F32), (np.float16, G.F16)])
def test_floats_are_kept_without_padding_columns(rng, dtype, ggml_type):
    weights = rng.standard_normal((21, 37)).astype(dtype)
    matrix = pack(ggml_type, weights.view(np.uint8))
    assert np.array_equal(dequantize(matrix), weights.astype(np.float32))
    assert matrix.num_bytes == 32 * 37 * weights.itemsize


def test_a_bfloat16_is_the_upper_half_of_a_float(rng):
    weights = rng.standard_normal((5, 12)).astype(np.float32)
    upper = np.ascontiguousarray(weights.view(np.uint16)[:, 1::2])
    kept = (weights.view(np.uint32) & 0xFFFF0000).view(np.float32)
    assert np.array_equal(dequantize(pack(G.BF16, upper.view(np.uint8))), kept)


@pytest.mark.parametrize(("rows", "columns"), [(16, 64), (5, 40)])
def test_bytes_are_the_nearest_multiples_of_a_rows_scale(rng, rows, columns):
    weights = rng.standard_normal((rows, columns)).astype(np.float32)
    weights[3] = 0
    bias = rng.standard_normal(rows).astype(np.float32)
    matrix = quantize_rows(weights, bias)
    assert (matrix.kind, matrix.rows, matrix.columns) == (WeightKind.INT8, rows, columns)
    assert np.array_equal(matrix.bias, bias)
    scales = np.abs(weights).max(axis=1, keepdims=True) / np.float32(127)
    found = dequantize(matrix)
    assert np.all(np.abs(found - weights) <= scales * (0.5 + 1e-5))
    steps = found[scales[:, 0] > 0] / scales[scales[:, 0] > 0]
    assert np.allclose(steps, np.rint(steps), atol=1e-4)
    assert np.all(found[3] == 0)
    assert np.all(np.abs(found).max(axis=1) == np.abs(weights).max(axis=1))
