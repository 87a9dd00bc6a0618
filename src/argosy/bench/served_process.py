"""A server of ours in a process of its own, so that the load generator does not share an interpreter with it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from argosy.errors import ConfigError, EngineUnavailable

_GREETING = re.compile(r"is served at (https?://\S+) ")
_POLL_S = 0.1
_RESERVED = ("--host", "--port", "--log-format", "--served-model-name", "--api-key", "--api-key-file")


class ServedProcess:
    """`argosy serve MODEL` on a free port of this machine. A context manager: the server ends with it.

    Args:
        flags: further flags of `argosy serve`.

    Attributes:
        url: where it listens.
        ready_s: seconds from starting the process to listening.

    Raises:
        ConfigError: a flag that this class sets itself.
        EngineUnavailable: the server ended, or did not listen within `timeout_s`; the message is its last line.
    """

    def __init__(self, model: str, flags: Sequence[str] = (), *, timeout_s: float = 900.0) -> None:
        for flag in flags:
            if flag.partition("=")[0] in _RESERVED:
                raise ConfigError(f"{flag.partition('=')[0]} is chosen by the benchmark itself: leave it out")
        self._files = tempfile.TemporaryDirectory(prefix="argosy-bench-")
        self._out, self._err = (Path(self._files.name) / name for name in ("out", "err"))
        command = [sys.executable, "-m", "argosy", "serve", model, "--port", "0", "--log-level", "warning", *flags]
        started_s = time.monotonic()
        with self._out.open("w") as out, self._err.open("w") as err:
            # Its own process group: Ctrl-C is for the benchmark, which then ends the server.
            self.process = subprocess.Popen(command, stdout=out, stderr=err, start_new_session=True)  # noqa: S603
        try:
            self.url = self._wait(started_s + timeout_s)
        except BaseException:
            self.close()
            raise
        self.ready_s = time.monotonic() - started_s

    def __enter__(self) -> ServedProcess:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server. Idempotent."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._files.cleanup()

    def _wait(self, deadline_s: float) -> str:
        while True:
            if found := _GREETING.search(self._out.read_text()):
                return found[1]
            if self.process.poll() is not None:
                raise EngineUnavailable(f"argosy serve ended before it listened: {_last_line(self._err)}")
            if time.monotonic() > deadline_s:
                raise EngineUnavailable(f"argosy serve did not listen in time: {_last_line(self._err)}")
            time.sleep(_POLL_S)


def _last_line(file: Path) -> str:
    lines = file.read_text().strip().splitlines()
    return lines[-1].removeprefix("argosy: error: ") if lines else "it said nothing"
