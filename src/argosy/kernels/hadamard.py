"""Block Hadamard rotations.

The Hadamard matrix of size n = 2^k has entries ±1 / sqrt(n), is symmetric and is its own inverse:

    H(1) = [1],   H(2n) = | H(n)  H(n) | / sqrt(2)
                          | H(n) -H(n) |

A vector whose length is no power of two is cut into blocks of the largest that divides it, each rotated by itself. Rotated
activations have no outliers left (each entry is a mean over a block), which is what rounding them to a few bits suffers from
(Ashkboos et al. 2024, "QuaRot"). The fast transform takes n log2 n additions.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np
from numba import cfunc, njit
from numpy.typing import NDArray

from argosy.kernels.hadamard_vectors import LANES, UNIT, combine_eight, combine_pair, rotate_lanes, rotate_unit
from argosy.kernels.pointers import OP_SIGNATURE
from argosy.kernels.quantize_activations import quantize_whole_row
from argosy.kernels.quantize_vectors import GROUP

MAX_BLOCK = 1024
"""Larger blocks gain nothing measurable and leave the L1 cache."""

Float = TypeVar("Float", np.float32, np.float64)


def hadamard_block(size: int) -> int:
    """The largest power of two that divides `size`, at most `MAX_BLOCK`; 1, which is no rotation, if that is below 8."""
    block = min(size & -size, MAX_BLOCK)
    return block if block >= LANES else 1


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
    """Rotate each block of the `columns` floats at address `x`, in place; `block` as `hadamard_block` chooses it."""
    if block < LANES:
        return
    factor = np.float32(1.0 / np.sqrt(block))
    for start in range(0, columns, block):
        at = x + start * 4
        if block >= UNIT:
            for unit in range(0, block, UNIT):
                rotate_unit(at + unit * 4, factor)
            _combine(at, block, UNIT)
        else:
            for unit in range(0, block, LANES):
                rotate_lanes(at + unit * 4, factor)
            _combine(at, block, LANES)


@njit(nogil=True, cache=True)
def _combine(x: int, block: int, done: int) -> None:
    """The stages from distance `done` (a multiple of `LANES`) up, of the block at address `x`."""
    half = done
    while half < block:
        radix = 8 if half * 8 <= block else 2
        for start in range(0, block, radix * half):
            for lane in range(start, start + half, LANES):
                if radix == 8:
                    combine_eight(x + lane * 4, half * 4)
                else:
                    combine_pair(x + lane * 4, half * 4)
        half *= radix


class RotateArgs(NamedTuple):
    """Args of the op. Items are tokens; all but `block` as in `QuantizeArgs`, with a scale per token.

    Attributes:
        x: address of f32[T, columns]; each row is overwritten with its rotation.
        block: `hadamard_block(columns)`.
    """

    x: int
    x_stride_bytes: int
    columns: int
    q: int
    scales: int
    scale_sums: int
    block: int


@cfunc(OP_SIGNATURE, cache=True)
def rotate_quantize_tokens_op(args: Any, begin: int, end: int, thread: int) -> None:  # noqa: ARG001
    """Rotate tokens begin..end in place and quantise them with one scale each; args: `RotateArgs`."""
    columns, padded = args[2], (args[2] + GROUP - 1) // GROUP * GROUP
    for token in range(begin, end):
        x, q = args[0] + token * args[1], args[3] + token * padded
        rotate_row(x, columns, args[6])
        quantize_whole_row(x, columns, q, args[4] + token * 4, args[5] + token * 4)
