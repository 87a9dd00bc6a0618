"""What a gateway costs: requests and streamed chunks per second on one core, latency added at rest and at half load.

    python benchmarks/gateway_overhead.py [--peers DIR] [--seconds 5] [--rounds 3]

The backend is nginx with fixed answers: what is measured is the gateway. Each gateway has one core, nginx and wrk share
another. Gateways take turns within every round; the others are suspended. A stream is written by nginx in large pieces, so
that chunks per second tell the cost of looking at events, not of a system call for each. Peers are installed by
`benchmarks/peers/install_gateways.sh DIR`; those that are missing are left out, and said.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import psutil

from gateway_targets import (
    EVENTS_PER_STREAM,
    KEY,
    MODEL,
    Gateway,
    Nginx,
    start_litellm,
    start_ours,
    start_vllm_router,
)
from peer_process import PeerFailed
from report import machine, write_result
from wrk import WrkResult, run_wrk

GATEWAY_CORE, LOAD_CORE = 0, 1
CONNECTIONS = (16, 64)
_MESSAGES = [{"role": "user", "content": "Name the capital of France."}]
PLAIN = orjson.dumps({"model": MODEL, "messages": _MESSAGES, "max_tokens": 16})
STREAM = orjson.dumps({"model": MODEL, "messages": _MESSAGES, "max_tokens": 256, "stream": True})
PATH = "/v1/chat/completions"

Samples = dict[str, list[float]]


def main() -> int:
    """Measure, print, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="folder of install_gateways.sh")
    parser.add_argument("--seconds", type=float, default=5.0, help="of one run of wrk")
    parser.add_argument("--rounds", type=int, default=3)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gateway-overhead-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)
        nginx = Nginx(folder, LOAD_CORE)
        stack.callback(nginx.close)
        gateways = _start(folder, nginx, flags.peers, stack)
        samples = _measure(folder, nginx, gateways, flags.rounds, flags.seconds)
        memory = {each: pair[0].rss_bytes() / 2**20 for each, pair in gateways.items()}
    figures = {name: {key: statistics.median(values) for key, values in found.items()} for name, found in samples.items()}
    for name, mib in memory.items():
        figures[name]["rss_mib"] = mib
    show(figures)
    path = write_result("gateway_overhead", {"seconds": flags.seconds, "rounds": flags.rounds, "figures": figures})
    print(f"\nwritten to {path}")
    return 0


def _start(
    folder: Path, nginx: Nginx, peers: Path | None, stack: contextlib.ExitStack
) -> dict[str, tuple[Gateway, Gateway]]:
    """By name, one gateway in front of each kind of backend, suspended."""
    starts: dict[str, Callable[[Sequence[str]], Gateway]] = {"argosy": lambda urls: start_ours(folder, urls, GATEWAY_CORE)}
    if peers is not None:
        starts["litellm"] = lambda urls: start_litellm(folder, urls, GATEWAY_CORE, peers)
        starts["vllm-router"] = lambda urls: start_vllm_router(folder, urls, GATEWAY_CORE, peers)
    gateways: dict[str, tuple[Gateway, Gateway]] = {}
    for name, start in starts.items():
        try:
            pair = []
            for urls in (nginx.json_urls, nginx.stream_urls):
                pair.append(start(urls))
                stack.callback(pair[-1].close)
                pair[-1].pause()
            gateways[name] = (pair[0], pair[1])
        except PeerFailed as error:
            print(f"left out: {error}", file=sys.stderr)
    return gateways


