"""Activations as signed bytes: the operands of every kernel with integer weights.

A token's row is cut into groups of 32. A group with largest magnitude m becomes

    scale = m / 127                          f32
    q[i]  = round_half_even(x[i] / scale)    s8, -127 … 127
    scale_sum = scale · Σ q[i]               f32

so that |x[i] - scale · q[i]| ≤ scale / 2. `scale_sum` is what the additive part of a weight group is multiplied by. A group
whose scale would be subnormal (m below 1.5e-36) is zero. A NaN or an infinity makes the group's scale not finite and with it
every output of the token, so that a broken model is noticed at its logits.

Per token, the whole row is one group.

A group with an outlier is coarse for all its other members. Such a group can be refined: what rounding left of it is
quantised once more, as a group behind the last one, which makes its error 254 times smaller.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import cfunc, njit

from argosy.kernels.pointers import OP_SIGNATURE, load_f32, load_i64, load_s8, store_f32
from argosy.kernels.quantize_vectors import (
    GROUP,
    group_magnitude,
    round_group,
    round_tail,
    scale_of,
    store_scales,
    tail_magnitude,
)


class QuantizeArgs(NamedTuple):
    """Args of the ops. Items are tokens; padded = `padded_columns(columns)`.

    Attributes:
        x: address of f32[T, columns].
        x_stride_bytes: from one token's row to the next.
        columns: width of a row.
        q: address of s8[T, padded].
        scales, scale_sums: addresses of f32[T, padded / 32], or of f32[T] when the scale is per token.
    """

    x: int
    x_stride_bytes: int
    columns: int
    q: int
    scales: int
    scale_sums: int


def padded_columns(columns: int) -> int:
    """`columns` rounded up to whole groups: the length of a quantised row, whose tail is zero."""
    return (columns + GROUP - 1) // GROUP * GROUP


@njit(nogil=True, cache=True)
def quantize_row(x: int, columns: int, q: int, scales: int, scale_sums: int) -> None:
    """Quantise one row in groups of 32; all but `columns` are addresses. Writes whole groups of q, zeros behind the row."""
    full = columns // GROUP
    for group in range(full):
        quantize_group(x + group * 4 * GROUP, q + group * GROUP, scales + group * 4, scale_sums + group * 4)
    if full * GROUP < columns:
        rest, tail = columns - full * GROUP, x + full * 4 * GROUP
        scale = scale_of(tail_magnitude(tail, rest))
        total = round_tail(tail, rest, q + full * GROUP, scale)
        store_scales(scale, total, scales + full * 4, scale_sums + full * 4)


@njit(nogil=True, cache=True)
def quantize_group(x: int, q: int, scale: int, scale_sum: int) -> None:
    """Quantise the 32 floats at address `x`; writes 32 bytes at `q` and one float at each of `scale` and `scale_sum`."""
    group_scale = scale_of(group_magnitude(x))
    total = round_group(x, q, group_scale)
    store_scales(group_scale, total, scale, scale_sum)


@njit(nogil=True, cache=True)
def refine_row(x: int, groups: int, refined: int, num_refined: int, q: int, scales: int, scale_sums: int) -> None:
    """Quantise what rounding left of the `num_refined` groups whose i64 numbers are at address `refined`, behind the
    `groups` that are quantised; each is a whole group, listed once. Changes these groups of `x`."""
    for index in range(num_refined):
        group = load_i64(refined + 8 * index)
        rest, rounded, scale = x + group * 4 * GROUP, q + group * GROUP, load_f32(scales + group * 4)
        for i in range(GROUP):
            left = load_f32(rest + 4 * i) - scale * np.float32(load_s8(rounded + i))
            store_f32(rest + 4 * i, left)
        behind = groups + index
        quantize_group(rest, q + behind * GROUP, scales + behind * 4, scale_sums + behind * 4)


@njit(nogil=True, cache=True)
def row_scale(x: int, columns: int) -> Any:
    """The scale of a whole row: the largest of its groups'."""
    full = columns // GROUP * GROUP
    largest = 0
    for column in range(0, full, GROUP):
        largest = max(largest, group_magnitude(x + column * 4))
    if full < columns:
        largest = max(largest, tail_magnitude(x + full * 4, columns - full))
    return scale_of(largest)


@njit(nogil=True, cache=True)
def quantize_whole_row(x: int, columns: int, q: int, scale: int, scale_sum: int) -> None:
    """Quantise one row with one scale; all but `columns` are addresses. Writes whole groups of q, zeros behind the row."""
    common = row_scale(x, columns)
    total = 0
    full = columns // GROUP * GROUP
    for column in range(0, full, GROUP):
        total += round_group(x + column * 4, q + column, common)
    if full < columns:
        total += round_tail(x + full * 4, columns - full, q + full, common)
    store_scales(common, total, scale, scale_sum)


@cfunc(OP_SIGNATURE, cache=True)
def quantize_groups_op(args: Any, begin: int, end: int, thread: int) -> None:  # noqa: ARG001
    """Quantise tokens begin..end in groups of 32; args: `QuantizeArgs`."""
    columns, groups = args[2], (args[2] + GROUP - 1) // GROUP
    for token in range(begin, end):
        first = token * groups
        x, q = args[0] + token * args[1], args[3] + first * GROUP
        quantize_row(x, columns, q, args[4] + first * 4, args[5] + first * 4)


@cfunc(OP_SIGNATURE, cache=True)
def quantize_tokens_op(args: Any, begin: int, end: int, thread: int) -> None:  # noqa: ARG001
    """Quantise tokens begin..end with one scale each; args: `QuantizeArgs`."""
    columns, padded = args[2], (args[2] + GROUP - 1) // GROUP * GROUP
    for token in range(begin, end):
        x, q = args[0] + token * args[1], args[3] + token * padded
        quantize_whole_row(x, columns, q, args[4] + token * 4, args[5] + token * 4)
