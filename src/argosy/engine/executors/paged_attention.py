"""Attention of one step over the paged KV pool: decoding rows in padded batches, prompt chunks one by one.

The block table and gather scheme follow Kwon et al., "Efficient Memory Management for Large Language Model Serving with
PagedAttention" (SOSP 2023). What a step's layers have in common (which rows, which slots, which masks) is worked out once
per distinct window, at the first layer that has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from argosy.engine.executors.dot_product import CausalBias, attend, by_kv_head, from_kv_head
from argosy.engine.executors.kv_pool import GatherBuffers, KVPool
from argosy.engine.executors.step_layout import IntArray, StepLayout, to_device
from argosy.models.architectures.attention import AttentionSpec

_MIN_PADDING = 64
"""Keys of padding that cost less than one more batch."""


@dataclass(frozen=True, slots=True)
class _Keys:
    """Which keys a group of queries reads: adjacent slots from `first_slot`, or those of `slots`; `count` in all."""

    count: int
    first_slot: int
    slots: Tensor | None


@dataclass(frozen=True, slots=True)
class _DecodeBatch:
    """Sequences of one new token each and of similar length. `rows` selects them from the step's tokens; their keys are
    padded to `length` by repeating each one's last slot, so that no slot of another sequence is ever read, and `bias`
    [batch, 1, 1, length] hides the padding (None where there is none)."""

    rows: Tensor | slice
    batch: int
    length: int
    keys: _Keys
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Rows `first_row` to `stop_row` of one sequence, which read `keys` (None: exactly their own K and V)."""

    first_row: int
    stop_row: int
    keys: _Keys | None


