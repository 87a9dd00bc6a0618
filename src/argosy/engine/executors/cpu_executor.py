"""Runs steps with the CPU kernels: a team of threads, one tape per model."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from argosy.engine.core.plan import ScheduledSequence, SequenceResult, StepPlan, StepResult
from argosy.engine.executors.cpu_attention import AttentionPlanner, LayerPool
from argosy.engine.executors.cpu_buffers import HeaderField, IntArray, StepBuffers
from argosy.engine.executors.cpu_drawing import Drawing
from argosy.engine.executors.cpu_program import ProgramBuilder
from argosy.engine.executors.cpu_refinement import MAX_REFINED, NUM_TOKENS, ScaleRecorder, sample_tokens, with_refined_inputs
from argosy.engine.executors.cpu_step import StepInputs, StepShape
from argosy.engine.executors.cpu_weights import ModelWeights
from argosy.engine.executors.kv_pool import KVPool
from argosy.engine.executors.sampler import Greatest
from argosy.engine.executors.sequence_state import SequenceState
from argosy.engine.executors.sized_tape import LOGIT_ROWS, TOKENS
from argosy.engine.executors.step_results import SCORED_ROWS_AT_ONCE, ComputedStep, Logits, collect_results, refuse_adapter
from argosy.errors import ConfigError
from argosy.kernels.compile_ahead import compile_products
from argosy.kernels.compiler_memory import drop_compiler_code
from argosy.kernels.features import Isa, choose_isa
from argosy.kernels.jit import JitCompiler
from argosy.kernels.team import Team
from argosy.models.config import ModelConfig

logger = logging.getLogger(__name__)


class CpuExecutor:
    """Implements `Executor` with quantised weights as stored, a paged KV pool and the sampler of this package.

    Activations are quantised to 8 bits in groups of 32 for quantised weights, and stay f32 for others; sums are f32. A
    sequence's results are, to the last bit, those of computing it alone, whatever runs beside it, however its prompt is
    cut, and however many threads there are.

    The thread that calls `execute` computes too, as one of `num_threads`.

    Args:
        max_num_seqs, max_num_batched_tokens: bounds on the sequences and tokens of one plan; buffers are made for them.
        max_positions: positions are below it.
        kv_dtype: "float32", "bfloat16" or "float16".
        refine_outliers: find groups of activations with outliers and quantise them more finely (`cpu_refinement`).
        isa: instruction set; None for the fastest that this processor has.
        jit: where compiled kernels are kept; None for the default cache.

    Raises:
        ConfigError: a setting is out of range, or the KV pool does not fit into memory.
        UnsupportedModel: no kernel multiplies weights of some kind.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        *,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_positions: int,
        num_threads: int,
        kv_dtype: str = "float32",
        refine_outliers: bool = False,
        isa: Isa | None = None,
        jit: JitCompiler | None = None,
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ConfigError(f"num_blocks and block_size must be at least 1, got {num_blocks} and {block_size}")
        self._config = config
        self._kv_dtype = kv_dtype
        self._block_size = block_size
        with torch.inference_mode():
            self._pool = KVPool(config, num_blocks, block_size, kv_dtype, torch.device("cpu"))
        self._buffers = StepBuffers(
            config,
            max_tokens=max_num_batched_tokens,
            max_logit_rows=max(max_num_seqs, SCORED_ROWS_AT_ONCE),
            num_threads=num_threads,
            max_refined=MAX_REFINED if refine_outliers else 0,
        )
        self._attention = AttentionPlanner(
            config,
            kv_dtype=kv_dtype,
            block_size=block_size,
            max_tokens=max_num_batched_tokens,
            max_sequences=max_num_seqs,
            max_positions=max_positions,
            num_threads=num_threads,
        )
        self._jit = JitCompiler() if jit is None else jit
        kinds = {matrix.kind for matrix in weights.matrices()}
        build = partial(
            ProgramBuilder,
            config,
            buffers=self._buffers,
            attention=self._attention,
            pool=self._layer_pool,
            kv_dtype=kv_dtype,
            max_positions=max_positions,
            num_threads=num_threads,
            products=compile_products(kinds, choose_isa(isa), self._jit, logger.warning),
        )
        self._inputs = StepInputs(self._buffers, self._attention.tables, block_size)
        self._logits = torch.from_numpy(self._buffers.logits)
        self._states: dict[int, SequenceState] = {}
        self._team = Team(num_threads)
        self._drawing = Drawing(self._buffers.logits, self._team)
        if refine_outliers:
            recorder = ScaleRecorder()
            self._program = build(weights, recorder=recorder).build()
            weights = with_refined_inputs(weights, self._choose_refined(recorder, max_positions))
        self._program = build(weights).build()
        self._warm_up()
        drop_compiler_code()

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        return self._config.vocab_size

    @property
    def num_blocks(self) -> int:
        """KV blocks in the pool."""
        return self._pool.num_blocks

    @property
    def kv_dtype(self) -> str:
        """Element type of the KV pool."""
        return self._kv_dtype

    @property
    def num_threads(self) -> int:
        """Threads that compute, the caller's included."""
        return self._team.num_threads

    @property
    def num_live_sequences(self) -> int:
        """Sequences whose sampling state is held: introduced by a plan and not yet named finished."""
        return len(self._states)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step; see `Executor.execute`."""
        started_s = time.perf_counter()
        for sequence_id in plan.finished:
            self._states.pop(sequence_id, None)
        for new in plan.new:
            self._states[new.sequence_id] = SequenceState(new)
        self._pool.copy_blocks(plan.copies)
        if any(s.adapter_id for s in plan.sequences):
            entries = [s for s in plan.sequences if not s.adapter_id]
            computed = dict(zip((s.sequence_id for s in entries), self._run(entries), strict=True)) if entries else {}
            results = tuple(computed.get(s.sequence_id) or refuse_adapter(s) for s in plan.sequences)
        else:
            results = tuple(self._run(plan.sequences)) if plan.sequences else ()
        return StepResult(plan.step, results, time.perf_counter() - started_s)

    def score(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Logits after each token of a whole sequence, f32[tokens, vocab], for measurements on an idle executor.

        Overwrites the first blocks of the pool.

        Raises:
            ConfigError: sequences are live, or the pool has too few blocks for this one.
        """
        if self._states:
            raise ConfigError(f"a sequence can be scored by an idle executor only, and {len(self._states)} are live")
        num_blocks = -(-len(token_ids) // self._block_size)
        if num_blocks > self.num_blocks:
            raise ConfigError(f"{len(token_ids)} tokens take {num_blocks} KV blocks, and the pool has {self.num_blocks}")
        table = tuple(range(num_blocks))
        logits = torch.empty(len(token_ids), self.vocab_size)
        for first in range(0, len(token_ids), self._buffers.max_tokens):
            part = tuple(token_ids[first : first + self._buffers.max_tokens])
            self._forward([ScheduledSequence(-1, part, first, table, False, 0, "", -1)])
            for row in range(0, len(part), SCORED_ROWS_AT_ONCE):
                rows = np.arange(row, min(row + SCORED_ROWS_AT_ONCE, len(part)))
                logits[first + row : first + row + len(rows)] = self._logits_of(rows).values
        return logits

    def close(self) -> None:
        """End the threads and free the pool, the buffers, the weights' reference and all sampling state."""
        self._team.close()
        self._states.clear()
        del self._program, self._drawing, self._inputs, self._attention, self._logits, self._buffers, self._pool, self._jit

    def _run(self, entries: Sequence[ScheduledSequence]) -> list[SequenceResult]:
        states = [self._states[s.sequence_id] for s in entries]
        for state, entry in zip(states, entries, strict=True):
            state.learn(entry)
        shape = self._forward(entries)
        return collect_results(ComputedStep(entries, states, shape.first_rows, shape.ends, self._logits_of))

    def _forward(self, entries: Sequence[ScheduledSequence]) -> StepShape:
        shape = self._inputs.fill(entries)
        sizes = self._attention.plan(shape.starts, shape.counts, shape.first_rows)
        sizes[TOKENS] = shape.num_tokens
        self._program.forward.resize(sizes)
        self._team.run(self._program.forward.tape)
        return shape

    def _logits_of(self, rows: IntArray) -> Logits:
        b, count = self._buffers, len(rows)
        b.logit_rows[:count] = rows
        b.header[HeaderField.NUM_LOGIT_ROWS] = count
        self._program.logits.resize({LOGIT_ROWS: count})
        self._team.run(self._program.logits.tape)
        greatest = Greatest(b.greatest_ids[:count].tolist(), b.greatest[:count].tolist())
        return Logits(self._logits[:count], greatest, self._drawing.draw)

    def _layer_pool(self, layer: int) -> LayerPool:
        return LayerPool(*(self._pool.data[layer, side].data_ptr() for side in (0, 1)))

    def _choose_refined(self, recorder: ScaleRecorder, max_positions: int) -> list[tuple[int, ...]]:
        """Compute a few tokens with the program that records; writes only to slots that no sequence has yet."""
        count = min(NUM_TOKENS, self._buffers.max_tokens, self.num_blocks * self._block_size, max_positions)
        table = tuple(range(-(-count // self._block_size)))
        tokens = sample_tokens(self.vocab_size, count)
        self._forward([ScheduledSequence(-1, tokens, 0, table, False, 0, "", -1)])
        rows = np.arange(min(count, self._buffers.max_logit_rows))
        self._logits_of(rows)
        return recorder.choose(count, len(rows))

    def _warm_up(self) -> None:
        """One step of one token, so that nothing is left to compile; writes only to slots that no sequence has yet."""
        self._forward([ScheduledSequence(-1, (0,), 0, (0,), True, 0, "", -1)])
        self._logits_of(np.zeros(1, dtype=np.int64))
