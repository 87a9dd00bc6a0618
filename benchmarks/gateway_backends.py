"""Real engines behind the gateway: what comes through is what the engine sent, and how much later.

    python benchmarks/gateway_backends.py [--peers DIR] [--requests 10]

Every engine that is installed below DIR (ours always; llama.cpp's server; vLLM's CPU build) answers the same prompts in
turn directly and through a gateway in front of it, with the `openai` client: texts must be equal, missing usage is counted,
and the times to the first token and to the last are compared pair by pair.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

from argosy.models.resolve import resolve
from gateway_targets import KEY, Gateway
from peer_catalogue import Contestant, find_contestants
from peer_process import PeerFailed, PeerServer, free_port
from report import machine, write_result

KINDS = {"argosy": "argosy", "vllm": "vllm", "llamacpp": "openai"}  # llama.cpp's Python server has no health endpoint
QUESTIONS = ("Name the capital of France.", "Count from one to ten.", "What is the sea?", "Why does ice float?")
NUM_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Answer:
    """One stream, as a client saw it."""

    text: str
    first_s: float
    total_s: float
    usage_tokens: int


def main() -> int:
    """Measure, print, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="folder with the environments llamacpp and vllm")
    parser.add_argument("--requests", type=int, default=10, help="pairs of each engine")
    flags = parser.parse_args()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="gateway-backends-") as name:
        folder = Path(name)
        weights = None if flags.peers is None else flags.peers / "model" / "smollm2-hf"
        gguf = resolve("smollm2-135m").path
        contestants, skipped = find_contestants(flags.peers, gguf, weights, (), folder, {"kv_cache_memory": "256MiB"})
        for contestant in contestants:
            if contestant.engine in KINDS:
                try:
                    figures[contestant.name] = _compare(contestant, folder, flags.requests)
                except PeerFailed as error:
                    skipped[contestant.name] = str(error)
    show(figures, skipped)
    path = write_result("gateway_backends", {"requests": flags.requests, "figures": figures, "skipped": skipped})
    print(f"\nwritten to {path}")
    return 1 if any(found["different"] for found in figures.values()) else 0


def _compare(contestant: Contestant, folder: Path, num_requests: int) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        server = contestant.start_server(threads=max(1, len(os.sched_getaffinity(0)) - 1), sequences=4, context_tokens=1024)
        stack.callback(server.close)
        direct = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        model = direct.models.list().data[0].id
        gateway = _start_gateway(server, KINDS[contestant.engine], model, folder)
        stack.callback(gateway.close)
        through = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0)
        assert [each.id for each in through.models.list().data] == ["m"]
        _ask(direct, model, QUESTIONS[0])
        _ask(through, "m", QUESTIONS[0])
        pairs = []
        for number in range(num_requests):
            question = f"{QUESTIONS[number % len(QUESTIONS)]} ({number})"
            # Who comes second finds the prompt in the engine's prefix cache, so the order alternates.
            order = ((direct, model), (through, "m")) if number % 2 == 0 else ((through, "m"), (direct, model))
            answers = {client is through: _ask(client, name, question) for client, name in order}
            pairs.append((answers[False], answers[True]))
    return {
        "different": sum(one.text != other.text for one, other in pairs),
        "without_usage": sum(other.usage_tokens == 0 for _, other in pairs),
        "first_token_ms": statistics.median(one.first_s for one, _ in pairs) * 1e3,
        "added_first_token_ms": statistics.median(other.first_s - one.first_s for one, other in pairs) * 1e3,
        "total_ms": statistics.median(one.total_s for one, _ in pairs) * 1e3,
        "added_total_ms": statistics.median(other.total_s - one.total_s for one, other in pairs) * 1e3,
    }


def _start_gateway(server: PeerServer, kind: str, model: str, folder: Path) -> Gateway:
    port = free_port()
    config = {
        "listen": {"port": port},
        "models": [{"name": "m", "backends": [{"url": server.url, "kind": kind, "model": model}]}],
        "tenants": [{"id": "org", "teams": [{"id": "team", "keys": [{"id": "bench", "key_env": "BENCHMARK_KEY"}]}]}],
        "auth": {"secret_file": str(folder / "secret")},
        "store": None,
        "observability": {"access_log": str(folder / "access.ndjson")},
        "resilience": {"drain": {"propagation_s": 0}},
    }
    path = folder / f"gateway-{port}.yaml"
    path.write_text(json.dumps(config))
    command = [sys.executable, "-m", "argosy", "gateway", str(path)]
    return Gateway("gateway", command, {**os.environ, "BENCHMARK_KEY": KEY}, port, timeout_s=60)


def _ask(client: openai.OpenAI, model: str, question: str) -> Answer:
    began_s = time.perf_counter()
    first_s, parts, usage_tokens = 0.0, [], 0
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        max_tokens=NUM_TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        if chunk.usage is not None:
            usage_tokens = chunk.usage.completion_tokens
        if chunk.choices and chunk.choices[0].delta.content:
            first_s = first_s or time.perf_counter() - began_s
            parts.append(chunk.choices[0].delta.content)
    return Answer("".join(parts), first_s, time.perf_counter() - began_s, usage_tokens)


def show(figures: dict[str, Any], skipped: dict[str, str]) -> None:
    """Print the machine, a line for each engine, and who did not take part."""
    here = machine()
    print(f"{here['cpu']}, {here['cores']} cores; {NUM_TOKENS} tokens a stream; medians")
    columns = ("different", "without_usage", "first_token_ms", "added_first_token_ms", "total_ms", "added_total_ms")
    print(f"{'engine':<22}" + "".join(f"{column:>22}" for column in columns))
    for name, found in figures.items():
        print(f"{name:<22}" + "".join(f"{found[column]:>22.4g}" for column in columns))
    for name, reason in skipped.items():
        print(f"left out: {name}: {reason}")


if __name__ == "__main__":
    sys.exit(main())
