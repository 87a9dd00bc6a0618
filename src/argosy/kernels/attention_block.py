"""One block of keys of attention for a few query rows: where the keys are, scores, softmax, values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from argosy.kernels.attention_tiles import (
    BLOCK_KEYS,
    scores_1x4,
    scores_2x4,
    scores_3x4,
    scores_6x2,
    scores_6x2_fetching,
    values_1,
    values_2,
    values_3,
    values_6,
    values_6_fetching,
)
from argosy.kernels.pointers import load_f32, load_i64, store_f32, store_i64
from argosy.kernels.simd import LANES, greater, keep_lanes, load, max_lanes, splat, store, sum_lanes
from argosy.kernels.simd_math import exp2, softcap

ROWS_AT_ONCE = 6
"""Rows that the kernels take together."""

_ROW_BYTES = 4 * BLOCK_KEYS
_MINUS_INFINITY = np.float32(-np.inf)
_LOG2_E = np.float32(1.4426950408889634)


@njit(nogil=True, cache=True)
def locate_keys(block: int, stop: int, table: int, block_size: int, slot_bytes: int, offsets: int) -> None:
    """Bytes from the pool's first slot to those of the block's keys, i64[BLOCK_KEYS] at `offsets`.

    `table` is the address of the sequence's block table. Keys from position `stop` on, which may not be there, get the
    slot of the last one that is.
    """
    position = block * BLOCK_KEYS
    offset = position % block_size
    entry = table + 8 * (position // block_size)
    count = min(BLOCK_KEYS, stop - position)
    i, at = 0, 0
    while i < count:
        at = (load_i64(entry) * block_size + offset) * slot_bytes
        run = min(block_size - offset, count - i)
        for _ in range(run):
            store_i64(offsets + 8 * i, at)
            at += slot_bytes
            i += 1
        offset = 0
        entry += 8
    while i < BLOCK_KEYS:
        store_i64(offsets + 8 * i, at - slot_bytes)
        i += 1


@njit(nogil=True, cache=True)
def score_rows(
    q: int, rows: int, kt: int, head_dim: int, first: int, stop: int, scores: int, k: int, ahead: int, step_bytes: int
) -> None:
    """Scores of the next rows, 6 or `rows` if that is fewer, for keys first..stop of a panel and their tile's others.

    Asks for the rows of K at the offsets at `ahead`, of which 16 elements take `step_bytes`; of more than 6 rows, the last
    do.
    """
    if rows > ROWS_AT_ONCE:
        if first < 16:
            scores_6x2(q, kt, head_dim, scores, k, ahead, step_bytes)
        if stop > 16:
            scores_6x2(q, kt + 64 * head_dim, head_dim, scores + 64, k, ahead, step_bytes)
        return
    if rows == ROWS_AT_ONCE:
        if first < 16:
            scores_6x2_fetching(q, kt, head_dim, scores, k, ahead, step_bytes)
        if stop > 16:
            scores_6x2_fetching(q, kt + 64 * head_dim, head_dim, scores + 64, k, ahead + 128, step_bytes)
        return
    if rows >= 3:
        scores_3x4(q, kt, head_dim, scores, k, ahead, step_bytes)
        rows, q, scores = rows - 3, q + 12 * head_dim, scores + 3 * _ROW_BYTES
    if rows == 2:
        scores_2x4(q, kt, head_dim, scores, k, ahead, step_bytes)
    elif rows == 1:
        scores_1x4(q, kt, head_dim, scores, k, ahead, step_bytes)


@njit(nogil=True, cache=True)
def add_values(
    p: int, rows: int, offsets: int, v: int, head_dim: int, element: int, first: int, stop: int, out: int, ahead: int
) -> None:
    """Add the values of keys first..stop of the block, weighted by `p`, to the next rows of `out`: 6, or `rows` if that is
    fewer. Asks for rows of V as `score_rows` does for K."""
    if rows > ROWS_AT_ONCE:
        values_6(p, offsets, v, first, stop, out, head_dim, ahead, element)
        return
    if rows == ROWS_AT_ONCE:
        values_6_fetching(p, offsets, v, first, stop, out, head_dim, ahead, element)
        return
    if rows >= 3:
        values_3(p, offsets, v, first, stop, out, head_dim, ahead, element)
        rows, p, out = rows - 3, p + 3 * _ROW_BYTES, out + 12 * head_dim
    if rows == 2:
        values_2(p, offsets, v, first, stop, out, head_dim, ahead, element)
    elif rows == 1:
        values_1(p, offsets, v, first, stop, out, head_dim, ahead, element)


@njit(nogil=True, cache=True)
def weigh_row(
    scores: int, low: int, high: int, first: int, stop: int, cap: Any, state: int, out: int, head_dim: int
) -> None:
    """Online softmax (Milakov and Gimelshein 2018) of one row over one block.

    Scores, in units of log 2 (or, with a cap, of 1), become weights relative to the greatest score so far; keys outside
    low..high get weight 0, and first..stop is what the row's tile goes on to read. `state` f32[2] is the greatest score and
    the sum of weights so far, and follows; `out` f32[head_dim] is rescaled to the new greatest.
    """
    if low >= high:
        for k in range(first // LANES * LANES, stop, LANES):
            store(scores + 4 * k, splat(np.float32(0.0)))
        return
    greatest = splat(_MINUS_INFINITY)
    for k in range(low // LANES * LANES, high, LANES):
        x = load(scores + 4 * k)
        if cap > 0:
            x = softcap(x, splat(cap)) * splat(_LOG2_E)
        if k < low or k + LANES > high:
            x = keep_lanes(x, low - k, high - k, _MINUS_INFINITY)
        store(scores + 4 * k, x)
        greatest = greater(x, greatest)
    before = load_f32(state)
    now = max(before, max_lanes(greatest))
    total = splat(np.float32(0.0))
    for k in range(first // LANES * LANES, stop, LANES):
        weight = splat(np.float32(0.0))
        if k + LANES > low and k < high:
            weight = exp2(load(scores + 4 * k) - splat(now))
            total = total + weight
        store(scores + 4 * k, weight)
    kept = load_f32(state + 4)
    if now != before:
        kept = _rescale(out, head_dim, before - now, kept)
    store_f32(state, now)
    store_f32(state + 4, kept + sum_lanes(total))


@njit(nogil=True, cache=True)
def _rescale(out: int, head_dim: int, exponent: Any, total: Any) -> Any:
    """Multiply `out` by 2^exponent; returns `total` times the same."""
    factor = exp2(splat(exponent))
    for d in range(0, 4 * head_dim, 4 * LANES):
        store(out + d, load(out + d) * factor)
    return max_lanes(factor) * total
