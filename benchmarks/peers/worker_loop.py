"""The other end of a peer's process: commands as JSON lines on stdin, answers as JSON lines on what was stdout.

Standard library only, since it runs inside each peer's own environment. Whatever else a peer prints goes to stderr.

    {"op": "load", "model": PATH, "threads": 2, "sequences": 32, "context_tokens": 1024, "options": {…}}  -> {"facts": {…}}
    {"op": "prefill", "tokens": 512}                                                     -> {"seconds": 0.7}
    {"op": "decode", "sequences": 8, "prompt_tokens": 32, "steps": 64}    -> {"step_seconds": [0.03, …]}
    {"op": "generate", "requests": 64, "prompt_tokens": 32, "output_tokens": 64}         -> {"seconds": 9.1}

A failure answers {"error": "one line"}; the process then goes on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from random import Random
from typing import Any, Protocol


class Peer(Protocol):
    """One engine. Every decode step makes one token for each sequence; times are of a quiet, warmed-up pass."""

    def load(self, model: str, threads: int, sequences: int, context_tokens: int, options: dict[str, Any]) -> dict[str, Any]:
        """Load, and tell versions and settings."""
        ...

    def prefill(self, tokens: list[int]) -> float:
        """Seconds from the tokens of one prompt to the first token of its answer."""
        ...

    def decode(self, prompts: list[list[int]], steps: int) -> list[float]:
        """Prefill all prompts, then decode them together; seconds of each step."""
        ...


def serve(peer: Any, vocab_size: int = 30_000) -> None:
    """Answer commands until stdin ends. Prompts are random ids from 100 on and below `vocab_size`, never twice the same."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    rng = Random(os.getpid())
    for line in sys.stdin:
        try:
            answer = _answer(peer, json.loads(line), rng, vocab_size)
        except Exception as error:  # the coordinator drops this peer and goes on with the others
            answer = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:400]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _answer(peer: Any, command: dict[str, Any], rng: Random, vocab_size: int) -> dict[str, Any]:
    def prompt(tokens: int) -> list[int]:
        return [rng.randrange(100, vocab_size) for _ in range(tokens)]

    op = command.pop("op")
    if op == "load":
        begin = time.perf_counter()
        facts = peer.load(**command)
        return {"facts": facts, "load_s": time.perf_counter() - begin}
    if op == "prefill":
        return {"seconds": peer.prefill(prompt(command["tokens"]))}
    if op == "decode":
        prompts = [prompt(command["prompt_tokens"]) for _ in range(command["sequences"])]
        return {"step_seconds": peer.decode(prompts, command["steps"])}
    if op == "generate":
        prompts = [prompt(command["prompt_tokens"]) for _ in range(command["requests"])]
        return {"seconds": peer.generate(prompts, command["output_tokens"])}
    raise ValueError(f"unknown command {op!r}")
