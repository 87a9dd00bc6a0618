"""One block of keys of attention for a tile of query rows: gather, scores, softmax, values.

A tile is the queries of a few adjacent tokens of one sequence that read one KV head, `group` rows per token:

    row            0 … group-1 | group … 2·group-1 | …
    position       first       | first + 1         | …

and sees of a block of 64 keys, which begins at a multiple of 64, those that its window and causality leave it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from argosy.kernels.attention_tiles import (
    BLOCK_KEYS,
    scores_1x8,
    scores_2x4,
    scores_3x4,
    scores_6x2,
    transpose_bf16,
    transpose_f16,
    transpose_f32,
    values_1x1,
    values_1x2,
    values_1x4,
    values_1x8,
    values_2x1,
    values_2x2,
    values_2x4,
    values_3x1,
    values_3x2,
    values_3x4,
    values_6x1,
    values_6x2,
)
from argosy.kernels.kv_elements import KVElement, element_bytes, load_elements
from argosy.kernels.pointers import load_f32, load_i64, store_f32, store_i64
from argosy.kernels.simd import LANES, greater, keep_lanes, load, max_lanes, splat, store, sum_lanes
from argosy.kernels.simd_math import exp2, softcap

_F32, _BF16 = int(KVElement.F32), int(KVElement.BF16)
_ROW_BYTES = 4 * BLOCK_KEYS
_MINUS_INFINITY = np.float32(-np.inf)
_LOG2_E = np.float32(1.4426950408889634)


@njit(nogil=True, cache=True)
def locate_keys(
    block: int, stop: int, table: int, block_size: int, slot_bytes: int, k_head: int, v_head: int, keys: int
) -> None:
    """Addresses of the rows of the block's keys, i64[BLOCK_KEYS] each, K at `keys` and V behind it.

    `table` is the address of the sequence's block table. Keys from position `stop` on, which may not be there, get the
    address of the last one that is.
    """
    position = block * BLOCK_KEYS
    offset = position % block_size
    entry = table + 8 * (position // block_size)
    count = min(BLOCK_KEYS, stop - position)
    at = 0
    for i in range(BLOCK_KEYS):
        if i < count:
            at = (load_i64(entry) * block_size + offset) * slot_bytes
            offset += 1
            if offset == block_size:
                offset = 0
                entry += 8
        store_i64(keys + 8 * i, k_head + at)
        store_i64(keys + 8 * (BLOCK_KEYS + i), v_head + at)


@njit(nogil=True, cache=True)
def gather_keys(first: int, stop: int, head_dim: int, element: int, keys: int, kt: int, v: int) -> None:
    """Keys first..stop of the block: K transposed to `kt` f32[head_dim, BLOCK_KEYS], whole vectors of it, and V widened to
    `v` f32[BLOCK_KEYS, head_dim], whose rows' addresses replace those in `keys`. V in f32 stays where it is."""
    for i in range(first // LANES * LANES, stop, LANES):
        if element == _F32:
            transpose_f32(keys + 8 * i, head_dim, kt + 4 * i)
        elif element == _BF16:
            transpose_bf16(keys + 8 * i, head_dim, kt + 4 * i)
        else:
            transpose_f16(keys + 8 * i, head_dim, kt + 4 * i)
    if element == _F32:
        return
    for i in range(first, stop):
        source, row = load_i64(keys + 8 * (BLOCK_KEYS + i)), v + 4 * i * head_dim
        for d in range(0, head_dim, LANES):
            store(row + 4 * d, load_elements(source + d * element_bytes(element), element))
        store_i64(keys + 8 * (BLOCK_KEYS + i), row)


@njit(nogil=True, cache=True)
def score_rows(q: int, rows: int, kt: int, head_dim: int, first: int, stop: int, scores: int) -> None:
    """Scores of `rows` <= 6 rows for keys first..stop and those that share a tile with them."""
    stride = 4 * head_dim
    while rows > 0:
        if rows == 6:
            for k in range(first // 16 * 16, stop, 16):
                scores_6x2(q, stride, kt + 4 * k, head_dim, scores + 4 * k)
            return
        if rows >= 2:
            for k in range(first // 32 * 32, stop, 32):
                if rows >= 3:
                    scores_3x4(q, stride, kt + 4 * k, head_dim, scores + 4 * k)
                else:
                    scores_2x4(q, stride, kt + 4 * k, head_dim, scores + 4 * k)
        else:
            scores_1x8(q, stride, kt, head_dim, scores)
        done = min(rows, 3)
        rows -= done
        q += done * stride
        scores += done * _ROW_BYTES


@njit(nogil=True, cache=True)
def add_values(p: int, rows: int, v: int, head_dim: int, first: int, stop: int, out: int) -> None:
    """Add the values of keys first..stop, weighted by `p`, to `rows` <= 6 rows of `out`, which are head_dim floats apart."""
    stride = 4 * head_dim
    while rows > 0:
        d = 0
        while d < head_dim:
            rest, at = head_dim - d, 4 * d
            if rows == 6:
                if rest >= 16:
                    values_6x2(p, v, at, first, stop, out + at, stride)
                    d += 16
                else:
                    values_6x1(p, v, at, first, stop, out + at, stride)
                    d += 8
            elif rows >= 3:
                d += _add_values_3(p, v, at, first, stop, out, stride, rest)
            elif rows == 2:
                d += _add_values_2(p, v, at, first, stop, out, stride, rest)
            else:
                d += _add_values_1(p, v, at, first, stop, out, stride, rest)
        done = 6 if rows == 6 else min(rows, 3)
        rows -= done
        p += done * _ROW_BYTES
        out += done * stride


@njit(nogil=True, cache=True)
def _add_values_3(p: int, v: int, at: int, first: int, stop: int, out: int, stride: int, rest: int) -> int:
    if rest >= 32:
        values_3x4(p, v, at, first, stop, out + at, stride)
        return 32
    if rest >= 16:
        values_3x2(p, v, at, first, stop, out + at, stride)
        return 16
    values_3x1(p, v, at, first, stop, out + at, stride)
    return 8


@njit(nogil=True, cache=True)
def _add_values_2(p: int, v: int, at: int, first: int, stop: int, out: int, stride: int, rest: int) -> int:
    if rest >= 32:
        values_2x4(p, v, at, first, stop, out + at, stride)
        return 32
    if rest >= 16:
        values_2x2(p, v, at, first, stop, out + at, stride)
        return 16
    values_2x1(p, v, at, first, stop, out + at, stride)
    return 8


@njit(nogil=True, cache=True)
def _add_values_1(p: int, v: int, at: int, first: int, stop: int, out: int, stride: int, rest: int) -> int:
    if rest >= 64:
        values_1x8(p, v, at, first, stop, out + at, stride)
        return 64
    if rest >= 32:
        values_1x4(p, v, at, first, stop, out + at, stride)
        return 32
    if rest >= 16:
        values_1x2(p, v, at, first, stop, out + at, stride)
        return 16
    values_1x1(p, v, at, first, stop, out + at, stride)
    return 8


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
