"""Ours beside each installed peer, alternating in one run on the same weights and machine.

    python benchmarks/vs_peers.py --peers DIR --trace AZURE.csv          everything; hours on two shared cores
    python benchmarks/vs_peers.py --peers DIR --sections decode --rounds 1 --steps 16

DIR holds environments `hf` (transformers), `llamacpp` (llama-cpp-python) and `vllm`, and `model/` with one GGUF file and a
folder with the same weights as safetensors; whatever is missing is skipped and said so. With --model it is another GGUF
file, whose figures go to a file of their own. Writes benchmarks/results/vs_peers.json after each section.

Sections: prefill, decode, busy (one core taken by another process), http (ours, against offline), start (ours, twice),
served (a trace's lengths over HTTP).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from argosy.models.cache import default_cache_dir
from argosy.models.resolve import resolve
from peer_catalogue import FORMATS, Contestant, find_contestants
from peer_process import PeerFailed
from peer_sections import Field, busy_neighbour, decode, http_against_offline, prefill, served_mix, start_twice
from report import machine, write_result

SECTIONS = ("prefill", "decode", "busy", "http", "start", "served")
WORKER_SECTIONS = {"prefill", "decode", "busy", "http"}
CONTEXT_TOKENS = 2048


def main() -> None:
    options = parse()
    # Ended from outside, it still ends its peers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    begin = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - begin:6.0f} s] {line}", file=sys.stderr, flush=True)

    gguf, folder = find_model(options)
    work = options.work or default_cache_dir() / "benchmarks"
    found, skipped = find_contestants(options.peers, gguf, folder, tuple(options.formats), work, options.engine_args)
    contestants = [c for c in found if not options.only or any(part in c.name for part in options.only)]
    for name, reason in skipped.items():
        say(f"skipped: {name}: {reason}")
    say("contestants: " + ", ".join(c.name for c in contestants))
    figures: dict[str, Any] = {
        "model": gguf.name,
        "threads": options.threads,
        "rounds": options.rounds,
        "engine_args": options.engine_args,
        "skipped": skipped,
        "dropped": {},
    }
    measure(options, contestants, figures, say)
    say(f"done; wrote {write_result(options.name, figures)} on {machine()['cpu']}")


def measure(options: argparse.Namespace, contestants: list[Contestant], figures: dict[str, Any], say: Any) -> None:
    """Run the sections; adds to `figures`, and writes them after each."""
    failures: dict[str, str] = figures["dropped"]
    ours = [c for c in contestants if c.engine == "argosy"]
    if WORKER_SECTIONS & set(options.sections):
        peers, figures["loaded"] = load_all(contestants, options.threads, failures, say)
        try:
            run_worker_sections(options, peers, ours, figures, say)
        finally:
            peers.close()
    if "start" in options.sections:
        say("start")
        figures["start"] = {}
        for contestant in ours[:1]:
            try:
                figures["start"][contestant.name] = start_twice(contestant, options.threads, say)
            except PeerFailed as failure:
                failures[f"{contestant.name} server"] = str(failure)
        write_result(options.name, figures)
    if "served" in options.sections:
        if options.trace is None:
            figures["skipped"]["served"] = "no --trace given"
            say("skipped: served: no --trace given")
            return
        say("served mix")
        figures["served"] = served_mix(
            contestants,
            options.trace,
            threads=options.threads,
            requests=options.served_requests,
            concurrency=options.concurrency,
            rounds=options.served_rounds,
            failures=failures,
            say=say,
        )


def run_worker_sections(
    options: argparse.Namespace, peers: Field, ours: list[Contestant], figures: dict[str, Any], say: Any
) -> None:
    """The sections that need workers and no server but ours."""
    if "prefill" in options.sections:
        say("prefill")
        figures["prefill"] = [prefill(peers, tokens, options.rounds) for tokens in options.prefill_tokens]
        write_result(options.name, figures)
    if "decode" in options.sections:
        say("decode")
        figures["decode"] = []
        for sequences in options.sequences:
            figures["decode"].append(decode(peers, sequences, options.steps, options.rounds))
            write_result(options.name, figures)
        for name, worker in peers.workers.items():
            figures["loaded"][name]["rss_after_decode_bytes"] = worker.rss_bytes()
    if "busy" in options.sections:
        say("busy neighbour")
        calm = Field({n: w for n, w in peers.workers.items() if n.startswith(("argosy", "llamacpp"))}, peers.failures, say)
        figures["busy"] = [busy_neighbour(calm, sequences, options.steps, options.rounds) for sequences in (1, 16)]
        write_result(options.name, figures)
    if "http" in options.sections and ours:
        say("HTTP against offline")
        figures["http"] = http_against_offline(
            ours[0],
            peers,
            threads=options.threads,
            output_tokens=options.steps,
            rounds=options.rounds,
            failures=peers.failures,
        )
        write_result(options.name, figures)


def load_all(
    contestants: list[Contestant], threads: int, failures: dict[str, str], say: Any
) -> tuple[Field, dict[str, dict[str, Any]]]:
    """Every worker loaded and suspended, and what each told; one that cannot be loaded is dropped."""
    peers, told = Field({}, failures, say), {}
    for contestant in contestants:
        say(f"loading {contestant.name} …")
        try:
            worker, told[contestant.name] = contestant.start_worker(
                threads=threads, sequences=32, context_tokens=CONTEXT_TOKENS
            )
        except PeerFailed as failure:
            failures[contestant.name] = str(failure)
            say(f"  {failure}")
            continue
        peers.workers[contestant.name] = worker
    return peers, told


def find_model(options: argparse.Namespace) -> tuple[Path, Path | None]:
    """The GGUF file, and the folder with the same weights if there is one."""
    models = None if options.peers is None else options.peers / "model"
    gguf, folder = options.model, options.hf_model
    if gguf is None:
        files = sorted(models.glob("*.gguf")) if models is not None else []
        gguf = files[0] if files else resolve("smollm2-135m").path
        folders = sorted(path.parent for path in models.glob("*/config.json")) if models is not None else []
        folder = folder or (folders[0] if folders else None)
    if not gguf.is_file():
        sys.exit(f"error: there is no file {gguf}")
    return gguf, folder


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="folder with the peers' environments and model/")
    parser.add_argument("--model", type=Path, help="another GGUF file")
    parser.add_argument("--hf-model", type=Path, help="its weights as a folder with safetensors")
    parser.add_argument("--formats", nargs="*", default=None, choices=FORMATS, help="quantise to these as well")
    parser.add_argument("--only", nargs="+", default=[], help="contestants whose name contains one of these")
    parser.add_argument("--sections", nargs="+", default=list(SECTIONS), choices=SECTIONS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prefill-tokens", type=int, nargs="+", default=[512])
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 16, 32])
    parser.add_argument("--steps", type=int, default=64, help="decode steps of a round")
    parser.add_argument("--trace", type=Path, help="Azure's conversation trace, for the served mix")
    parser.add_argument("--served-requests", type=int, default=64)
    parser.add_argument("--served-rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--engine-args", type=json.loads, default={}, help="JSON of settings for Argosy's engine")
    parser.add_argument("--work", type=Path, help="where quantised files are kept; default: Argosy's cache")
    parser.add_argument("--name", help="of the file under benchmarks/results; default: vs_peers, with --model its name too")
    options = parser.parse_args()
    if options.peers is not None and not options.peers.is_dir():
        parser.error(f"--peers: there is no folder {options.peers}")
    if options.trace is not None and not options.trace.is_file():
        parser.error(f"--trace: there is no file {options.trace}")
    if min(options.rounds, options.steps, options.served_rounds, options.concurrency) < 1 or options.steps + 40 > 160:
        parser.error("rounds and concurrency must be at least 1, steps within [1, 120]")
    if max(options.sequences) > 32:
        parser.error("--sequences: at most 32")
    if options.formats is None:
        options.formats = list(FORMATS) if options.model is None else []
    if options.name is None:
        options.name = "vs_peers" if options.model is None else f"vs_peers_{options.model.stem.lower()}"
    return options


if __name__ == "__main__":
    main()
