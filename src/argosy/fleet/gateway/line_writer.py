"""Lines to a file or pipe from a thread of its own: a reader that stands still must not stop the event loop."""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections import deque
from pathlib import Path

from argosy.errors import ConfigError

_BATCH_BYTES = 64 * 1024


class LineWriter:
    """Takes lines and returns at once. Those that do not fit are dropped and counted, the newest first.

    Attributes:
        num_dropped: lines lost since the start.
    """

    def __init__(self, descriptor: int, *, max_lines: int, path: Path | None = None, delay_s: float = 0.05) -> None:
        """Start the thread. It owns `descriptor`, unless that is one of the standard streams.

        Args:
            path: where `descriptor` leads, for `reopen`.
            delay_s: how long lines are collected before they are written together.
        """
        self._descriptor = descriptor
        self._path = path
        self._delay_s = delay_s
        self._max_lines = max_lines
        self._lines: deque[bytes] = deque()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._reopen = False
        self.num_dropped = 0
        self._thread = threading.Thread(target=self._run, name="line-writer", daemon=True)
        self._thread.start()

    @classmethod
    def to(cls, target: str, *, max_lines: int) -> LineWriter:
        """Appending to the file `target`, or to standard output for "-".

        Raises:
            ConfigError: the file cannot be opened.
        """
        if target == "-":
            return cls(1, max_lines=max_lines)
        path = Path(target)
        return cls(_open(path), max_lines=max_lines, path=path)

    def write(self, line: bytes) -> None:
        """Take one line, with its line feed. Never waits."""
        if len(self._lines) >= self._max_lines:
            self.num_dropped += 1
            return
        self._lines.append(line)
        if not self._wake.is_set():
            self._wake.set()

    def reopen(self) -> None:
        """Go on in a new file at the same path: the old one was moved away."""
        self._reopen = True
        self._wake.set()

    def close(self, timeout_s: float = 1.0) -> bool:
        """Write what is left; return whether all of it was. A reader that stands still is not waited for longer."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive() and not self._lines

    def _run(self) -> None:
        while True:
            self._wake.wait()
            if not self._closing.wait(self._delay_s):
                self._wake.clear()
            self._write_all()
            if self._closing.is_set() and not self._lines:
                break
        if self._descriptor > 2:
            os.close(self._descriptor)

    def _write_all(self) -> None:
        if self._reopen and self._path is not None:
            self._reopen = False
            # A path that cannot be opened any more leaves the old file in use: its lines are not lost.
            with contextlib.suppress(ConfigError):
                fresh = _open(self._path)
                os.close(self._descriptor)
                self._descriptor = fresh
        while self._lines:
            batch = bytearray()
            while self._lines and len(batch) < _BATCH_BYTES:
                batch += self._lines.popleft()
            self._write_batch(batch)

    def _write_batch(self, batch: bytearray) -> None:
        view = memoryview(batch)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:
                # Somebody made the stream non-blocking; there is room again when the reader has read.
                if self._closing.wait(0.02):
                    self.num_dropped += bytes(view).count(b"\n")
                    return
            except OSError:
                # The reader has gone, or the disk is full.
                self.num_dropped += bytes(view).count(b"\n")
                return


class LineStream(io.TextIOBase):
    """A text stream over a `LineWriter`, for `logging`."""

    def __init__(self, writer: LineWriter) -> None:
        self._writer = writer

    def write(self, text: str) -> int:
        """Take `text`, which ends a line."""
        self._writer.write(text.encode("utf-8", "backslashreplace"))
        return len(text)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
    except OSError as error:
        raise ConfigError(f"access log {path} cannot be opened: {error.strerror}") from None
