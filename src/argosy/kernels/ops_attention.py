"""Ops of a tape: causal attention of a step's tokens over the paged KV pool, whatever mix of prompts and decoding it is.

Grouped-query attention (Ainslie et al. 2023): the query heads that share a KV head are computed together, so that K and V
are read once for all. Per query row the order of operations is fixed by positions alone, so that its bits depend neither on
which other tokens are in the step, nor on how a prompt is cut into chunks, nor on the number of threads:

    for each split of 256 keys:                       a softmax of its own
        for each block of 64 keys, ascending:         scores, then the running maximum, sum and output
    merge the splits, ascending                       Dao et al., Flash-Decoding, 2023

Scores are q · (scale · log2 e) · k, so that weights are powers of two.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import cfunc, njit

from argosy.kernels.attention_block import (
    add_values,
    add_values_fetching,
    locate_keys,
    score_rows,
    transpose_panel,
    weigh_row,
)
from argosy.kernels.attention_plan import COMBINE_WORDS, SPLIT_KEYS, WORK_WORDS
from argosy.kernels.attention_tiles import BLOCK_KEYS, PANEL_KEYS
from argosy.kernels.kv_elements import element_bytes
from argosy.kernels.pointers import OP_SIGNATURE, bits_float, load_f32, load_i64, store_f32
from argosy.kernels.quantize_activations import quantize_group
from argosy.kernels.quantize_vectors import GROUP
from argosy.kernels.simd import LANES, fma, load, max_lanes, splat, store
from argosy.kernels.simd_math import exp2
from argosy.kernels.tape import Arg

_ROWS_AT_ONCE = 6
_MINUS_INFINITY = np.float32(-np.inf)
_LOG2_E = np.float32(1.4426950408889634)
_BLOCKS_PER_SPLIT = SPLIT_KEYS // BLOCK_KEYS


class AttentionArgs(NamedTuple):
    """Args of `attention_op`. Items are (row of work, KV head) pairs, row by row.

    Attributes:
        work: address of the rows that `plan_attention` made for this window.
        q: address of the first query head, f32.
        q_stride: floats from token to token of `q`.
        num_kv_heads, group, head_dim: query heads per KV head; head_dim is a multiple of 8.
        scale: multiplies q · k.
        softcap: cap · tanh(s / cap) of the scaled scores, or 0 for none.
        window: tokens seen, or 0 for all.
        k_pool, v_pool: addresses of this layer's K and V, [slots, num_kv_heads, head_dim].
        element: `KVElement` of the pool.
        tables: address of the step's block tables, i64.
        block_size: tokens of a block.
        scratch: each thread's own `attention_scratch_bytes` (`PerThread`).
        out: address of f32[T, heads · head_dim]. When quantising (`q8` is not 0): unused.
        q8, scales, scale_sums: 0, or as `quantize_groups_op`; head_dim is then a multiple of 32.
        partials: address of f32[max_partials, heads, head_dim + 2]: weighted values, greatest score, sum of weights.
    """

    work: int
    q: int
    q_stride: int
    num_kv_heads: int
    group: int
    head_dim: int
    scale: float
    softcap: float
    window: int
    k_pool: int
    v_pool: int
    element: int
    tables: int
    block_size: int
    scratch: Arg
    out: int
    q8: int
    scales: int
    scale_sums: int
    partials: int


class CombineArgs(NamedTuple):
    """Args of `combine_attention_op`. Items are (row to combine, query head) pairs, row by row.

    Attributes:
        combine: address of the rows that `plan_attention` made.
        num_heads, head_dim: query heads.
        scratch: f32[head_dim + 2], each thread's own (`PerThread`).
        partials, out, q8, scales, scale_sums: as of `AttentionArgs`.
    """

    combine: int
    num_heads: int
    head_dim: int
    scratch: Arg
    partials: int
    out: int
    q8: int
    scales: int
    scale_sums: int


def attention_scratch_bytes(tokens_per_tile: int, group: int, head_dim: int) -> int:
    """Bytes of scratch that one thread needs for tiles of `tokens_per_tile` tokens."""
    rows = tokens_per_tile * group
    per_row = 3 * head_dim + BLOCK_KEYS + 4
    return 4 * (rows * per_row + PANEL_KEYS * head_dim) + 16 * BLOCK_KEYS


@njit(nogil=True, cache=True)
def _prepare(q: int, row_floats: int, tokens: int, group: int, head_dim: int, factor: Any, out: int) -> None:
    """Copy a tile's queries, times `factor`, to f32[tokens · group, head_dim] at `out`."""
    factors = splat(factor)
    for t in range(tokens):
        source, target = q + 4 * t * row_floats, out + 4 * t * group * head_dim
        for d in range(0, 4 * group * head_dim, 4 * LANES):
            store(target + d, load(source + d) * factors)


