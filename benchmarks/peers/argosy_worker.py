"""Argosy as a peer: its engine in this process."""

from __future__ import annotations

import time
from typing import Any

import argosy
from argosy.bench.offline import Step, StepSink
from argosy.engine.args import EngineArgs
from argosy.engine.build import EngineParts, build_parts
from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.llm import LLM
from worker_loop import serve


class ArgosyPeer:
    """Drives the step loop itself, so that each step can be timed."""

    def load(self, model: str, threads: int, sequences: int, context_tokens: int, options: dict[str, Any]) -> dict[str, Any]:
        self.sink = StepSink()
        self.parts: EngineParts = build_parts(
            EngineArgs(
                model=model,
                threads=threads,
                max_num_seqs=sequences,
                max_model_len=context_tokens,
                max_num_batched_tokens=2048,
                prefill_share=1.0,
                enable_prefix_caching=False,
                **options,
            ),
            sink=self.sink,
        )
        self.llm = LLM.from_parts(self.parts)
        self.decode([[5] * 8] * 2, 3)
        info = self.parts.info
        pool = {"kv_pool_tokens": info.num_blocks * info.block_size}
        return {"version": argosy.__version__, "dtype": info.dtype, "kv_dtype": info.kv_dtype, **pool}

    def prefill(self, tokens: list[int]) -> float:
        return sum(step.wall_s for step in self._steps([tokens], 1))

    def decode(self, prompts: list[list[int]], steps: int) -> list[float]:
        taken = self._steps(prompts, steps + 1)
        decoding = [s.wall_s for s in taken if s.num_prefill_tokens == 0 and s.num_generated_tokens == len(prompts)]
        assert len(decoding) == steps, f"{len(decoding)} steps of pure decoding instead of {steps}"
        return decoding

    def generate(self, prompts: list[list[int]], output_tokens: int) -> float:
        params = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
        begin = time.perf_counter()
        self.llm.generate(prompts, params)
        return time.perf_counter() - begin

    def _steps(self, prompts: list[list[int]], output_tokens: int) -> list[Step]:
        params = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
        loop, steps = self.parts.step_loop, []
        for index, prompt in enumerate(prompts):
            name = f"{time.monotonic_ns()}-{index}"
            loop.add(self.parts.admission.admit(name, tuple(prompt), params, arrival_s=self.parts.clock.now_s()))
        while loop.has_work:
            begin = time.perf_counter()
            loop.step()
            wall_s = time.perf_counter() - begin
            stats = self.sink.last
            assert loop.is_alive, loop.loss
            assert stats is not None
            steps.append(
                Step(wall_s, stats.duration_s, stats.num_tokens, stats.num_prefill_tokens, stats.num_generated_tokens)
            )
        return steps


if __name__ == "__main__":
    serve(ArgosyPeer())
