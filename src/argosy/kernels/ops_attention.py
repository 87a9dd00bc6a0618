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

from argosy.kernels.attention_plan import COMBINE_WORDS, SPLIT_KEYS, WORK_WORDS
from argosy.kernels.attention_tiles import BLOCK_KEYS, PANEL_KEYS
from argosy.kernels.attention_walk import Places, Tile, attend_blocks
from argosy.kernels.kv_elements import element_bytes
from argosy.kernels.pointers import OP_SIGNATURE, bits_float, load_f32, load_i64, store_f32
from argosy.kernels.quantize_activations import quantize_group
from argosy.kernels.quantize_vectors import GROUP
from argosy.kernels.simd import LANES, fma, load, max_lanes, splat, store
from argosy.kernels.simd_math import exp2
from argosy.kernels.tape import Arg

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
def _prepare(args: Any, first_row: int, tokens: int, kv_head: int, out: int) -> None:
    """Copy a tile's queries, times the scale, to f32[tokens · group, head_dim] at `out`."""
    floats = args[4] * args[5]
    factor = bits_float(args[6])
    if bits_float(args[7]) == 0:
        factor *= _LOG2_E
    factors = splat(factor)
    for token in range(tokens):
        source, target = args[1] + 4 * ((first_row + token) * args[2] + kv_head * floats), out + 4 * token * floats
        for d in range(0, 4 * floats, 4 * LANES):
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


@njit(nogil=True, cache=True)
def _tile_of(args: Any, work: int, kv_head: int) -> Tile:
    """The tile of a row of work, for one KV head."""
    head_bytes = args[5] * element_bytes(args[11])
    return Tile(
        position=load_i64(work + 16),
        tokens=load_i64(work + 8),
        group=args[4],
        head_dim=args[5],
        window=args[8],
        softcap=bits_float(args[7]),
        k=args[9] + kv_head * head_bytes,
        v=args[10] + kv_head * head_bytes,
        element=args[11],
        table=args[12] + 8 * load_i64(work + 24),
        block_size=args[13],
        slot_bytes=args[3] * head_bytes,
    )


@njit(nogil=True, cache=True)
def _attend(args: Any, work: int, kv_head: int) -> None:
    """One row of work for one KV head."""
    tile = _tile_of(args, work, kv_head)
    head_dim, rows, row_bytes = tile.head_dim, tile.tokens * tile.group, 4 * tile.head_dim
    first_split, stop_split, partial = load_i64(work + 32), load_i64(work + 40), load_i64(work + 48)
    total = args[14] + rows * row_bytes
    part = total + rows * row_bytes
    total_states = part + rows * row_bytes
    scores = total_states + 16 * rows
    kt = scores + 4 * rows * BLOCK_KEYS
    at = Places(args[14], part, total_states + 8 * rows, scores, kt, kt + PANEL_KEYS * row_bytes)
    _prepare(args, load_i64(work), tile.tokens, kv_head, at.q)
    _clear(total, total_states, rows, head_dim)
    low = max(0, tile.position - tile.window + 1) if tile.window > 0 else 0
    for split in range(first_split, stop_split):
        _clear(part, at.states, rows, head_dim)
        first_block = max(split * _BLOCKS_PER_SPLIT, low // BLOCK_KEYS)
        stop_block = min((split + 1) * _BLOCKS_PER_SPLIT, (tile.position + tile.tokens - 1) // BLOCK_KEYS + 1)
        if first_block < stop_block:
            attend_blocks(tile, at, first_block, stop_block)
        if partial < 0:
            for r in range(rows):
                _merge(total + r * row_bytes, total_states + 8 * r, part + r * row_bytes, at.states + 8 * r, head_dim)
    num_heads, first_head = args[3] * tile.group, kv_head * tile.group
    for r in range(rows):
        token, head = r // tile.group, first_head + r % tile.group
        if partial < 0:
            index = load_i64(work) + token
            row, state = total + r * row_bytes, total_states + 8 * r
            _finish(row, state, index, head, num_heads, head_dim, args[15], args[16], args[17], args[18])
        else:
            kept = args[19] + 4 * ((partial + token) * num_heads + head) * (head_dim + 2)
            _keep(part + r * row_bytes, at.states + 8 * r, head_dim, kept)


@njit(nogil=True, cache=True)
def _keep(row: int, state: int, head_dim: int, out: int) -> None:
    """Write a partial result: the row and then its state."""
    for d in range(0, 4 * head_dim, 4 * LANES):
        store(out + d, load(row + d))
    store_f32(out + 4 * head_dim, load_f32(state))
    store_f32(out + 4 * head_dim + 4, load_f32(state + 4))


@cfunc(OP_SIGNATURE, cache=True)
def attention_op(args: Any, begin: int, end: int, thread: int) -> None:  # noqa: ARG001
    """Items begin..end; args: `AttentionArgs`."""
    num_kv_heads = args[3]
    for item in range(begin, end):
        _attend(args, args[0] + 8 * WORK_WORDS * (item // num_kv_heads), item % num_kv_heads)


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
