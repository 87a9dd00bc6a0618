"""Products of floating-point weights, with every instruction set, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from argosy.kernels.pack_ggml import dequantize, pack
from argosy.kernels.packed import PackedMatrix

KINDS = ["F32", "F16", "BF16"]
EPS = float(np.finfo(np.float32).eps)


def matrix_of(rng: np.random.Generator, kind: str, rows: int, columns: int) -> PackedMatrix:
    weights = rng.standard_normal((rows, columns)).astype(np.float32)
    stored = {"F32": weights, "F16": weights.astype(np.float16), "BF16": weights.view(np.uint16)[:, 1::2]}[kind]
    return pack(GGMLQuantizationType[kind], np.ascontiguousarray(stored).view(np.uint8))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [1, 37, 256])
def test_close_to_the_exact_product_and_bits_apart_from_other_tokens(gemm, rng, kind, columns):
    matrix = matrix_of(rng, kind, 35, columns)
    x = rng.standard_normal((33, columns)).astype(np.float32)
    together = gemm.floats(matrix, x)
    weights = dequantize(matrix).astype(np.float64)
    bound = (columns + 1) * EPS * (np.abs(x.astype(np.float64)) @ np.abs(weights.T))
    assert np.all(np.abs(together - x.astype(np.float64) @ weights.T) <= bound)
    for tokens in (1, 2, 3, 4, 5, 6, 7, 8, 9, 16):
        assert np.array_equal(gemm.floats(matrix, x[:tokens]), together[:tokens])
    assert np.array_equal(gemm.floats(matrix, x, cuts=(1, 2)), together)


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_and_column_is_its_own(gemm, rng, kind):
    matrix = matrix_of(rng, kind, 19, 40)
    assert np.array_equal(gemm.floats(matrix, np.eye(40, dtype=np.float32)), dequantize(matrix).T)


@pytest.mark.parametrize("kind", KINDS)
def test_special_weights_keep_their_meaning(gemm, kind):
    """Infinities, subnormals and signed zeros of the half types included."""
    values = np.array([[np.inf, -np.inf, 2.0**-24, -(2.0**-14), 65504.0, -0.0]], np.float32)
    stored = {"F32": values, "F16": values.astype(np.float16), "BF16": values.view(np.uint16)[:, 1::2]}[kind]
    matrix = pack(GGMLQuantizationType[kind], np.ascontiguousarray(stored).view(np.uint8))
    weights = dequantize(matrix)
    for column in range(values.shape[1]):
        x = np.zeros((1, values.shape[1]), np.float32)
        x[0, column] = 1
        finite = PackedMatrix(matrix.kind, 1, 1, np.ascontiguousarray(matrix.data.reshape(6, -1)[column : column + 1]))
        assert gemm.floats(finite, x[:, column : column + 1])[0, 0] == weights[0, column]


def test_an_activation_that_is_not_finite_stays_with_its_token(gemm, rng):
    x = rng.standard_normal((7, 32)).astype(np.float32)
    x[3, 5] = np.nan
    out = gemm.floats(matrix_of(rng, "F32", 16, 32), x)
    assert np.isnan(out[3]).all()
    assert np.isfinite(np.delete(out, 3, axis=0)).all()
