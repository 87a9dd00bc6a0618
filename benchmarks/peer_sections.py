"""The measurements of `vs_peers.py`. Each takes turns among contestants, round by round, and keeps every round's value."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from argosy.bench.load import Cut, PlannedRequest, fixed_lengths, trace_lengths, warmup_load
from argosy.bench.serve_run import Client, ServeSettings
from argosy.errors import ArgosyError
from argosy.sim.workload.trace_files import read_trace
from peer_catalogue import Contestant
from peer_process import PeerFailed, PeerServer, Worker

OP_TIMEOUT_S = 900.0
PROMPT_TOKENS = 32
STREAMS = 32
NEIGHBOUR = "while True: pass"


@dataclass(slots=True)
class Field:
    """Loaded workers by name, and why those that dropped out did. Mutated as peers fail; closed by its owner."""

    workers: dict[str, Worker]
    failures: dict[str, str] = field(default_factory=dict)
    say: Callable[[str], None] = print

    def ask(self, name: str, **command: Any) -> dict[str, Any] | None:
        """One command to one worker in its turn; None if it fails, which drops it."""
        worker = self.workers.get(name)
        if worker is None:
            return None
        try:
            return worker.ask(OP_TIMEOUT_S, **command)
        except PeerFailed as failure:
            self.drop(name, str(failure))
            return None

    def drop(self, name: str, reason: str) -> None:
        """Take a contestant out for the rest."""
        self.failures[name] = reason
        self.say(f"  {name} drops out: {reason}")
        self.workers.pop(name).close()

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers.values():
            worker.close()
        self.workers.clear()


def rates(values: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """Median and all rounds, for contestants that finished one."""
    return {name: {"tokens_per_s": statistics.median(v), "rounds": v} for name, v in values.items() if v}


def prefill(peers: Field, tokens: int, rounds: int) -> dict[str, Any]:
    """Prompt tokens per second up to the first token of the answer, one prompt at a time."""
    values: dict[str, list[float]] = {name: [] for name in peers.workers}
    for number in range(rounds):
        for name in list(peers.workers):
            # Waking up, a peer's caches are cold: a short pass first.
            if peers.ask(name, op="prefill", tokens=min(tokens, 64)) is None:
                continue
            answer = peers.ask(name, op="prefill", tokens=tokens)
            if answer is not None:
                values[name].append(tokens / answer["seconds"])
                peers.say(f"  prefill {tokens}, round {number + 1}: {name} {values[name][-1]:.0f} tokens/s")
    return {"prompt_tokens": tokens, "contestants": rates(values)}


def decode(peers: Field, sequences: int, steps: int, rounds: int) -> dict[str, Any]:
    """Tokens per second of steps in which `sequences` decode together."""
    values: dict[str, list[float]] = {name: [] for name in peers.workers}
    slowest: dict[str, float] = {}
    for number in range(rounds):
        for name in list(peers.workers):
            taken = _decode_steps(peers, name, sequences, steps)
            if taken:
                values[name].append(sequences * len(taken) / sum(taken))
                slowest[name] = max(slowest.get(name, 0.0), *taken)
                peers.say(f"  decode {sequences}, round {number + 1}: {name} {values[name][-1]:.1f} tokens/s")
    found = rates(values)
    for name, entry in found.items():
        entry["slowest_step_s"] = slowest[name]
    return {"sequences": sequences, "prompt_tokens": PROMPT_TOKENS, "steps": steps, "contestants": found}


def busy_neighbour(peers: Field, sequences: int, steps: int, rounds: int) -> dict[str, Any]:
    """Decoding with one core taken by a spinning process, beside quiet rounds of the same: ratio and longest step."""
    quiet: dict[str, list[float]] = {name: [] for name in peers.workers}
    busy: dict[str, list[float]] = {name: [] for name in peers.workers}
    slowest: dict[str, float] = {}
    for number in range(rounds):
        for name in list(peers.workers):
            calm = _decode_steps(peers, name, sequences, steps)
            with neighbour():
                taken = _decode_steps(peers, name, sequences, steps)
            if calm and taken:
                quiet[name].append(sequences * len(calm) / sum(calm))
                busy[name].append(sequences * len(taken) / sum(taken))
                slowest[name] = max(slowest.get(name, 0.0), *taken)
                share = busy[name][-1] / quiet[name][-1]
                peers.say(f"  busy neighbour, {sequences} sequences, round {number + 1}: {name} keeps {share:.0%}")
    return {
        "sequences": sequences,
        "contestants": {
            name: {
                "quiet_tokens_per_s": statistics.median(quiet[name]),
                "busy_tokens_per_s": statistics.median(busy[name]),
                "share": statistics.median(b / q for b, q in zip(busy[name], quiet[name], strict=True)),
                "slowest_step_s": slowest[name],
            }
            for name in quiet
            if quiet[name]
        },
    }


@contextmanager
def neighbour() -> Iterator[None]:
    """A process that spins on the last core this one may use, for the length of the block."""
    core = max(os.sched_getaffinity(0))
    spinning = subprocess.Popen(
        [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{core}}})\n{NEIGHBOUR}"], start_new_session=True
    )
    try:
        yield
    finally:
        spinning.kill()
        spinning.wait()


def served_mix(
    contestants: Sequence[Contestant],
    trace: Path,
    *,
    threads: int,
    requests: int,
    concurrency: int,
    rounds: int,
    failures: dict[str, str],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """The lengths of a trace over HTTP: output tokens per second and latencies, in a closed loop."""
    cut = Cut(1024, 256)
    load = trace_lengths(read_trace(trace), requests, cut)
    result = _serve_all(contestants, load, concurrency, rounds, threads, 2048, failures, say)
    return {"trace": trace.name, "max_prompt_tokens": 1024, "max_output_tokens": 256, **result}


def http_against_offline(
    contestant: Contestant, peers: Field, *, threads: int, output_tokens: int, rounds: int, failures: dict[str, str]
) -> dict[str, Any] | None:
    """The same work through `LLM` and over HTTP, `STREAMS` at once, alternating; None if either fails."""
    requests = 2 * STREAMS
    load = fixed_lengths(requests, PROMPT_TOKENS, output_tokens)
    offline, served = [], []
    try:
        server = contestant.start_server(threads=threads, sequences=STREAMS, context_tokens=1024)
    except PeerFailed as failure:
        failures[f"{contestant.name} server"] = str(failure)
        return None
    try:
        for number in range(rounds):
            command = {
                "op": "generate",
                "requests": requests,
                "prompt_tokens": PROMPT_TOKENS,
                "output_tokens": output_tokens,
            }
            answer = peers.ask(contestant.name, **command)
            if answer is None:
                return None
            offline.append(requests * output_tokens / answer["seconds"])
            with server.turn():
                figures = _serve_once(server, load, STREAMS, seed=number)
            served.append(figures["throughput"]["output_tokens_per_s"])
            peers.say(f"  HTTP against offline, round {number + 1}: {served[-1]:.0f} against {offline[-1]:.0f} tokens/s")
    except ArgosyError as error:
        failures[f"{contestant.name} server"] = error.message
        return None
    finally:
        server.close()
    return {
        "contestant": contestant.name,
        "streams": STREAMS,
        "offline_tokens_per_s": statistics.median(offline),
        "http_tokens_per_s": statistics.median(served),
        "share": statistics.median(h / o for h, o in zip(served, offline, strict=True)),
        "rounds": {"offline": offline, "http": served},
    }


def start_twice(contestant: Contestant, threads: int, say: Callable[[str], None]) -> list[float]:
    """Seconds from starting a server to its first answer, twice. Raises `PeerFailed`."""
    taken = []
    for _ in range(2):
        server = contestant.start_server(threads=threads, sequences=STREAMS, context_tokens=2048)
        server.close()
        taken.append(server.ready_s)
        say(f"  {contestant.name} was ready after {server.ready_s:.1f} s")
    return taken


def _decode_steps(peers: Field, name: str, sequences: int, steps: int) -> list[float] | None:
    # Waking up, a peer's caches are cold: a few steps first.
    if peers.ask(name, op="decode", sequences=sequences, prompt_tokens=PROMPT_TOKENS, steps=3) is None:
        return None
    answer = peers.ask(name, op="decode", sequences=sequences, prompt_tokens=PROMPT_TOKENS, steps=steps)
    return None if answer is None else answer["step_seconds"]


def _serve_all(
    contestants: Sequence[Contestant],
    load: list[PlannedRequest],
    concurrency: int,
    rounds: int,
    threads: int,
    context_tokens: int,
    failures: dict[str, str],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """All servers started, then taking turns."""
    servers: dict[str, PeerServer] = {}
    figures: dict[str, list[dict[str, Any]]] = {}
    try:
        for contestant in contestants:
            say(f"  starting the server of {contestant.name} …")
            try:
                server = contestant.start_server(threads=threads, sequences=concurrency, context_tokens=context_tokens)
            except PeerFailed as failure:
                failures[f"{contestant.name} server"] = str(failure)
                say(f"  {failure}")
                continue
            server.pause()
            servers[contestant.name] = server
            figures[contestant.name] = []
        for number in range(rounds):
            for name, server in list(servers.items()):
                try:
                    with server.turn():
                        found = _serve_once(server, load, concurrency, seed=number)
                except (ArgosyError, PeerFailed) as error:
                    failures[f"{name} server"] = str(error)
                    servers.pop(name).close()
                    say(f"  {name} drops out: {error}")
                    continue
                figures[name].append(found)
                say(f"  served, round {number + 1}: {name} {found['throughput']['output_tokens_per_s']:.1f} tokens/s")
        ready = {name: server.ready_s for name, server in servers.items()}
    finally:
        for server in servers.values():
            server.close()
    return {
        "requests": len(load),
        "concurrency": concurrency,
        "contestants": {name: _median_run(runs, ready.get(name)) for name, runs in figures.items() if runs},
    }


def _serve_once(server: PeerServer, load: list[PlannedRequest], concurrency: int, *, seed: int) -> dict[str, Any]:
    """One run; raises `PeerFailed` if a tenth of the requests failed."""
    settings = ServeSettings(concurrency=concurrency, seed=seed, num_warmup=2, timeout_s=OP_TIMEOUT_S)
    with Client(server.url) as client:
        prepared = client.prepare(load, seed)
        warmup = client.prepare(warmup_load(load, settings.num_warmup), seed)
        _, result = client.run(prepared, warmup, settings)
    if len(result.counted) < 0.9 * result.num_sent:
        raise PeerFailed(
            f"{server.name}: {result.num_sent - len(result.counted)} of {result.num_sent} failed: {result.messages}"
        )
    return {**result.as_dict(), "rss_bytes": server.rss_bytes()}


def _median_run(runs: list[dict[str, Any]], ready_s: float | None) -> dict[str, Any]:
    def median(read: Callable[[dict[str, Any]], float]) -> float:
        return statistics.median(read(run) for run in runs)

    return {
        "output_tokens_per_s": median(lambda r: r["throughput"]["output_tokens_per_s"]),
        "requests_per_s": median(lambda r: r["throughput"]["requests_per_s"]),
        "ttft_p50_s": median(lambda r: r["latency"]["ttft_s"]["p50"]),
        "ttft_p99_s": median(lambda r: r["latency"]["ttft_s"]["p99"]),
        "tpot_p50_s": median(lambda r: r["latency"]["tpot_s"]["p50"]),
        "itl_p99_s": median(lambda r: r["latency"]["itl_s"]["p99"]),
        "ready_s": ready_s,
        "rss_bytes": max(run["rss_bytes"] for run in runs),
        "rounds": runs,
    }
