"""Runs steps with torch, on CPU or one CUDA device."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from argosy.engine.core.plan import ScheduledSequence, SequenceResult, StepPlan, StepResult
from argosy.engine.executors.aligned_attention import TILE, AlignedAttention
from argosy.engine.executors.dot_product import CausalBias
from argosy.engine.executors.kv_pool import GatherBuffers, KVPool
from argosy.engine.executors.paged_attention import PagedAttention
from argosy.engine.executors.sequence_state import SequenceState
from argosy.engine.executors.step_layout import IntArray, StepLayout, lay_out, to_device
from argosy.engine.executors.step_results import ComputedStep, Logits, collect_results, refuse_adapter
from argosy.errors import ConfigError
from argosy.models.architectures.attention import Attention
from argosy.models.architectures.decoder import Decoder

_QUERY_TILE = 256


class TorchExecutor:
    """Implements `Executor` with a `Decoder`, a paged KV pool and the sampler of this package.

    Results of a sequence are those of computing it alone, up to rounding, in every batch composition. With
    `deterministic`, in fp32 on CPU, they are so to the last bit: each row goes through matrix products and attention of
    fixed shapes. It costs speed, most of all while decoding.

    Args:
        decoder: weights loaded, in eval mode, on `device`; the executor sets its row tile and else leaves it alone.
        kv_dtype: "float32", "bfloat16" or "float16".
        device: "cpu", "cuda" or "cuda:1".
        max_num_batched_tokens: bound on the tokens of one plan, or None.

    Raises:
        ConfigError: a setting is out of range, the device is not there, or the KV pool does not fit on it.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        num_blocks: int,
        block_size: int,
        kv_dtype: str = "float32",
        device: str = "cpu",
        deterministic: bool = False,
        max_num_batched_tokens: int | None = None,
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ConfigError(f"num_blocks and block_size must be at least 1, got {num_blocks} and {block_size}")
        self._device = _checked_device(device)
        self._decoder = decoder
        self._kv_dtype = kv_dtype
        self._max_num_batched_tokens = max_num_batched_tokens
        self._deterministic = deterministic
        decoder.set_row_tile(TILE if deterministic else None)
        with torch.inference_mode():
            self._pool = KVPool(decoder.config, num_blocks, block_size, kv_dtype, self._device)
        self._buffers = GatherBuffers(self._pool.dtype, self._device)
        weights_dtype = next(decoder.parameters()).dtype
        self._causal_bias = CausalBias(TILE if deterministic else _QUERY_TILE, weights_dtype, self._device)
        self._states: dict[int, SequenceState] = {}

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        return self._decoder.config.vocab_size

    @property
    def num_blocks(self) -> int:
        """KV blocks in the pool."""
        return self._pool.num_blocks

    @property
    def kv_dtype(self) -> str:
        """Element type of the KV pool."""
        return self._kv_dtype

    @property
    def num_live_sequences(self) -> int:
        """Sequences whose sampling state is held: introduced by a plan and not yet named finished."""
        return len(self._states)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step; see `Executor.execute`. Everything is on the host when it returns."""
        started_s = time.perf_counter()
        limit = self._max_num_batched_tokens
        assert limit is None or plan.num_tokens <= limit, f"step {plan.step} has {plan.num_tokens} tokens, over {limit}"
        for sequence_id in plan.finished:
            self._states.pop(sequence_id, None)
        for new in plan.new:
            self._states[new.sequence_id] = SequenceState(new)
        self._pool.copy_blocks(plan.copies)
        entries = [s for s in plan.sequences if not s.adapter_id]
        computed = dict(zip((s.sequence_id for s in entries), self._run(entries), strict=True)) if entries else {}
        results = tuple(computed.get(s.sequence_id) or refuse_adapter(s) for s in plan.sequences)
        return StepResult(plan.step, results, time.perf_counter() - started_s)

    def close(self) -> None:
        """Free the pool, the weights' reference and all sampling state."""
        self._states.clear()
        del self._pool, self._buffers, self._causal_bias, self._decoder

    def _run(self, entries: Sequence[ScheduledSequence]) -> list[SequenceResult]:
        states = [self._states[s.sequence_id] for s in entries]
        for state, entry in zip(states, entries, strict=True):
            state.learn(entry)
        layout = lay_out(entries, self._pool.block_size)
        token_ids, positions = (to_device(a, self._device) for a in (layout.token_ids, layout.positions))
        hidden = self._decoder.forward(token_ids, positions, self._attention(layout))

        def logits_of(rows: IntArray) -> Logits:
            return Logits(self._decoder.logits(hidden.index_select(0, to_device(rows, self._device))))

        return collect_results(ComputedStep(entries, states, layout.first_rows, layout.ends, logits_of))

    def _attention(self, layout: StepLayout) -> Attention:
        if self._deterministic:
            return AlignedAttention(layout, self._pool, self._causal_bias)
        return PagedAttention(layout, self._pool, self._buffers, self._causal_bias)


def _checked_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device must be cpu, cuda or cuda:N, got {name!r}") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device must be cpu, cuda or cuda:N, got {name!r}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device {name!r} is not there: this machine has {torch.cuda.device_count()} CUDA devices")
    return device
