"""Block Hadamard rotations.

The Hadamard matrix of size n = 2^k has entries ±1 / sqrt(n), is symmetric and is its own inverse:

    H(1) = [1],   H(2n) = | H(n)  H(n) | / sqrt(2)
                          | H(n) -H(n) |

A vector whose length is no power of two is cut into blocks of the largest that divides it, each rotated by itself. Rotated
activations have no outliers left (each entry is a mean over a block), which is what rounding them to a few bits suffers from
(Ashkboos et al. 2024, "QuaRot"). The fast transform takes n log2 n additions.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numba import carray, cfunc, njit
from numpy.typing import NDArray

from argosy.kernels.hadamard_vectors import LANES, UNIT, butterfly, rotate_lanes, rotate_unit, scale_lanes
from argosy.kernels.quantize_activations import OP_SIGNATURE, quantize_row, quantize_token

MAX_BLOCK = 1024
"""Larger blocks gain nothing measurable and leave the L1 cache."""

Float = TypeVar("Float", bound=np.floating[Any])


def hadamard_block(size: int) -> int:
    """The largest power of two that divides `size`, at most `MAX_BLOCK`."""
    return min(size & -size, MAX_BLOCK)


def rotate_blocks(x: NDArray[Float], block: int) -> NDArray[Float]:
    """Each run of `block` elements of the last dimension times H(block); a fresh array of the dtype of `x`.

    `block` is a power of two that divides the last dimension.
    """
    assert block & (block - 1) == 0
    rotated = x.reshape(-1, block)
    half = 1
    while half < block:
        pairs = rotated.reshape(-1, 2, half)
        rotated = np.stack((pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]), axis=1)
        half *= 2
    return np.asarray(rotated * x.dtype.type(block**-0.5), dtype=x.dtype).reshape(x.shape)


@njit(nogil=True, cache=True)
def rotate_row(x: int, columns: int, block: int) -> None:
    """Rotate the blocks of the `columns` floats at address `x`, in place."""
    for start in range(0, columns, block):
        _rotate_block(x + start * 4, block)


@njit(nogil=True, cache=True)
def _rotate_block(x: int, block: int) -> None:
    if block < LANES:
        _rotate_scalars(x, block)
        return
    half = LANES
    if block < UNIT:
        for start in range(0, block, LANES):
            rotate_lanes(x + start * 4)
    else:
        for start in range(0, block, UNIT):
            rotate_unit(x + start * 4)
        half = UNIT
    while half < block:
        for start in range(0, block, 2 * half):
            for lane in range(start, start + half, LANES):
                butterfly(x + lane * 4, half * 4)
        half *= 2
    factor = np.float32(1.0 / np.sqrt(block))
    for start in range(0, block, LANES):
        scale_lanes(x + start * 4, factor)
