"""`argosy serve` as a child process, as a person would start it."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

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
    """A running server; `url` has no path. `log` collects what it printed once it has ended."""

    process: subprocess.Popen[str]
    url: str
    log: list[str] = field(default_factory=list)

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
        with contextlib.suppress(ValueError):
            out, _ = self.process.communicate(timeout=60)
            self.log.append(out or "")
        return self.process.returncode


@pytest.fixture(scope="session")
def serve() -> Callable[..., contextlib.AbstractContextManager[ServerProcess]]:
    """`with serve(model, *flags) as server:` starts `argosy serve` and stops it at the end."""
    return _serve


@contextlib.contextmanager
def _serve(model: str, *flags: str, ready_within_s: float = 120.0) -> Iterator[ServerProcess]:
    """Start the server on a free port, wait until it is ready, stop it at the end."""
    port = free_port()
    command = [sys.executable, "-m", "argosy", "serve", model, "--port", str(port), "--threads", "1", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    server = ServerProcess(process, f"http://127.0.0.1:{port}")
    try:
        deadline = time.monotonic() + ready_within_s
        while True:
            assert process.poll() is None, f"the server ended: {process.communicate()[0]}"
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
