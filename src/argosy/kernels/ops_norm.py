"""Ops of a tape: RMSNorm of hidden states, with the residual additions before it and the quantising after it.

    hidden += branch                              branch_weight is 0
    hidden += norm(branch) · branch_weight        else: a block with a norm behind it (Gemma)
    out[i]  = norm(hidden[rows[i]]) · weight      norm(x) = x / sqrt(mean(x²) + eps)   (Zhang and Sennrich 2019)

The addition is left out where `branch` is 0. Weights are f32 with a model's `norm_offset` already added.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import cfunc, njit

from argosy.kernels.pointers import OP_SIGNATURE, bits_float, load_i64
from argosy.kernels.quantize_activations import quantize_row, refine_row
from argosy.kernels.simd import LANES, VECTOR_BYTES, fma, load, load_first, load_up_to, splat, store_up_to, sum_lanes
from argosy.kernels.tape import Arg


class NormArgs(NamedTuple):
    """Args of both ops. Items are rows of the output.

    Attributes:
        hidden: address of f32[T, columns]; changed if there is a branch.
        branch: address of f32[T, columns], or 0.
        branch_weight: address of f32[columns], or 0.
        weight: address of f32[columns].
        columns: width of a row.
        eps: added to the mean square.
        rows: address of i64[items]: the row of `hidden` that each item reads, or 0 for row i. Needs `branch` 0, since an
            item would add it to a row again that another one has.
        out: address of f32[items, columns]. When quantising: of f32[columns], scratch of each thread's own (`PerThread`).
        q, scales, scale_sums: only when quantising: as `quantize_groups_op`, with `num_refined` groups more in a row.
        refined, num_refined: address of i64[num_refined]: groups that are refined (`refine_row`).
    """

    hidden: int
    branch: int
    branch_weight: int
    weight: int
    columns: int
    eps: float
    rows: int
    out: Arg
    q: int = 0
    scales: int = 0
    scale_sums: int = 0
    refined: int = 0
    num_refined: int = 0


@njit(nogil=True, cache=True)
def inverse_rms(x: int, columns: int, eps: Any) -> Any:
    """1 / sqrt(mean(x²) + eps), f32, of the `columns` floats at address `x`."""
    a, b, c, d = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
    unrolled = columns // (4 * LANES) * (4 * LANES)
    for i in range(0, unrolled, 4 * LANES):
        p = x + 4 * i
        v0, v1, v2, v3 = load(p), load(p + VECTOR_BYTES), load(p + 2 * VECTOR_BYTES), load(p + 3 * VECTOR_BYTES)
        a, b, c, d = fma(v0, v0, a), fma(v1, v1, b), fma(v2, v2, c), fma(v3, v3, d)
    for i in range(unrolled, columns, LANES):
        v = load_first(x + 4 * i, columns - i)
        a = fma(v, v, a)
    mean = sum_lanes((a + b) + (c + d)) / np.float32(columns)
    return np.float32(1.0) / np.sqrt(mean + eps)


@njit(nogil=True, cache=True)
def scale_row(x: int, factor: Any, weight: int, columns: int, out: int) -> None:
    """out = (x · factor) · weight; `out` may be `x`."""
    factors = splat(factor)
    for i in range(0, columns, LANES):
        at, rest = 4 * i, columns - i
        store_up_to(out + at, (load_up_to(x + at, rest) * factors) * load_up_to(weight + at, rest), rest)


@njit(nogil=True, cache=True)
def add_row(x: int, factor: Any, weight: int, columns: int, out: int) -> None:
    """out += (x · factor) · weight; without a weight (0), out += x."""
    factors = splat(factor)
    for i in range(0, columns, LANES):
        at, rest = 4 * i, columns - i
        added = load_up_to(x + at, rest)
        if weight != 0:
            added = (added * factors) * load_up_to(weight + at, rest)
        store_up_to(out + at, load_up_to(out + at, rest) + added, rest)


@njit(nogil=True, cache=True)
def _norm_row(args: Any, item: int, out: int) -> None:
    """The norm of one item's row, to address `out`; adds the branch to the row of `hidden` first."""
    branch, branch_weight, weight, columns = args[1], args[2], args[3], args[4]
    eps = bits_float(args[5])
    row = item if args[6] == 0 else load_i64(args[6] + 8 * item)
    x = args[0] + 4 * row * columns
    if branch != 0:
        added = branch + 4 * row * columns
        factor = np.float32(1.0) if branch_weight == 0 else inverse_rms(added, columns, eps)
        add_row(added, factor, branch_weight, columns, x)
    scale_row(x, inverse_rms(x, columns, eps), weight, columns, out)


@cfunc(OP_SIGNATURE, cache=True)
def rms_norm_op(args: Any, begin: int, end: int, thread: int) -> None:  # noqa: ARG001
    """Rows begin..end as f32; args: `NormArgs`."""
    for item in range(begin, end):
        _norm_row(args, item, args[7] + 4 * item * args[4])


@cfunc(OP_SIGNATURE, cache=True)
def rms_norm_quantize_op(args: Any, begin: int, end: int, thread: int) -> None:  # noqa: ARG001
    """Rows begin..end quantised in groups of 32, through the thread's scratch row; args: `NormArgs`."""
    columns, row = args[4], args[7]
    refined, num_refined = args[11], args[12]
    groups = (columns + 31) // 32
    for item in range(begin, end):
        _norm_row(args, item, row)
        first = item * (groups + num_refined)
        q, scales, scale_sums = args[8] + 32 * first, args[9] + 4 * first, args[10] + 4 * first
        quantize_row(row, columns, q, scales, scale_sums)
        refine_row(row, groups, refined, num_refined, q, scales, scale_sums)
