"""Which pieces a step's attention is cut into.

A sequence's tokens of this step are cut into tiles of adjacent ones; a tile reads, per KV head, all keys that any of its
tokens may see. Keys are cut into splits of `SPLIT_KEYS`, at multiples of it: each split has a softmax of its own, and
splits are merged in ascending order. So it makes no difference to the result, to the last bit, whether one work item walks
all splits of a tile or each gets an item of its own. The latter feeds more threads, while a few sequences decode.
"""

from __future__ import annotations

from typing import Any

from numba import njit

SPLIT_KEYS = 256
"""Keys of a split; a multiple of the block of keys."""

WORK_WORDS = 7
"""Words of a row of work: first row of the step, number of tokens, position of the first one, index of the sequence's first
block table entry, first split, one past the last, and the first partial result to write (-1: the row's own output)."""

COMBINE_WORDS = 4
"""Words of a row to combine: first row of the step, number of tokens, first partial result, number of splits."""

_TILE_ROWS = 64


def tile_tokens(num_heads: int, num_kv_heads: int) -> int:
    """Tokens of a tile: enough rows for K and V to be gathered once for many, few enough to stay in the second cache."""
    return max(1, _TILE_ROWS // (num_heads // num_kv_heads))


def max_work_rows(max_tokens: int, max_sequences: int, max_partials: int) -> int:
    """Rows of work that `plan_attention` can need; rows to combine are fewer."""
    return max_tokens + max_sequences + max_partials


@njit(nogil=True, cache=True)
def plan_attention(
    starts: Any,
    counts: Any,
    first_rows: Any,
    table_offsets: Any,
    window: int,
    tokens_per_tile: int,
    max_work_to_split: int,
    max_partials: int,
    work: Any,
    combine: Any,
) -> Any:
    """Fill `work` and `combine`; returns their numbers of rows.

    Args:
        starts, counts, first_rows, table_offsets: i64[sequences], as of `StepLayout`.
        window: tokens seen, or 0 for all.
        tokens_per_tile: `tile_tokens`.
        max_work_to_split: with more tiles than this, none is split.
        max_partials: room for partial results, of one token and one split each.
        work: i64[`max_work_rows`, WORK_WORDS], overwritten.
        combine: i64[…, COMBINE_WORDS], overwritten.
    """
    tiles = 0
    for s in range(len(starts)):
        tiles += (counts[s] + tokens_per_tile - 1) // tokens_per_tile
    splitting = tiles <= max_work_to_split
    num_work, num_combine, partials = 0, 0, 0
    for s in range(len(starts)):
        # The last tile of a sequence has the most keys: what takes longest is begun first.
        for tile in range((counts[s] + tokens_per_tile - 1) // tokens_per_tile - 1, -1, -1):
            first = tile * tokens_per_tile
            tokens = min(tokens_per_tile, counts[s] - first)
            position = starts[s] + first
            low = max(0, position - window + 1) if window > 0 else 0
            first_split, stop_split = low // SPLIT_KEYS, (position + tokens - 1) // SPLIT_KEYS + 1
            needed = (stop_split - first_split) * tokens
            apart = splitting and stop_split - first_split > 1 and partials + needed <= max_partials
            step = 1 if apart else stop_split - first_split
            for split in range(first_split, stop_split, step):
                work[num_work, 0], work[num_work, 1], work[num_work, 2] = first_rows[s] + first, tokens, position
                work[num_work, 3], work[num_work, 4], work[num_work, 5] = table_offsets[s], split, split + step
                work[num_work, 6] = partials + (split - first_split) * tokens if apart else -1
                num_work += 1
            if apart:
                combine[num_combine, 0], combine[num_combine, 1] = first_rows[s] + first, tokens
                combine[num_combine, 2], combine[num_combine, 3] = partials, stop_split - first_split
                num_combine += 1
                partials += needed
    return num_work, num_combine