def _measure(
    folder: Path, nginx: Nginx, gateways: dict[str, tuple[Gateway, Gateway]], rounds: int, seconds: float
) -> dict[str, Samples]:
    samples: dict[str, Samples] = {name: {} for name in ("nginx", *gateways)}

    def load(url: str, body: bytes, connections: int, rate_per_s: float | None = None) -> WrkResult:
        result = run_wrk(
            url + PATH, body, KEY, folder, connections=connections, seconds=seconds, core=LOAD_CORE, rate_per_s=rate_per_s
        )
        if result.num_errors:
            raise SystemExit(f"{url}: {result.num_errors} requests failed, so nothing was measured")
        return result

    def add(name: str, **values: float) -> None:
        for key, value in values.items():
            samples[name].setdefault(key, []).append(value)

    for number in range(rounds):
        print(f"round {number + 1} of {rounds} …", file=sys.stderr)
        alone = load(nginx.json_urls[0], PLAIN, 1)
        add("nginx", p50_ms=alone.p50_ms, p99_ms=alone.p99_ms)
        add("nginx", requests_per_s_16=load(nginx.json_urls[0], PLAIN, 16).requests_per_s)
        streams = load(nginx.stream_urls[0], STREAM, 16).requests_per_s
        add("nginx", chunks_per_s=streams * EVENTS_PER_STREAM)
        for name, (plain, streaming) in gateways.items():
            with plain.turn():
                _one_round(plain, name, load, add, alone)
            with streaming.turn():
                load(streaming.url, STREAM, 4)
                streams = load(streaming.url, STREAM, 16).requests_per_s
                add(name, chunks_per_s=streams * EVENTS_PER_STREAM)
    return samples


def _one_round(
    gateway: Gateway, name: str, load: Callable[..., WrkResult], add: Callable[..., None], alone: WrkResult
) -> None:
    """Warm up, then throughput, latency of a lone connection, latency at half of the throughput."""
    load(gateway.url, PLAIN, 4)
    for connections in CONNECTIONS:
        before_s = _cpu_s(gateway)
        result = load(gateway.url, PLAIN, connections)
        add(name, **{f"requests_per_s_{connections}": result.requests_per_s})
    add(name, cpu_us_per_request=(_cpu_s(gateway) - before_s) * 1e6 / result.num_requests)
    single = load(gateway.url, PLAIN, 1)
    half = load(gateway.url, PLAIN, 16, rate_per_s=result.requests_per_s / 2)
    add(name, added_p50_ms=single.p50_ms - alone.p50_ms, added_p99_ms=single.p99_ms - alone.p99_ms)
    add(name, half_load_p50_ms=half.p50_ms, half_load_p99_ms=half.p99_ms, half_load_requests_per_s=half.requests_per_s)


def _cpu_s(gateway: Gateway) -> float:
    """Processor time of the gateway's processes so far."""
    own = psutil.Process(gateway.process.pid)
    times = [one.cpu_times() for one in (own, *own.children(recursive=True))]
    return sum(time.user + time.system for time in times)


ROWS = (
    ("requests/s, 16 connections", "requests_per_s_16", ",.0f"),
    ("requests/s, 64 connections", "requests_per_s_64", ",.0f"),
    ("streamed chunks/s, 16 connections", "chunks_per_s", ",.0f"),
    ("added latency p50, 1 connection, ms", "added_p50_ms", ".2f"),
    ("added latency p99, 1 connection, ms", "added_p99_ms", ".2f"),
    ("latency p50 at half load, ms", "half_load_p50_ms", ".2f"),
    ("latency p99 at half load, ms", "half_load_p99_ms", ".2f"),
    ("half load, requests/s", "half_load_requests_per_s", ",.0f"),
    ("CPU per request, µs", "cpu_us_per_request", ",.0f"),
    ("resident memory, MiB", "rss_mib", ",.0f"),
)


def show(figures: dict[str, dict[str, Any]]) -> None:
    """Print the machine and a table: rows of figures, a column for each gateway and for nginx alone."""
    here = machine()
    print(f"{here['cpu']}, {here['cores']} cores; one for the gateway, one for nginx and wrk; medians")
    names = list(figures)
    print(f"{'':<38}" + "".join(f"{name:>14}" for name in names))
    for title, key, form in ROWS:
        cells = (format(figures[name][key], form) if key in figures[name] else "" for name in names)
        print(f"{title:<38}" + "".join(f"{cell:>14}" for cell in cells))
    ours = figures["argosy"]
    for name in names:
        if name not in ("argosy", "nginx"):
            ratio = ours["requests_per_s_64"] / figures[name]["requests_per_s_64"]
            print(f"argosy / {name}: {ratio:.2f} x the requests, 64 connections")


if __name__ == "__main__":
    sys.exit(main())
