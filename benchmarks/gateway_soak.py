"""Whether a gateway grows: many requests, each with an id, a prompt and a user of its own, some of them given up.

    python benchmarks/gateway_soak.py [--requests 100000] [--aborted 0.3] [--keys 2000] [--concurrency 32]

Every request names a session, a conversation and a model alias that were never seen before or are one of few; one in fifty
brings a key that nobody knows and one in fifty names a model that is not there. Half of them stream. Those that are given up
are cut at a random moment: while they wait, within the answer, after its end. The backend is a small server in this process.
Written down: resident memory, open sockets and metric series along the way. Exit code 1 if memory still grows after a third
of the requests by more than a tenth, so do metric series, sockets grow with requests, or anything is in flight at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import cast

import httptools
import httpx
import orjson
import psutil
import uvloop

from peer_process import PeerServer, free_port
from report import write_result

MODEL = "m"
MASTER_KEY = "sk-soak-master-0123456789abcdef"
NUM_READINGS = 20
ANSWER = orjson.dumps(
    {
        "id": "x", "object": "chat.completion", "created": 1, "model": MODEL,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Paris."}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
    }
)  # fmt: skip
EVENTS = [
    b"data: " + orjson.dumps({"id": "x", "choices": [{"index": 0, "delta": {"content": token}}]}) + b"\n\n"
    for token in ("Pa", "ri", "s.")
] + [
    b'data: {"id":"x","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}\n\n',
    b"data: [DONE]\n\n",
]
EVENT_GAP_S = 0.002


@dataclass(frozen=True, slots=True)
class Reading:
    """The gateway at one moment."""

    num_requests: int
    rss_mib: float
    num_sockets: int
    num_series: int


class Backend(asyncio.Protocol):
    """Answers chats: at once, or five events a moment apart."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        body, self._body = self._body, b""
        if b'"stream":true' in body:
            self._transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            self._next_event(iter(EVENTS))
        else:
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(ANSWER)
            self._transport.write(head + ANSWER)

    def _next_event(self, events: Iterator[bytes]) -> None:
        if self._transport.is_closing():
            return
        event = next(events, None)
        if event is None:
            self._transport.write(b"0\r\n\r\n")
            return
        self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        asyncio.get_running_loop().call_later(EVENT_GAP_S, self._next_event, events)


