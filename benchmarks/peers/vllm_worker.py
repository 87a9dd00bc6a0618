"""vLLM as a peer: its engine in this process, driven step by step."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")

import vllm
from vllm import LLM, SamplingParams

from worker_loop import serve


class VllmPeer:
    """Counts what each step brought: with asynchronous scheduling a step may bring the tokens of the one before."""

    def load(self, model: str, threads: int, sequences: int, context_tokens: int, options: dict[str, Any]) -> dict[str, Any]:
        self.engine = LLM(
            model=model,
            dtype=options["dtype"],
            max_model_len=context_tokens,
            max_num_seqs=sequences,
            max_num_batched_tokens=2048,
            enable_prefix_caching=False,
            disable_log_stats=True,
        ).llm_engine
        self.num_requests = 0
        self.decode([[5] * 8] * 2, 3)
        return {"version": vllm.__version__, "dtype": options["dtype"], "threads": threads}

    def prefill(self, tokens: list[int]) -> float:
        begin = time.perf_counter()
        self._run([tokens], 1)
        return time.perf_counter() - begin

    def decode(self, prompts: list[list[int]], steps: int) -> list[float]:
        moments = self._run(prompts, steps + 2)
        # From the step that completed the first token of all, to the last one in which all were still running.
        whole = [moment for moment, counts in moments if min(counts) >= 1]
        return [later - earlier for earlier, later in itertools.pairwise(whole)][:steps]

    def _run(self, prompts: list[list[int]], output_tokens: int) -> list[tuple[float, list[int]]]:
        """(moment, tokens of each prompt so far) after every step that brought a token."""
        params = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True, detokenize=True)
        names = []
        for prompt in prompts:
            self.num_requests += 1
            names.append(str(self.num_requests))
            self.engine.add_request(names[-1], {"prompt_token_ids": prompt}, params)
        counts, moments = dict.fromkeys(names, 0), []
        while self.engine.has_unfinished_requests():
            outputs = self.engine.step()
            for output in outputs:
                counts[output.request_id] = len(output.outputs[0].token_ids)
            if outputs:
                moments.append((time.perf_counter(), list(counts.values())))
        return moments


if __name__ == "__main__":
    serve(VllmPeer())
