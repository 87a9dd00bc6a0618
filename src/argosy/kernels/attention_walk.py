"""Attention of a tile over one block of keys after another.

A tile is the queries of a few adjacent tokens of one sequence that read one KV head, `group` rows for each token:

    row            0 … group-1 | group … 2·group-1 | …
    position       first       | first + 1         | …

and sees of a block of 64 keys, which begins at a multiple of 64, those that its window and causality leave it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from argosy.kernels.attention_block import ROWS_AT_ONCE, add_values, locate_keys, score_rows, weigh_row
from argosy.kernels.attention_tiles import BLOCK_KEYS, PANEL_KEYS, transpose_keys
from argosy.kernels.kv_elements import element_bytes
from argosy.kernels.simd import LANES


class Tile(NamedTuple):
    """What is the same for all blocks.

    Attributes:
        position, tokens, group: first position, tokens, and rows per token.
        head_dim: elements of a head.
        window: tokens seen, or 0 for all.
        softcap: of scores, f32, or 0.
        k, v: addresses of this KV head in the pool's first slot.
        element: `KVElement` of the pool.
        table, block_size, slot_bytes: address of the sequence's block table, slots of a block, bytes of a slot.
    """

    position: Any
    tokens: Any
    group: Any
    head_dim: Any
    window: Any
    softcap: Any
    k: Any
    v: Any
    element: Any
    table: Any
    block_size: Any
    slot_bytes: Any


class Places(NamedTuple):
    """Addresses of a tile's operands, all f32 but the offsets.

    Attributes:
        q: [rows, head_dim], scaled.
        out: [rows, head_dim], weighted sums of values so far.
        states: [rows, 2], greatest score and sum of weights so far.
        scores: [rows, BLOCK_KEYS].
        kt: [PANEL_KEYS / 8, head_dim, 8].
        offsets: i64[2, BLOCK_KEYS], of the keys of this block and of the next.
    """

    q: Any
    out: Any
    states: Any
    scores: Any
    kt: Any
    offsets: Any


@njit(nogil=True, cache=True, forceinline=True)
def _first_key(position: int, window: int, base: int) -> int:
    """The first key that the query at `position` sees, counted from position `base` and not below 0."""
    return max(0, position - window + 1 - base) if window > 0 else 0


@njit(nogil=True, cache=True)
def attend_blocks(tile: Tile, at: Places, first: int, stop: int) -> None:
    """Blocks first..stop of keys, at least one; updates `out` and `states`."""
    end = tile.position + tile.tokens
    offsets, ahead = at.offsets, at.offsets + 8 * BLOCK_KEYS
    locate_keys(first, end, tile.table, tile.block_size, tile.slot_bytes, offsets)
    for block in range(first, stop):
        # Behind the last block there is nothing to ask for: the kernels ask for what they have.
        locate_keys(min(block + 1, stop - 1), end, tile.table, tile.block_size, tile.slot_bytes, ahead)
        _score(tile, at, block * BLOCK_KEYS, offsets, ahead)
        _weigh(tile, at, block * BLOCK_KEYS, offsets, ahead)
        offsets, ahead = ahead, offsets


@njit(nogil=True, cache=True)
def _score(tile: Tile, at: Places, base: int, offsets: int, ahead: int) -> None:
    """Scores for the block of keys that begins at position `base`, panel by panel."""
    rows, step_bytes = tile.tokens * tile.group, 16 * element_bytes(tile.element)
    for panel in range(0, BLOCK_KEYS, PANEL_KEYS):
        start = base + panel
        lowest = _first_key(tile.position, tile.window, start)
        highest = min(PANEL_KEYS, tile.position + tile.tokens - start)
        if lowest >= highest:
            continue
        for i in range(lowest // LANES * LANES, highest, LANES):
            kt = at.kt + 4 * i * tile.head_dim
            transpose_keys(offsets + 8 * (panel + i), tile.k, tile.head_dim, kt, tile.element)
        for row in range(0, rows, ROWS_AT_ONCE):
            count = min(ROWS_AT_ONCE, rows - row)
            first = _first_key(tile.position + row // tile.group, tile.window, start)
            stop = min(PANEL_KEYS, tile.position + (row + count - 1) // tile.group + 1 - start)
            if first < stop:
                q, scores = at.q + 4 * row * tile.head_dim, at.scores + 4 * (row * BLOCK_KEYS + panel)
                following = ahead + 8 * panel
                score_rows(q, rows - row, at.kt, tile.head_dim, first, stop, scores, tile.k, following, step_bytes)


@njit(nogil=True, cache=True)
def _weigh(tile: Tile, at: Places, base: int, offsets: int, ahead: int) -> None:
    """From the scores of a block to the outputs; updates `out` and `states`."""
    rows, head_dim = tile.tokens * tile.group, tile.head_dim
    for row in range(0, rows, ROWS_AT_ONCE):
        count = min(ROWS_AT_ONCE, rows - row)
        first = _first_key(tile.position + row // tile.group, tile.window, base)
        stop = min(BLOCK_KEYS, tile.position + (row + count - 1) // tile.group + 1 - base)
        if first >= stop:
            continue
        for r in range(row, row + count):
            own = tile.position + r // tile.group
            low, high = _first_key(own, tile.window, base), min(BLOCK_KEYS, own + 1 - base)
            out, state = at.out + 4 * r * head_dim, at.states + 8 * r
            weigh_row(at.scores + 4 * r * BLOCK_KEYS, low, high, first, stop, tile.softcap, state, out, head_dim)
        weights, out = at.scores + 4 * row * BLOCK_KEYS, at.out + 4 * row * head_dim
        add_values(weights, rows - row, offsets, tile.v, head_dim, tile.element, first, stop, out, ahead)