@njit(nogil=True, cache=True)
def _clear(out: int, states: int, rows: int, head_dim: int) -> None:
    """Rows before their first key: output 0, greatest score -inf, sum of weights 0."""
    for i in range(0, 4 * rows * head_dim, 4 * LANES):
        store(out + i, splat(np.float32(0.0)))
    for r in range(rows):
        store_f32(states + 8 * r, _MINUS_INFINITY)
        store_f32(states + 8 * r + 4, np.float32(0.0))


@njit(nogil=True, cache=True)
def _merge(out: int, state: int, part: int, part_state: int, head_dim: int) -> None:
    """Add the softmax-weighted values of one more split to those so far."""
    if load_f32(part_state + 4) == 0:
        return
    before, other = load_f32(state), load_f32(part_state)
    now = max(before, other)
    kept, added = exp2(splat(before - now)), exp2(splat(other - now))
    for d in range(0, 4 * head_dim, 4 * LANES):
        store(out + d, fma(load(part + d), added, load(out + d) * kept))
    total = load_f32(state + 4) * max_lanes(kept) + load_f32(part_state + 4) * max_lanes(added)
    store_f32(state, now)
    store_f32(state + 4, total)


@njit(nogil=True, cache=True)
def _finish(
    row: int, state: int, index: int, head: int, num_heads: int, head_dim: int, out: int, q8: int, scales: int, sums: int
) -> None:
    """Divide a row by its sum of weights, in place, and write it as head `head` of the step's token `index`."""
    total = splat(load_f32(state + 4))
    at = (index * num_heads + head) * head_dim
    target = row if q8 != 0 else out + 4 * at
    for d in range(0, 4 * head_dim, 4 * LANES):
        store(target + d, load(row + d) / total)
    if q8 != 0:
        for d in range(0, head_dim, GROUP):
            group = 4 * ((at + d) // GROUP)
            quantize_group(row + 4 * d, q8 + at + d, scales + group, sums + group)


@njit(nogil=True, cache=True, forceinline=True)
def _first_key(position: int, window: int, base: int) -> int:
    """The first key that the query at `position` sees, counted from position `base` and not below 0."""
    return max(0, position - window + 1 - base) if window > 0 else 0


@njit(nogil=True, cache=True)
def _score_block(
    args: Any, base: int, tokens: int, position: int, offsets: int, kv_head: int, q: int, kt: int, scores: int, ahead: int
) -> None:
    """Scores of a tile's rows for the block of keys that begins at position `base`, panel by panel; between them it asks
    for the keys whose offsets are at `ahead`."""
    group, head_dim, window, element = args[4], args[5], args[8], args[11]
    rows, k = tokens * group, args[9] + kv_head * head_dim * element_bytes(element)
    fetched = ahead if rows <= _ROWS_AT_ONCE else 0
    for panel in range(0, BLOCK_KEYS, PANEL_KEYS):
        start = base + panel
        lowest, highest = _first_key(position, window, start), min(PANEL_KEYS, position + tokens - start)
        if lowest >= highest:
            continue
        transpose_panel(
            lowest, highest, offsets + 8 * panel, k, head_dim, element, kt, fetched + 8 * panel if fetched != 0 else 0
        )
        for first_row in range(0, rows, _ROWS_AT_ONCE):
            count = min(_ROWS_AT_ONCE, rows - first_row)
            first = _first_key(position + first_row // group, window, start)
            stop = min(PANEL_KEYS, position + (first_row + count - 1) // group + 1 - start)
            if first < stop:
                at = scores + 4 * (first_row * BLOCK_KEYS + panel)
                score_rows(q + 4 * first_row * head_dim, count, kt, head_dim, first, stop, at)


@njit(nogil=True, cache=True)
def _weigh_block(
    args: Any,
    base: int,
    tokens: int,
    position: int,
    offsets: int,
    kv_head: int,
    out: int,
    states: int,
    scores: int,
    ahead: int,
) -> None:
    """From the scores of a block to the outputs of a tile's rows; updates `out` and `states`."""
    group, head_dim, window, element = args[4], args[5], args[8], args[11]
    cap, rows = bits_float(args[7]), tokens * group
    v = args[10] + kv_head * head_dim * element_bytes(element)
    for first_row in range(0, rows, _ROWS_AT_ONCE):
        count = min(_ROWS_AT_ONCE, rows - first_row)
        first = _first_key(position + first_row // group, window, base)
        stop = min(BLOCK_KEYS, position + (first_row + count - 1) // group + 1 - base)
        if first >= stop:
            continue
        for r in range(first_row, first_row + count):
            own = position + r // group
            low, high = _first_key(own, window, base), min(BLOCK_KEYS, own + 1 - base)
            row = out + 4 * r * head_dim
            weigh_row(scores + 4 * r * BLOCK_KEYS, low, high, first, stop, cap, states + 8 * r, row, head_dim)
        at = scores + 4 * first_row * BLOCK_KEYS
        if rows <= _ROWS_AT_ONCE:
            add_values_fetching(at, count, offsets, v, head_dim, element, first, stop, out, ahead)
        else:
            add_values(at, count, offsets, v, head_dim, element, first, stop, out + 4 * first_row * head_dim)


@njit(nogil=True, cache=True)
def _attend_blocks(
    args: Any, first: int, stop: int, tokens: int, position: int, table: int, kv_head: int, q: int, out: int, states: int
) -> None:
    """Blocks first..stop of keys for a tile; updates `out` and `states`. Scores, panel and offsets lie behind `states`."""
    group, head_dim = args[4], args[5]
    rows, end = tokens * group, position + tokens
    slot_bytes = args[3] * head_dim * element_bytes(args[11])
    scores = states + 8 * rows
    kt = scores + 4 * rows * BLOCK_KEYS
    offsets = kt + 4 * PANEL_KEYS * head_dim
    ahead = offsets + 8 * BLOCK_KEYS
    locate_keys(first, end, table, args[13], slot_bytes, offsets)
    for block in range(first, stop):
        following = min(block + 1, stop - 1)
        locate_keys(following, end, table, args[13], slot_bytes, ahead)
        base = block * BLOCK_KEYS
        _score_block(args, base, tokens, position, offsets, kv_head, q, kt, scores, ahead)
        _weigh_block(args, base, tokens, position, offsets, kv_head, out, states, scores, ahead)
        offsets, ahead = ahead, offsets


@njit(nogil=True, cache=True)
def _attend_tile(args: Any, work: int, kv_head: int) -> None:
    """One row of work for one KV head."""
    group, head_dim, window = args[4], args[5], args[8]
    first_row, tokens, position = load_i64(work), load_i64(work + 8), load_i64(work + 16)
    table = args[12] + 8 * load_i64(work + 24)
    first_split, stop_split, partial = load_i64(work + 32), load_i64(work + 40), load_i64(work + 48)
    rows = tokens * group
    q = args[14]
    total = q + 4 * rows * head_dim
    part = total + 4 * rows * head_dim
    total_states = part + 4 * rows * head_dim
    part_states = total_states + 8 * rows
    factor = bits_float(args[6])
    if bits_float(args[7]) == 0:
        factor *= _LOG2_E
    _prepare(args[1] + 4 * (first_row * args[2] + kv_head * group * head_dim), args[2], tokens, group, head_dim, factor, q)
    _clear(total, total_states, rows, head_dim)
    low = max(0, position - window + 1) if window > 0 else 0
    for split in range(first_split, stop_split):
        _clear(part, part_states, rows, head_dim)
        first_block = max(split * _BLOCKS_PER_SPLIT, low // BLOCK_KEYS)
        stop_block = min((split + 1) * _BLOCKS_PER_SPLIT, (position + tokens - 1) // BLOCK_KEYS + 1)
        if first_block < stop_block:
            _attend_blocks(args, first_block, stop_block, tokens, position, table, kv_head, q, part, part_states)
        if partial < 0:
            for r in range(rows):
                _merge(
                    total + 4 * r * head_dim, total_states + 8 * r, part + 4 * r * head_dim, part_states + 8 * r, head_dim
                )
    num_heads = args[3] * group
    for r in range(rows):
        token, head = r // group, kv_head * group + r % group
        if partial < 0:
            row, state = total + 4 * r * head_dim, total_states + 8 * r
            _finish(row, state, first_row + token, head, num_heads, head_dim, args[15], args[16], args[17], args[18])
        else:
            kept = args[19] + 4 * ((partial + token) * num_heads + head) * (head_dim + 2)
            for d in range(0, 4 * head_dim, 4 * LANES):
                store(kept + d, load(part + 4 * r * head_dim + d))
            store_f32(kept + 4 * head_dim, load_f32(part_states + 8 * r))
            store_f32(kept + 4 * head_dim + 4, load_f32(part_states + 8 * r + 4))


@cfunc(OP_SIGNATURE, cache=True)
def attention_op(args: Any, begin: int, end: int, thread: int) -> None:  # noqa: ARG001
    """Items begin..end; args: `AttentionArgs`."""
    num_kv_heads = args[3]
    for item in range(begin, end):
        _attend_tile(args, args[0] + 8 * WORK_WORDS * (item // num_kv_heads), item % num_kv_heads)


@cfunc(OP_SIGNATURE, cache=True)
def combine_attention_op(args: Any, begin: int, end: int, thread: int) -> None:  # noqa: ARG001
    """Items begin..end: merge what separate items found in the splits of a tile; args: `CombineArgs`."""
    num_heads, head_dim, row = args[1], args[2], args[3]
    state = row + 4 * head_dim
    for item in range(begin, end):
        tile, head = args[0] + 8 * COMBINE_WORDS * (item // num_heads), item % num_heads
        first_row, tokens, partial, splits = load_i64(tile), load_i64(tile + 8), load_i64(tile + 16), load_i64(tile + 24)
        for token in range(tokens):
            _clear(row, state, 1, head_dim)
            for split in range(splits):
                part = args[4] + 4 * ((partial + split * tokens + token) * num_heads + head) * (head_dim + 2)
                _merge(row, state, part, part + 4 * head_dim, head_dim)
            _finish(row, state, first_row + token, head, num_heads, head_dim, args[5], args[6], args[7], args[8])
