"""Products of the integer kinds beyond 4 bits, with every instruction set, against float64 on the dequantised weights."""

from __future__ import annotations

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize as ggml_dequantize

from argosy.kernels.gemm.int8_layout import quantize_rows
from argosy.kernels.pack_ggml import dequantize, pack

G = GGMLQuantizationType
TYPES = [G.Q2_K, G.Q3_K, G.Q5_0, G.Q5_1, G.Q5_K, G.Q6_K, G.Q8_0]
TOKENS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33]


def close(found: np.ndarray, activations: np.ndarray, weights: np.ndarray) -> bool:
    """Within 1e-5 of the sum of magnitudes, which rounding every group's term to f32 stays far below."""
    expected = activations @ weights.T.astype(np.float64)
    return bool(np.all(np.abs(found - expected) <= 1e-5 * (np.abs(activations) @ np.abs(weights.T))))


@pytest.mark.parametrize("ggml_type", TYPES, ids=lambda t: t.name)
def test_close_to_the_exact_product_and_bits_apart_from_other_tokens(
    gemm, random_activations, random_blocks, rng, ggml_type
):
    matrix = pack(ggml_type, random_blocks(rng, ggml_type, 35, 512))
    activations = random_activations(rng, max(TOKENS), 512)
    together = gemm(matrix, activations)
    assert close(together, activations.values(), dequantize(matrix))
    for tokens in TOKENS[:-1]:
        assert np.array_equal(gemm(matrix, activations.first(tokens)), together[:tokens])
    assert np.array_equal(gemm(matrix, activations, cuts=(1,)), together)
    assert np.array_equal(gemm(matrix, activations.only(20))[0], together[20])


@pytest.mark.parametrize("ggml_type", [G.Q4_0, G.Q4_1, G.Q5_0, G.Q5_1, G.Q8_0], ids=lambda t: t.name)
@pytest.mark.parametrize("refined", [(0,), (7, 2, 5)])
def test_remainders_of_refined_groups_meet_the_weights_of_their_group(
    gemm, random_activations, random_blocks, rng, ggml_type, refined
):
    matrix = pack(ggml_type, random_blocks(rng, ggml_type, 35, 256)).with_bias(rng.standard_normal(35).astype(np.float32))
    activations = random_activations(rng, 9, 256 + 32 * len(refined))
    values, weights = activations.values(), dequantize(matrix)
    whole = values[:, :256].copy()
    for index, group in enumerate(refined):
        whole[:, 32 * group : 32 * group + 32] += values[:, 256 + 32 * index : 288 + 32 * index]
    before = rng.standard_normal((9, 35)).astype(np.float32)
    together = gemm(matrix, activations, refined=refined, out=before.copy(), accumulate=True)
    bound = 1e-5 * (np.abs(values).sum(axis=1, keepdims=True) * np.abs(weights).max() + 10)
    assert np.all(np.abs(together - (whole @ weights.T.astype(np.float64) + before + matrix.bias)) <= bound)
    assert np.array_equal(
        gemm(matrix, activations, refined=refined, out=before.copy(), accumulate=True, cuts=(1,)), together
    )
    alone = gemm(matrix, activations.only(4), refined=refined, out=before[4:5].copy(), accumulate=True)
    assert np.array_equal(alone[0], together[4])


@pytest.mark.parametrize("ggml_type", TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize("fill", [0x00, 0xFF, 0x80, 0x7F])
@pytest.mark.parametrize("activation", [127, -127])
def test_the_largest_sums_do_not_overflow(gemm, make_activations, random_blocks, rng, ggml_type, fill, activation):
    """Bytes all alike: quants and scales at their ends, for all activations at one end. Integers below 2^24: exact."""
    raw = random_blocks(rng, ggml_type, 16, 256, fill=fill)
    activations = make_activations(np.full((5, 256), activation, np.int8), np.ones((5, 8), np.float32))
    expected = activations.values() @ ggml_dequantize(raw, ggml_type).T.astype(np.float64)
    assert np.allclose(gemm(pack(ggml_type, raw), activations), expected, rtol=1e-6, atol=0)


def test_each_row_and_column_is_its_own(gemm, make_activations, random_blocks, rng):
    """One activation at a time picks one weight: a wrong place in any layout shows."""
    activations = make_activations(np.eye(256, dtype=np.int8), np.ones((256, 8), np.float32))
    for ggml_type in TYPES:
        matrix = pack(ggml_type, random_blocks(rng, ggml_type, 16, 256))
        weights = dequantize(matrix)
        bound = 3e-6 * (np.abs(weights).max(axis=1) + 1)
        assert np.all(np.abs(gemm(matrix, activations).T - weights) <= bound[:, None]), ggml_type


@pytest.mark.parametrize("columns", [32, 40, 576])
def test_bytes_with_a_scale_per_row_and_per_token(gemm, make_activations, rng, columns):
    weights = rng.standard_normal((35, columns)).astype(np.float32)
    matrix = quantize_rows(weights)
    padded = -(-columns // 32) * 32
    q = np.zeros((33, padded), np.int8)
    q[:, :columns] = rng.integers(-127, 128, (33, columns))
    scales = np.zeros((33, padded // 32), np.float32)
    scales[:, :] = rng.uniform(0.5, 2, (33, 1))
    activations = make_activations(q, scales)
    together = gemm(matrix, activations)
    assert close(together, activations.values()[:, :columns], dequantize(matrix))
    for tokens in TOKENS[:-1]:
        assert np.array_equal(gemm(matrix, activations.first(tokens)), together[:tokens])


@pytest.mark.parametrize("sign", [1, -1])
def test_sums_over_many_columns_do_not_overflow(gemm, make_activations, sign):
    columns = 32768
    matrix = quantize_rows(np.full((16, columns), -3.0, np.float32))
    activations = make_activations(np.full((2, columns), 127 * sign, np.int8), np.ones((2, columns // 32), np.float32))
    assert np.allclose(gemm(matrix, activations), -3.0 * 127 * sign * columns, rtol=1e-6)
