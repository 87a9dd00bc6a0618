"""Attention's part of a step: which pieces it is cut into, under each sliding window, and its ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from argosy.engine.executors.cpu_buffers import FloatArray, IntArray, StepBuffers
from argosy.engine.executors.sized_tape import Size, SizedTapeBuilder
from argosy.kernels.attention_plan import COMBINE_WORDS, SPLIT_KEYS, WORK_WORDS, max_work_rows, plan_attention, tile_tokens
from argosy.kernels.kv_elements import KV_ELEMENTS
from argosy.kernels.ops_attention import (
    AttentionArgs,
    CombineArgs,
    attention_op,
    attention_scratch_bytes,
    combine_attention_op,
)
from argosy.kernels.packed import aligned_empty
from argosy.kernels.quantize_vectors import GROUP
from argosy.kernels.tape import PerThread, op_address
from argosy.models.config import ModelConfig

_MAX_SPLITS = 128
"""Of a sequence; those of longer ones are walked by one thread each when memory for partial results runs out."""
_WORK_PER_THREAD = 4
"""With as many pieces for each thread, none needs to be split."""


@dataclass(frozen=True, slots=True)
class LayerPool:
    """Addresses of one layer's K and V in the KV pool, [slots, num_kv_heads, head_dim] each."""

    k_address: int
    v_address: int


class AttentionWork:
    """The pieces of a step's attention under one window: planned once a step, used by every layer with that window.

    `window` is 0 for full attention.
    """

    def __init__(self, window: int, work_rows: int) -> None:
        self.window = window
        self.work: IntArray = np.zeros((work_rows, WORK_WORDS), dtype=np.int64)
        self.combine: IntArray = np.zeros((work_rows, COMBINE_WORDS), dtype=np.int64)

    @property
    def work_size(self) -> Size:
        """How many pieces there are."""
        return Size("attention work", self.window)

    @property
    def combine_size(self) -> Size:
        """How many tiles were split and must be put together."""
        return Size("attention to combine", self.window)


class AttentionPlanner:
    """Plans every step's attention and appends the ops that carry it out.

    Args:
        max_tokens, max_sequences: scheduled in one step.
        max_positions: of one sequence.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        kv_dtype: str,
        block_size: int,
        max_tokens: int,
        max_sequences: int,
        max_positions: int,
        num_threads: int,
    ) -> None:
        self._config = config
        self._element = KV_ELEMENTS[kv_dtype]
        self._block_size = block_size
        self._max_work_to_split = _WORK_PER_THREAD * num_threads
        self._tile_tokens = tile_tokens(config.num_heads, config.num_kv_heads)
        # Enough to split as many whole sequences as there are pieces at most when any is split.
        self._max_partials = self._max_work_to_split * min(-(-max_positions // SPLIT_KEYS), _MAX_SPLITS)
        max_table_blocks = -(-max_positions // block_size)
        self.tables: IntArray = np.zeros((max_sequences, max_table_blocks), dtype=np.int64)
        self._table_offsets: IntArray = np.arange(max_sequences) * max_table_blocks
        work_rows = max_work_rows(max_tokens, max_sequences, self._max_partials)
        windows = sorted({window or 0 for window in config.layer_windows})
        self._by_window = {window: AttentionWork(window, work_rows) for window in windows}
        self._partials = _zeroed((self._max_partials, config.num_heads, config.head_dim + 2))
        group = config.num_heads // config.num_kv_heads
        scratch_bytes = attention_scratch_bytes(self._tile_tokens, group, config.head_dim)
        self._scratch = _zeroed((num_threads, -(-scratch_bytes // 64) * 16))

    def plan(self, starts: IntArray, counts: IntArray, first_rows: IntArray) -> dict[Size, int]:
        """Cut the attention of a step whose block tables are the first rows of `tables`; returns the sizes of the ops.

        Args:
            starts, counts, first_rows: i64[sequences], as of `StepLayout`.
        """
        sizes: dict[Size, int] = {}
        for window, work in self._by_window.items():
            num_work, num_combine = plan_attention(
                starts,
                counts,
                first_rows,
                self._table_offsets,
                window,
                self._tile_tokens,
                self._max_work_to_split,
                self._max_partials,
                work.work,
                work.combine,
            )
            sizes[work.work_size] = num_work
            sizes[work.combine_size] = num_combine
        return sizes

    def append(self, tape: SizedTapeBuilder, buffers: StepBuffers, layer: int, pool: LayerPool, *, quantize: bool) -> bool:
        """Append the ops of `layer`; returns whether they quantise their result, as asked for where head sizes allow."""
        config = self._config
        work = self._by_window[config.layer_windows[layer] or 0]
        group = config.num_heads // config.num_kv_heads
        quantize = quantize and config.head_dim % GROUP == 0
        scratch = PerThread(self._scratch.ctypes.data, self._scratch.strides[0])
        args = AttentionArgs(
            work=work.work.ctypes.data,
            q=buffers.qkv.ctypes.data,
            q_stride=buffers.qkv.shape[1],
            num_kv_heads=config.num_kv_heads,
            group=group,
            head_dim=config.head_dim,
            scale=float(config.attention_scale),
            softcap=float(config.attention_softcap or 0.0),
            window=work.window,
            k_pool=pool.k_address,
            v_pool=pool.v_address,
            element=self._element,
            tables=self.tables.ctypes.data,
            block_size=self._block_size,
            scratch=scratch,
            out=buffers.attended.ctypes.data,
            q8=buffers.quantized.ctypes.data if quantize else 0,
            scales=buffers.scales.ctypes.data if quantize else 0,
            scale_sums=buffers.scale_sums.ctypes.data if quantize else 0,
            partials=self._partials.ctypes.data,
        )
        tape.add_sized(op_address(attention_op), args, size=work.work_size, items_each=config.num_kv_heads)
        combine = CombineArgs(
            combine=work.combine.ctypes.data,
            num_heads=config.num_heads,
            head_dim=config.head_dim,
            scratch=scratch,
            partials=args.partials,
            out=args.out,
            q8=args.q8,
            scales=args.scales,
            scale_sums=args.scale_sums,
        )
        tape.add_sized(op_address(combine_attention_op), combine, size=work.combine_size, items_each=config.num_heads)
        return quantize


def _zeroed(shape: tuple[int, ...]) -> FloatArray:
    array = cast(NDArray[np.float32], aligned_empty(shape, np.float32))
    array[...] = 0
    return array
