"""Activations as signed bytes: the operands of every kernel with integer weights.

A token's row is cut into groups of 32. A group with largest magnitude m becomes

    scale = m / 127                          f32
    q[i]  = round_half_even(x[i] / scale)    s8, -127 … 127
    scale_sum = scale · Σ q[i]               f32

so that |x[i] - scale · q[i]| ≤ scale / 2. `scale_sum` is what the additive part of a weight group is multiplied by. A group
whose scale would be subnormal (m below 1.5e-36) is zero. A NaN or an infinity makes the group's scale not finite and with it
every output of the token, so that a broken model is noticed at its logits.

Per token, the whole row is one group.
"""

from __future__ import annotations

from typing import Any

from numba import carray, cfunc, njit, types

from argosy.kernels.quantize_vectors import (
    GROUP,
    group_magnitude,
    round_group,
    round_tail,
    scale_of,
    store_scales,
    tail_magnitude,
)

OP_SIGNATURE = types.void(types.CPointer(types.int64), types.int64, types.int64, types.int64)
"""(args, begin, end, thread): one op of a tape, items begin..end."""


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
def row_scale(x: int, columns: int) -> Any:
    """The scale of a whole row: the largest of its groups'."""
    full = columns // GROUP * GROUP
    largest = 0
    for column in range(0, full, GROUP):
        largest = max(largest, group_magnitude(x + column * 4))
    if full < columns:
        largest = max(largest, tail_magnitude(x + full * 4, columns - full))
    return scale_of(largest)


@cfunc(OP_SIGNATURE, cache=True)
def quantize_groups_op(args: Any, begin: int, end: int, thread: int) -> None:  # noqa: ARG001
    """Quantise tokens begin..end in groups of 32.

    args: address of x f32[T, columns], bytes from row to row of x, columns, addresses of q s8[T, padded], scale
    f32[T, padded / 32] and scale_sum f32[T, padded / 32], where padded = `padded_columns(columns)`. Items are tokens.
    """
    a = carray(args, 6)
    columns, groups = a[2], (a[2] + GROUP - 1) // GROUP
    for token in range(begin, end):
        first = token * groups
        quantize_row(a[0] + token * a[1], columns, a[3] + first * GROUP, a[4] + first * 4, a[5] + first * 4)


@cfunc(OP_SIGNATURE, cache=True)
def quantize_tokens_op(args: Any, begin: int, end: int, thread: int) -> None:  # noqa: ARG001
    """Quantise tokens begin..end with one scale each.

    args: as of `quantize_groups_op`, but scale and scale_sum are f32[T].
    """
    a = carray(args, 6)
    columns, padded = a[2], (a[2] + GROUP - 1) // GROUP * GROUP
    for token in range(begin, end):
        x, q = a[0] + token * a[1], a[3] + token * padded
        scale = row_scale(x, columns)
        total = 0
        full = columns // GROUP * GROUP
        for column in range(0, full, GROUP):
            total += round_group(x + column * 4, q + column, scale)
        if full < columns:
            total += round_tail(x + full * 4, columns - full, q + full, scale)
        store_scales(scale, total, a[4] + token * 4, a[5] + token * 4)