class PagedAttention:
    """Implements `Attention` for one step. Writes each layer's K and V to the pool at the step's slots, then attends."""

    def __init__(self, layout: StepLayout, pool: KVPool, buffers: GatherBuffers, causal_bias: CausalBias) -> None:
        self._layout = layout
        self._pool = pool
        self._buffers = buffers
        self._causal_bias = causal_bias
        self._device = pool.data.device
        self._slots = to_device(layout.slots, self._device)
        self._by_window: dict[int | None, tuple[list[_DecodeBatch], list[_Chunk]]] = {}

    def __call__(self, spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """As `Attention`; the tokens are those of the layout, in its order."""
        self._pool.write(spec.layer, self._slots, k, v)
        if spec.window not in self._by_window:
            self._by_window[spec.window] = self._prepare(spec.window, q.dtype)
        batches, chunks = self._by_window[spec.window]
        out = torch.empty_like(q)
        for batch in batches:
            out[batch.rows] = self._attend_batch(spec, batch, q[batch.rows])
        for chunk in chunks:
            rows = slice(chunk.first_row, chunk.stop_row)
            if chunk.keys is None:
                # What later steps read from the pool is rounded to its type; what this one reads must be the same.
                keys, values = (t[rows].to(self._pool.dtype).to(q.dtype) for t in (k, v))
            else:
                keys, values = self._read(spec.layer, chunk.keys, q.dtype)
            self._attend_chunk(spec, q[rows], keys, values, out[rows])
        return out

    def _attend_batch(self, spec: AttentionSpec, batch: _DecodeBatch, q: Tensor) -> Tensor:
        """One query per sequence, [batch, num_heads, d]. The query heads that share a KV head stand as its queries, so
        that K and V are read once for all of them."""
        keys, values = self._read(spec.layer, batch.keys, q.dtype)
        kv_heads, head_dim = keys.shape[1:]
        keys, values = (t.view(batch.batch, batch.length, kv_heads, head_dim).transpose(1, 2) for t in (keys, values))
        grouped = q.view(batch.batch, kv_heads, -1, head_dim)
        return attend(grouped, keys, values, spec, batch.bias).flatten(1, 2)

    def _attend_chunk(self, spec: AttentionSpec, q: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        """The queries of one sequence, whose keys end where they end; writes `out`. Without a past and within the window
        the plain causal form applies; else tiles of queries, each over no more keys than its last query may see."""
        num_queries, num_keys = q.shape[0], keys.shape[0]
        if num_queries == num_keys and (spec.window is None or num_keys <= spec.window):
            out.copy_(from_kv_head(attend(*by_kv_head(q, keys, values), spec, None, causal=True)))
            return
        past = num_keys - num_queries
        for first in range(0, num_queries, self._causal_bias.tile):
            stop = min(first + self._causal_bias.tile, num_queries)
            low = 0 if spec.window is None else max(0, past + first - spec.window + 1)
            span = slice(low, past + stop)
            bias = self._causal_bias.corner(stop - first, past + stop - low, spec.window)
            grouped = by_kv_head(q[first:stop], keys[span], values[span])
            out[first:stop] = from_kv_head(attend(*grouped, spec, bias))

    def _read(self, layer: int, keys: _Keys, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if keys.slots is None:
            k, v = self._pool.view(layer, keys.first_slot, keys.count)
        else:
            row = self._pool.data.shape[3] * self._pool.data.shape[4]
            k, v = self._pool.gather(layer, keys.slots, self._buffers.reserve(keys.count * row))
        return k.to(dtype), v.to(dtype)

    def _prepare(self, window: int | None, dtype: torch.dtype) -> tuple[list[_DecodeBatch], list[_Chunk]]:
        layout = self._layout
        lows = np.zeros_like(layout.starts) if window is None else np.maximum(layout.starts - window + 1, 0)
        decoding = np.flatnonzero(layout.counts == 1)
        lengths = layout.ends[decoding] - lows[decoding]
        batches = [
            self._decode_batch(decoding[members], lows, int(lengths[members].max()), dtype)
            for members in _similar_lengths(lengths)
        ]
        chunks = []
        for i in np.flatnonzero(layout.counts > 1).tolist():
            first_row, stop_row = int(layout.first_rows[i]), int(layout.first_rows[i + 1])
            own_only = layout.starts[i] == 0
            positions = np.arange(lows[i], layout.ends[i])
            keys = None if own_only else self._keys(layout.slots_of(np.full_like(positions, i), positions))
            chunks.append(_Chunk(first_row, stop_row, keys))
        return batches, chunks

    def _decode_batch(self, members: IntArray, lows: IntArray, length: int, dtype: torch.dtype) -> _DecodeBatch:
        layout = self._layout
        low, last = lows[members][:, None], layout.starts[members][:, None]
        positions = low + np.arange(length)
        padding = positions > last
        keys = self._keys(layout.slots_of(members[:, None], np.minimum(positions, last)).reshape(-1))
        bias = None
        if padding.any():
            hidden = to_device(padding, self._device)[:, None, None, :]
            bias = torch.zeros(hidden.shape, dtype=dtype, device=self._device).masked_fill_(hidden, float("-inf"))
        rows = layout.first_rows[members]
        adjacent = bool((np.diff(rows) == 1).all())
        selector = slice(int(rows[0]), int(rows[-1]) + 1) if adjacent else to_device(rows, self._device)
        return _DecodeBatch(selector, len(members), length, keys, bias)

    def _keys(self, slots: IntArray) -> _Keys:
        """Adjacent slots are read in place."""
        if (np.diff(slots) == 1).all():
            return _Keys(len(slots), int(slots[0]), None)
        return _Keys(len(slots), 0, to_device(slots, self._device))


def _similar_lengths(lengths: IntArray) -> Iterator[IntArray]:
    """Split indices into `lengths` so that a row is padded by at most a quarter of its batch's longest, or 64 keys.

    One long sequence then does not pad all others. Indices within a batch keep their order.
    """
    order = np.argsort(-lengths, kind="stable")
    begin = 0
    while begin < len(order):
        longest = lengths[order[begin]]
        floor = longest - max(_MIN_PADDING, longest // 4)
        stop = begin + int((lengths[order[begin:]] >= floor).sum())
        yield np.sort(order[begin:stop])
        begin = stop