class Load:
    """Sends requests until enough have been sent, and reads the gateway on the way."""

    def __init__(self, port: int, keys: list[str], flags: argparse.Namespace, process: psutil.Process) -> None:
        self._port = port
        self._keys = keys
        self._flags = flags
        self._process = process
        self._rng = Random(7)
        self.num_sent = 0
        self.num_by_status: dict[str, int] = {}
        self.readings: list[Reading] = []

    async def run(self) -> None:
        workers = [asyncio.create_task(self._work()) for _ in range(self._flags.concurrency)]
        every = max(1, self._flags.requests // NUM_READINGS)
        while not all(worker.done() for worker in workers):
            await asyncio.sleep(0.05)
            if self.num_sent // every > len(self.readings):
                self.readings.append(await asyncio.to_thread(self.read))
        await asyncio.gather(*workers)
        await asyncio.sleep(6.0)  # idle connections to the backend are closed by then
        self.readings.append(await asyncio.to_thread(self.read))

    def read(self) -> Reading:
        page = httpx.get(f"http://127.0.0.1:{self._port}/metrics", timeout=30, trust_env=False).text
        num_series = sum(1 for line in page.splitlines() if line and not line.startswith("#"))
        num_sockets = len(self._process.net_connections("tcp"))
        return Reading(self.num_sent, self._process.memory_info().rss / 2**20, num_sockets, num_series)

    async def _work(self) -> None:
        reader: asyncio.StreamReader | None = None
        writer: asyncio.StreamWriter | None = None
        while self.num_sent < self._flags.requests:
            self.num_sent += 1
            gives_up = self._rng.random() < self._flags.aborted
            if writer is None or reader is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(self._request(self.num_sent))
            if gives_up:
                status = "given up"
                with contextlib.suppress(TimeoutError, ConnectionError, asyncio.IncompleteReadError):
                    async with asyncio.timeout(self._rng.random() * 0.04):
                        await _read_answer(reader)
                writer.transport.abort()
                reader = writer = None
            else:
                status = str(await _read_answer(reader))
            self.num_by_status[status] = self.num_by_status.get(status, 0) + 1

    def _request(self, number: int) -> bytes:
        rng = self._rng
        key = f"sk-nobody-{number}" if rng.random() < 0.02 else rng.choice(self._keys)
        model = f"no-such-model-{number}" if rng.random() < 0.02 else MODEL
        text = f"Question {number}: " + " ".join(str(rng.random()) for _ in range(10))
        body = orjson.dumps(
            {
                "model": model,
                "messages": [{"role": "user", "content": text}],
                "stream": rng.random() < 0.5,
                "user": f"user-{number}",
                "max_tokens": 1 + number % 1000,
            }
        )
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {key}\r\n"
            f"content-type: application/json\r\nx-request-id: soak-{number}\r\nx-session-id: session-{number}\r\n"
            f"traceparent: 00-{number:032x}-{number:016x}-01\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


async def _read_answer(reader: asyncio.StreamReader) -> int:
    head = await reader.readuntil(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head:
        while size := int(await reader.readline(), 16):
            await reader.readexactly(size + 2)
        await reader.readexactly(2)
    else:
        await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
    return int(head[9:12])


class Gateway(PeerServer):
    """Ours, on a port of its own; it listens when it says that it lives."""

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/livez", timeout=5, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False


def start_gateway(folder: Path, backend_port: int) -> Gateway:
    """A gateway with a store, limits, queues, prefix-aware routing and an access log."""
    port = free_port()
    config = {
        "listen": {"port": port},
        "models": [
            {
                "name": MODEL,
                "routing": {"policy": "prefix_aware"},
                "price": {"input_usd_per_million": 0.1, "output_usd_per_million": 0.2},
                "backends": [{"url": f"http://127.0.0.1:{backend_port}", "max_in_flight": 24}],
            }
        ],
        "auth": {"secret_file": str(folder / "secret"), "master_key_env": "SOAK_MASTER"},
        "store": {"url": f"sqlite:///{folder}/gateway.db", "journal": str(folder / "usage.ndjson")},
        "observability": {"access_log": "/dev/null", "log_level": "warning"},
        "resilience": {"drain": {"propagation_s": 0}},
    }
    path = folder / "gateway.yaml"
    path.write_text(json.dumps(config))
    command = [sys.executable, "-m", "argosy", "gateway", str(path)]
    return Gateway("argosy", command, {**os.environ, "SOAK_MASTER": MASTER_KEY}, port, timeout_s=60)


def make_keys(url: str, count: int) -> list[str]:
    """Keys with limits of their own."""
    limits = {"rpm_limit": 10**6, "tpm_limit": 10**9, "max_parallel_requests": 1000}
    with httpx.Client(headers={"authorization": f"Bearer {MASTER_KEY}"}, timeout=60, trust_env=False) as client:
        answers = (client.post(f"{url}/key/generate", json=limits) for _ in range(count))
        return [answer.raise_for_status().json()["key"] for answer in answers]


def faults_of(readings: list[Reading], flags: argparse.Namespace, in_flight: float) -> list[str]:
    """What grew."""
    settled, last = readings[len(readings) // 3], readings[-1]
    most_sockets = 4 * flags.concurrency + 64
    faults = []
    if last.rss_mib > settled.rss_mib * 1.1:
        faults.append(f"resident memory grew from {settled.rss_mib:.1f} to {last.rss_mib:.1f} MiB")
    if any(reading.num_sockets > most_sockets for reading in readings):
        faults.append(f"more than {most_sockets} sockets were open")
    if last.num_series > settled.num_series * 1.1:  # the last of the keys, of which each is a tenant, may still appear
        faults.append(f"metric series grew from {settled.num_series} to {last.num_series}")
    if in_flight:
        faults.append(f"{in_flight:.0f} requests are in flight at the end")
    return faults


async def soak(flags: argparse.Namespace, folder: Path) -> int:
    """Run it; returns the exit code."""
    server = await asyncio.get_running_loop().create_server(Backend, "127.0.0.1", 0)
    gateway = await asyncio.to_thread(start_gateway, folder, server.sockets[0].getsockname()[1])
    try:
        keys = await asyncio.to_thread(make_keys, gateway.url, flags.keys)
        port = int(gateway.url.rsplit(":", 1)[1])
        load = Load(port, keys, flags, psutil.Process(gateway.process.pid))
        begun_s = time.monotonic()
        await load.run()
        took_s = time.monotonic() - begun_s
        page = httpx.get(f"{gateway.url}/metrics", timeout=30, trust_env=False).text
        lines = [line for line in page.splitlines() if line.startswith("argosy_gateway_requests_in_flight ")]
        faults = faults_of(load.readings, flags, float(lines[0].split()[1]))
    finally:
        await asyncio.to_thread(gateway.close)
        server.close()
    print(f"{'requests':>10} {'RSS MiB':>9} {'sockets':>8} {'series':>7}")
    for reading in load.readings:
        print(f"{reading.num_requests:>10} {reading.rss_mib:>9.1f} {reading.num_sockets:>8} {reading.num_series:>7}")
    print(f"{load.num_sent} requests in {took_s:.0f} s; {load.num_by_status}")
    print("\n".join(faults) or "nothing grows")
    path = write_result(
        "gateway_soak",
        {
            "requests": load.num_sent, "seconds": round(took_s, 1), "answers": load.num_by_status, "keys": flags.keys,
            "readings": [asdict(reading) for reading in load.readings], "faults": faults,
        },
    )  # fmt: skip
    print(f"written to {path}")
    return 1 if faults else 0


def main() -> int:
    """Soak a gateway."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--aborted", type=float, default=0.3, help="part of them that is given up")
    parser.add_argument("--keys", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=32)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gateway-soak-") as name:
        return uvloop.run(soak(flags, Path(name)))


if __name__ == "__main__":
    sys.exit(main())
