"""`argosy serve` as a child process, as a person would start it."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@dataclass
class ServerProcess:
    """A running server; `url` has no path. It prints to a file: a pipe that nobody reads would stop it when full."""

    process: subprocess.Popen[bytes]
    url: str
    printed: Path

    @property
    def log(self) -> str:
        """What it has printed."""
        return self.printed.read_text()

    def rss_bytes(self) -> int:
        return psutil.Process(self.process.pid).memory_info().rss

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples called `name` whose labels include `labels`."""
        text = httpx.get(f"{self.url}/metrics", timeout=30).text
        samples = [s for family in text_string_to_metric_families(text) for s in family.samples if s.name == name]
        assert samples, f"no metric {name}"
        return sum(s.value for s in samples if labels.items() <= s.labels.items())

    def stop(self) -> int:
        """SIGTERM, wait, return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., contextlib.AbstractContextManager[ServerProcess]]:
    """`with serve(model, *flags) as server:` starts `argosy serve` and stops it at the end."""
    return lambda model, *flags, port=None: _serve(
        model, *flags, port=port, printed=tmp_path_factory.mktemp("serve") / "log"
    )


@contextlib.contextmanager
def _serve(
    model: str, *flags: str, printed: Path, port: int | None = None, ready_within_s: float = 120.0
) -> Iterator[ServerProcess]:
    """Start the server on `port` or a free one, wait until it is ready, stop it at the end."""
    port = port or free_port()
    command = [sys.executable, "-m", "argosy", "serve", model, "--port", str(port), "--threads", "1", *flags]
    with printed.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    server = ServerProcess(process, f"http://127.0.0.1:{port}", printed)
    try:
        deadline = time.monotonic() + ready_within_s
        while True:
            assert process.poll() is None, f"the server ended: {server.log}"
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{server.url}/health/ready", timeout=2).status_code == 200:
                    break
            assert time.monotonic() < deadline, "the server did not become ready"
            time.sleep(0.2)
        yield server
    finally:
        server.stop()
        if process.poll() is None:
            process.kill()
            process.wait()
