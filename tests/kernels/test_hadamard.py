from __future__ import annotations

import numpy as np
import pytest

from argosy.kernels.hadamard import RotateArgs, hadamard_block, rotate_blocks, rotate_quantize_tokens_op, rotate_row
from argosy.kernels.quantize_activations import QuantizeArgs, padded_columns, quantize_tokens_op


def hadamard(size: int) -> np.ndarray:
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / size**0.5


@pytest.mark.parametrize("block", [1, 2, 8, 64, 128])
def test_blocks_are_multiplied_by_the_matrix(rng, block):
    x = rng.standard_normal((2, 3, 3 * block))
    expected = (x.reshape(-1, block) @ hadamard(block)).reshape(x.shape)
    assert np.allclose(rotate_blocks(x, block), expected, atol=1e-13)


@pytest.mark.parametrize("block", [16, 512])
def test_rotation_is_orthogonal_and_its_own_inverse(rng, block):
    x = rng.standard_normal((4, 2 * block))
    rotated = rotate_blocks(x, block)
    assert np.allclose(np.linalg.norm(rotated, axis=1), np.linalg.norm(x, axis=1), rtol=1e-14)
    assert np.allclose(rotate_blocks(rotated, block), x, atol=1e-13)


def test_dtype_is_kept_and_the_input_untouched(rng):
    x = rng.standard_normal((2, 64)).astype(np.float32)
    before = x.copy()
    assert rotate_blocks(x, 64).dtype == np.float32
    assert np.array_equal(x, before)


@pytest.mark.parametrize(
    ("size", "block"), [(576, 64), (1536, 512), (8960, 256), (4864, 256), (8192, 1024), (8, 8), (12, 1), (7, 1)]
)
def test_block_is_the_largest_power_of_two_in_the_size(size, block):
    assert hadamard_block(size) == block


@pytest.mark.parametrize("columns", [8, 16, 48, 64, 192, 128, 256, 512, 1024, 3072, 1536, 12])
def test_kernel_agrees_with_the_reference(rng, columns):
    block = hadamard_block(columns)
    x = rng.standard_normal(columns)
    row = x.astype(np.float32)
    rotate_row(row.ctypes.data, columns, block)
    assert np.allclose(row, rotate_blocks(x, block), rtol=0, atol=3e-6)


def test_an_outlier_is_spread_over_its_block():
    x = np.zeros(256, np.float32)
    x[77] = 16
    rotate_row(x.ctypes.data, 256, 256)
    assert np.array_equal(np.abs(x), np.ones(256))


@pytest.mark.parametrize("columns", [40, 192])
def test_fused_op_is_the_rotation_and_then_the_quantising(run_op, rng, columns):
    def buffers() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return np.full((5, padded_columns(columns)), 99, np.int8), np.zeros(5, np.float32), np.zeros(5, np.float32)

    fused, x = buffers(), rng.standard_normal((5, columns + 3)).astype(np.float32)
    separate, y = buffers(), x.copy()
    gaps = x[:, columns:].copy()
    block = hadamard_block(columns)
    operands = (x.strides[0], columns)
    run_op(
        rotate_quantize_tokens_op,
        RotateArgs(x.ctypes.data, *operands, *(b.ctypes.data for b in fused), block),
        5,
        chunk=2,
    )
    for row in y:
        rotate_row(row.ctypes.data, columns, block)
    run_op(quantize_tokens_op, QuantizeArgs(y.ctypes.data, *operands, *(b.ctypes.data for b in separate)), 5)
    for found, expected in zip(fused, separate, strict=True):
        assert np.array_equal(found, expected)
    assert np.array_equal(x[:, columns:], gaps)
