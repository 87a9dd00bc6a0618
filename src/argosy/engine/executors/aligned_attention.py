"""Attention whose result for a token depends, to the last bit, on its own sequence up to that token only.

A sum of floats depends on how it is cut, and matrix kernels choose the cut by the shape. So every query is computed within
the tile of 16 positions that it falls in, over keys that end where its tile ends, in calls whose shapes are functions of
the tile's index: whether the tile's other rows are computed in this step, by an earlier one or never, whether keys came
from a prefix hit, and what else is in the batch, changes no shape and so no bit.

        tile 0           tile 1           tile 2
        [0 … 15]         [16 … 31]        [32 … 47]
        keys 0 … 15      keys 0 … 31      keys 0 … 47     rows not in this step are zero and discarded
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from argosy.engine.executors.dot_product import CausalBias, attend, by_kv_head, from_kv_head
from argosy.engine.executors.kv_pool import KVPool
from argosy.engine.executors.step_layout import StepLayout, to_device
from argosy.models.architectures.attention import AttentionSpec

TILE = 16


@dataclass(frozen=True, slots=True)
class _Tile:
    """Queries at `index * TILE …`; `first_key` and `stop_key` bound its keys within what its sequence gathered."""

    first_key: int
    stop_key: int


@dataclass(frozen=True, slots=True)
class _SequenceTiles:
    """One sequence's keys, from its first tile's first to its last tile's last, and its tiles in order."""

    key_slots: Tensor
    tiles: tuple[_Tile, ...]


class AlignedAttention:
    """Implements `Attention` for one step. Writes each layer's K and V to the pool at the step's slots, then attends.

    `causal_bias` must have been made with a tile of `TILE`.
    """

    def __init__(self, layout: StepLayout, pool: KVPool, causal_bias: CausalBias) -> None:
        assert causal_bias.tile == TILE
        self._layout = layout
        self._pool = pool
        self._causal_bias = causal_bias
        self._slots = to_device(layout.slots, pool.data.device)
        self._by_window: dict[int | None, list[_SequenceTiles]] = {}
        first_tiles, last_tiles = layout.starts // TILE, (layout.ends - 1) // TILE
        tile_counts = last_tiles - first_tiles + 1
        first_padded_rows = (np.cumsum(tile_counts) - tile_counts) * TILE + layout.starts % TILE
        padded_rows = np.arange(layout.first_rows[-1]) + np.repeat(first_padded_rows - layout.first_rows[:-1], layout.counts)
        self._num_padded_rows = int(tile_counts.sum()) * TILE
        self._padded_rows = to_device(padded_rows, pool.data.device)

    def __call__(self, spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """As `Attention`; the tokens are those of the layout, in its order."""
        self._pool.write(spec.layer, self._slots, k, v)
        if spec.window not in self._by_window:
            self._by_window[spec.window] = [self._prepare(i, spec.window) for i in range(len(self._layout.starts))]
        queries = q.new_zeros(self._num_padded_rows, *q.shape[1:]).index_copy_(0, self._padded_rows, q)
        out = torch.empty_like(queries)
        row = 0
        for sequence in self._by_window[spec.window]:
            keys, values = self._gather(spec.layer, sequence.key_slots, q.dtype)
            for tile in sequence.tiles:
                span = slice(tile.first_key, tile.stop_key)
                bias = self._causal_bias.corner(TILE, tile.stop_key - tile.first_key, spec.window)
                grouped = by_kv_head(queries[row : row + TILE], keys[span], values[span])
                out[row : row + TILE] = from_kv_head(attend(*grouped, spec, bias))
                row += TILE
        return out.index_select(0, self._padded_rows)

    def _gather(self, layer: int, slots: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Into fresh tensors: kernels may also choose by alignment, and the allocator's is always the same."""
        k, v = (self._pool.data[layer, side].index_select(0, slots).to(dtype) for side in (0, 1))
        return k, v

    def _prepare(self, sequence: int, window: int | None) -> _SequenceTiles:
        start, end = int(self._layout.starts[sequence]), int(self._layout.ends[sequence])
        first, last = start // TILE, (end - 1) // TILE
        base = _first_key(first, window)
        tiles = tuple(_Tile(_first_key(tile, window) - base, (tile + 1) * TILE - base) for tile in range(first, last + 1))
        # Positions after the sequence's end are hidden from all its queries; they read a slot that is its own and finite.
        positions = np.minimum(np.arange(base, (last + 1) * TILE), end - 1)
        slots = self._layout.slots_of(np.full_like(positions, sequence), positions)
        return _SequenceTiles(to_device(slots, self._pool.data.device), tiles)


def _first_key(tile: int, window: int | None) -> int:
    """The first key that any query of the tile may see, rounded down to a tile."""
    if window is None:
        return 0
    return max(0, tile * TILE - window + 1) // TILE * TILE
