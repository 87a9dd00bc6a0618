"""llama.cpp as a peer, through the C API that `llama_cpp` exposes: one batch a step, one row of logits a sequence."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import llama_cpp
import numpy as np

from worker_loop import serve


class LlamaCppPeer:
    """Greedy: the largest logit, found by numpy, which is faster than its own sampler chain."""

    def load(self, model: str, threads: int, sequences: int, context_tokens: int, options: dict[str, Any]) -> dict[str, Any]:
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(model.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise OSError(f"cannot load {model}")
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        params = llama_cpp.llama_context_default_params()
        # A context is shared out among its sequences: enough for one prompt of full length, and for a full batch.
        self.slot_tokens = options.get("slot_tokens", 160)
        params.n_ctx = max(context_tokens, sequences * self.slot_tokens)
        params.n_batch = params.n_ubatch = options.get("batch_tokens", 512)
        params.n_seq_max = sequences
        params.kv_unified = True
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise MemoryError("no context")
        self.batch = llama_cpp.llama_batch_init(params.n_batch, 0, 1)
        self.num_batch = params.n_batch
        self.decode([[5] * 8] * 2, 3)
        return {
            "version": llama_cpp.__version__,
            "system": llama_cpp.llama_print_system_info().decode(),
            "file": _description(self.model),
        }

    def prefill(self, tokens: list[int]) -> float:
        self._forget()
        begin = time.perf_counter()
        for first in range(0, len(tokens), self.num_batch):
            part = tokens[first : first + self.num_batch]
            self._run([(token, first + i, 0, first + i == len(tokens) - 1) for i, token in enumerate(part)])
        self._largest(1)
        return time.perf_counter() - begin

    def decode(self, prompts: list[list[int]], steps: int) -> list[float]:
        self._forget()
        last = []
        for sequence, prompt in enumerate(prompts):
            self._run([(token, i, sequence, i == len(prompt) - 1) for i, token in enumerate(prompt)])
            last += self._largest(1)
        taken = []
        for step in range(steps):
            begin = time.perf_counter()
            self._run([(token, len(prompts[s]) + step, s, True) for s, token in enumerate(last)])
            last = self._largest(len(prompts))
            taken.append(time.perf_counter() - begin)
        return taken

    def _forget(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def _run(self, rows: list[tuple[int, int, int, bool]]) -> None:
        """Compute (token, position, sequence, wants logits) rows."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wants_logits) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wants_logits
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        status = llama_cpp.llama_decode(self.context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode failed with {status}")

    def _largest(self, rows: int) -> list[int]:
        logits = llama_cpp.llama_get_logits(self.context)
        table = np.ctypeslib.as_array(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), (rows, self.vocab_size))
        return [int(token) for token in table.argmax(axis=1)]


def _description(model: Any) -> str:
    text = ctypes.create_string_buffer(256)
    llama_cpp.llama_model_desc(model, text, len(text))
    return text.value.decode()


if __name__ == "__main__":
    serve(LlamaCppPeer())
