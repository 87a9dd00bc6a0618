"""Processes of peers: workers that answer JSON lines, servers that answer HTTP; all but the measured one are stopped.

A process that waits for its turn may still spin in its thread team or poll a queue. Each therefore has a process group of
its own, which is suspended (SIGSTOP) unless it is its turn.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

LOAD_TIMEOUT_S = 1800.0


class PeerFailed(Exception):
    """A peer cannot be measured; `str` is one line that says why."""


class PeerProcess:
    """A process in a group of its own, with its stderr in a file. Owned by whoever made it, who closes it."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], **pipes: Any) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed by close()
        try:
            self.process = subprocess.Popen(
                list(command), env=dict(env), stderr=self._log, start_new_session=True, text=True, **pipes
            )
        except OSError as error:
            self._log.close()
            raise PeerFailed(f"{name} cannot be started: {error}") from error

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Let it run for the length of the block."""
        self.signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.pause()

    def pause(self) -> None:
        """Suspend it until its next turn."""
        self.signal(signal.SIGSTOP)

    def signal(self, number: int) -> None:
        """Send a signal to the whole group, if it still runs."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def rss_bytes(self) -> int:
        """Resident memory of the group's processes, shared pages counted in each."""
        try:
            own = psutil.Process(self.process.pid)
            return sum(p.memory_info().rss for p in (own, *own.children(recursive=True)))
        except psutil.NoSuchProcess:
            return 0

    def last_line(self) -> str:
        """The end of what it wrote to stderr."""
        # Read without moving the offset, which is also where the process writes next.
        size = os.fstat(self._log.fileno()).st_size
        text = os.pread(self._log.fileno(), 4000, max(0, size - 4000)).decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else "it said nothing"

    def close(self) -> None:
        """End the whole group. Idempotent."""
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)
                self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()
        self._log.close()


class Worker(PeerProcess):
    """A peer that answers commands; see `peers/worker_loop.py`."""

    def __init__(self, name: str, python: Path | str, script: Path, env: Mapping[str, str]) -> None:
        command = [str(python), str(script)]
        super().__init__(name, command, env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, timeout_s: float, **command: Any) -> dict[str, Any]:
        """Send one command in its turn and return the answer.

        Raises:
            PeerFailed: it ended, answered with an error, or did not answer in time.
        """
        assert self.process.stdin is not None
        with self.turn():
            try:
                self.process.stdin.write(json.dumps(command) + "\n")
                self.process.stdin.flush()
            except BrokenPipeError:
                raise PeerFailed(f"{self.name} ended: {self.last_line()}") from None
            line = self._line(timeout_s)
        if not line:
            self.process.wait()
            raise PeerFailed(f"{self.name} ended: {self.last_line()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerFailed(f"{self.name}: {answer['error']}")
        return answer

    def _line(self, timeout_s: float) -> str:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                raise PeerFailed(f"{self.name} did not answer within {timeout_s:g} s")
        return str(self.process.stdout.readline())


class PeerServer(PeerProcess):
    """A server on a port of its own, answering `/v1/models` when it is made. `ready_s`: seconds that took."""

    def __init__(
        self, name: str, command: Sequence[str], env: Mapping[str, str], port: int, *, timeout_s: float = LOAD_TIMEOUT_S
    ) -> None:
        begin = time.monotonic()
        super().__init__(name, command, env, stdout=subprocess.DEVNULL)
        self.url = f"http://127.0.0.1:{port}"
        try:
            while not self._answers():
                if self.process.poll() is not None:
                    raise PeerFailed(f"{name} ended: {self.last_line()}")
                if time.monotonic() - begin > timeout_s:
                    raise PeerFailed(f"{name} did not listen within {timeout_s:g} s")
                time.sleep(0.1)
        except BaseException:
            self.close()
            raise
        self.ready_s = time.monotonic() - begin

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/v1/models", timeout=5, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False


def free_port() -> int:
    """A port nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
