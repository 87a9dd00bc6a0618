"""transformers as a peer: the model called directly, which is faster than its `generate`."""

from __future__ import annotations

import time
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache

from worker_loop import serve


class TransformersPeer:
    """One forward pass a step over a batch of prompts of equal length, default attention, cache kept by transformers."""

    def load(
        self,
        model: str,
        threads: int,
        sequences: int,  # noqa: ARG002, its cache grows as needed
        context_tokens: int,  # noqa: ARG002
        options: dict[str, Any],
    ) -> dict[str, Any]:
        torch.set_num_threads(threads)
        dtype = options["dtype"]
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
        self.decode([[5] * 8] * 2, 3)
        attention = self.model.config._attn_implementation
        return {"version": transformers.__version__, "torch": torch.__version__, "dtype": dtype, "attention": attention}

    @torch.inference_mode()
    def prefill(self, tokens: list[int]) -> float:
        begin = time.perf_counter()
        self._step(torch.tensor([tokens]), DynamicCache(config=self.model.config))
        return time.perf_counter() - begin

    @torch.inference_mode()
    def decode(self, prompts: list[list[int]], steps: int) -> list[float]:
        cache = DynamicCache(config=self.model.config)
        last, taken = self._step(torch.tensor(prompts), cache), []
        for _ in range(steps):
            begin = time.perf_counter()
            last = self._step(last[:, None], cache)
            taken.append(time.perf_counter() - begin)
        return taken

    def _step(self, ids: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        """i64[batch, tokens] -> the likeliest next token, i64[batch]."""
        out = self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return out.logits[:, -1].argmax(dim=-1)


if __name__ == "__main__":
    serve(TransformersPeer())
