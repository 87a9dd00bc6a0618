"""4-bit products with every instruction set, against float64 on the dequantised weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from argosy.kernels.pack_ggml import dequantize, pack
from argosy.kernels.packed import PackedMatrix

TYPES = [GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q4_K]
EPS = float(np.finfo(np.float32).eps)


def random_matrix(rng: np.random.Generator, ggml_type: GGMLQuantizationType, rows: int, columns: int) -> PackedMatrix:
    """Random quants and sub-scales; the leading halves of a block, its factors, are of either sign and of size 1."""
    block_columns, block_bytes = GGML_QUANT_SIZES[ggml_type]
    blocks = rng.integers(0, 256, (rows, columns // block_columns, block_bytes), dtype=np.uint8)
    num_factors = 1 if ggml_type is GGMLQuantizationType.Q4_0 else 2
    factors = rng.uniform(-1, 1, (*blocks.shape[:2], num_factors)).astype(np.float16)
    blocks[..., : 2 * num_factors] = factors.view(np.uint8)
    return pack(ggml_type, blocks.reshape(rows, -1))


def expected_and_bound(matrix: PackedMatrix, activations: Any) -> tuple[np.ndarray, np.ndarray]:
    """The product in float64, and how far float32 may be from it: a rounding per operation, each of a partial sum that is
    at most the sum of magnitudes, of which both terms of a group (scale and minimum) are bounded by 16 |d| + |m|."""
    weights, values = dequantize(matrix).astype(np.float64), activations.values()
    groups = weights.reshape(matrix.rows, -1, 32)
    spread = (np.abs(groups).max(axis=2) + np.ptp(groups, axis=2) * 2).repeat(32, axis=1)
    magnitudes = np.abs(values) @ spread.T
    return values @ weights.T, (2 * groups.shape[1] + 6) * EPS / 2 * magnitudes


@pytest.mark.parametrize("ggml_type", TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 7, 13])
def test_close_to_the_exact_product(gemm, random_activations, rng, ggml_type, tokens):
    matrix = random_matrix(rng, ggml_type, 32, 768)
    activations = random_activations(rng, tokens, 768)
    expected, bound = expected_and_bound(matrix, activations)
    assert np.all(np.abs(gemm(matrix, activations) - expected) <= bound)


@pytest.mark.parametrize("ggml_type", TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize("sign", [127, -127])
def test_the_largest_sums_do_not_overflow(gemm, make_activations, ggml_type, sign):
    """All quants 15, all activations at one end: 16-bit partial sums are at their largest."""
    block_columns, block_bytes = GGML_QUANT_SIZES[ggml_type]
    blocks = np.full((16, 512 // block_columns, block_bytes), 0xFF, np.uint8)
    num_factors = 1 if ggml_type is GGMLQuantizationType.Q4_0 else 2
    factors = np.array([1.0, 0.0][:num_factors], np.float16)
    blocks[..., : 2 * num_factors] = factors.view(np.uint8)
    matrix = pack(ggml_type, blocks.reshape(16, -1))
    activations = make_activations(np.full((5, 512), sign, np.int8), np.ones((5, 16), np.float32))
    weight = {"Q4_0": 7, "Q4_1": 15, "Q4_K": 63 * 15}[ggml_type.name]
    assert np.all(gemm(matrix, activations) == np.float32(512 * sign * weight))


@pytest.mark.parametrize("ggml_type", TYPES, ids=lambda t: t.name)
def test_bits_do_not_depend_on_other_tokens_or_on_chunks(gemm, random_activations, rng, ggml_type):
    matrix = random_matrix(rng, ggml_type, 80, 512)
    activations = random_activations(rng, 15, 512)
    together = gemm(matrix, activations)
    assert np.array_equal(gemm(matrix, activations, cuts=(1, 2, 4)), together)
    for token in range(15):
        assert np.array_equal(gemm(matrix, activations.only(token))[0], together[token])


def test_each_row_and_column_is_its_own(gemm, make_activations, rng):
    """One activation at a time picks one weight: a wrong place in any layout shows."""
    matrix = random_matrix(rng, GGMLQuantizationType.Q4_K, 16, 256)
    activations = make_activations(np.eye(256, dtype=np.int8), np.ones((256, 8), np.float32))
    weights = dequantize(matrix)
    assert np.allclose(gemm(matrix, activations), weights.T, rtol=0, atol=4 * EPS * np.abs(weights).max())
