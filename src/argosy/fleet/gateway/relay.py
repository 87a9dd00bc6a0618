"""Takes one backend's answer in and passes it on to one client.

Bytes go from socket to socket in callbacks; the request's task only wakes for the head, the first data and the end. What
ends the answer is held back until the task lets it go, so that leases are given back before the client knows that it is
served.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

from argosy.fleet.gateway.http_messages import RawHeaders, ResponseWriter
from argosy.fleet.gateway.upstream import UpstreamConnection, UpstreamError

_BUFFER_BYTES = 256 * 1024
_TAIL_S = 1.0  # that a backend may take from its last event to the end of its answer


class BodyObserver(Protocol):
    """Sees the bytes of an answer on their way."""

    @property
    def is_done(self) -> bool:
        """Whether the answer is complete, whatever may follow."""
        ...

    def feed(self, data: bytes) -> bytes:
        """Take in data; return what is to be sent on."""
        ...

    def flush(self) -> bytes:
        """The end; return what is still held."""
        ...


class Relay:
    """One call of a backend. A `ResponseSink`; the task awaits `head`, then one of `read_all` and `stream`.

    Attributes:
        status, headers: of the backend's answer, once `head` has returned.
        observer: of a stream that has begun.
        bytes_received: of the body.
    """

    __slots__ = (
        "_connection", "_data", "_ended", "_failure", "_held", "_is_let_go", "_max_body_bytes", "_passes_on", "_size",
        "_waiter", "_writer", "bytes_received", "headers", "observer", "status",
    )  # fmt: skip

    def __init__(self, connection: UpstreamConnection, writer: ResponseWriter) -> None:
        self._connection: UpstreamConnection | None = connection
        self._writer = writer
        self._waiter: asyncio.Future[None] | None = None
        self._data: list[bytes] = []
        self._size = 0
        self._max_body_bytes = _BUFFER_BYTES
        self._ended = False
        self._failure: UpstreamError | None = None
        self._held: list[bytes] = []
        self._passes_on = False
        self._is_let_go = False
        self.observer: BodyObserver | None = None
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.bytes_received = 0

    # --- what the task does ------------------------------------------------------------------------------------------

    async def head(self) -> None:
        """Wait for status and headers. Raises `UpstreamError`."""
        while not self.status:
            await self._wait()

    async def first_data(self) -> None:
        """Wait for the first bytes of the body, or its end. Raises `UpstreamError`."""
        while not self._data and not self._ended:
            await self._wait()

    async def read_all(self, max_bytes: int) -> bytes | None:
        """The whole body; None if it grows beyond `max_bytes`: then `stream` must follow. Raises `UpstreamError`."""
        self._max_body_bytes = max_bytes
        if self._connection is not None and self._size <= max_bytes:
            self._connection.resume()
        while not self._ended:
            if self._size > max_bytes:
                return None
            await self._wait()
        body = self._data[0] if len(self._data) == 1 else b"".join(self._data)
        self._data = []
        return body

    async def stream(self, status: int, headers: RawHeaders, observer: BodyObserver) -> None:
        """Begin the client's answer with what has come, and pass on what comes. Returns when the answer is complete, with
        its last bytes held back for `let_go`.

        Raises:
            UpstreamError: the backend failed within its answer; what it sent of whole events has been passed on.
        """
        self.observer = observer
        writer, connection = self._writer, self._connection
        data, self._data, self._size = b"".join(self._data), [], 0
        self._passes_on = True
        writer.start(status, headers, b"")
        if data:
            self._pass_on(data)
        if connection is not None:
            writer.on_pause, writer.on_resume = connection.pause, connection.resume
            if writer.is_paused:
                connection.pause()
            else:
                connection.resume()
        while self._passes_on and not self._ended:
            await self._wait()

    async def let_go(self) -> None:
        """Send what was held back, and what the backend may send after its last event."""
        observer, writer = self.observer, self._writer
        assert observer is not None
        held, self._held = b"".join(self._held), []
        if not self._ended:
            writer.write(held)
            held = b""
            self._passes_on = self._is_let_go = True
            with suppress(UpstreamError, TimeoutError):
                async with asyncio.timeout(_TAIL_S):
                    while not self._ended:
                        await self._wait()
        writer.on_pause = writer.on_resume = None
        writer.finish(held + observer.flush())

    def abort(self) -> None:
        """Close the connection to the backend unless its answer is complete. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    # --- ResponseSink ------------------------------------------------------------------------------------------------

    def on_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Take in status and headers."""
        self.status = status
        self.headers = headers
        self._wake()

    def on_data(self, data: bytes) -> None:
        """Pass data on if the stream has begun, else keep it until the task asks."""
        self.bytes_received += len(data)
        if self._passes_on:
            self._pass_on(data)
        elif self.observer is not None:
            self._held.append(self.observer.feed(data))
        else:
            self._data.append(data)
            self._size += len(data)
            if self._size > self._max_body_bytes and self._connection is not None:
                self._connection.pause()
            self._wake()

    def on_end(self) -> None:
        """The answer is complete."""
        self._connection = None
        self._ended = True
        self._wake()

    def on_failure(self, error: UpstreamError) -> None:
        """There will be no more."""
        self._connection = None
        self._failure = error
        self._wake()

    def _pass_on(self, data: bytes) -> None:
        observer = self.observer
        assert observer is not None
        out = observer.feed(data)
        if observer.is_done and not self._is_let_go:
            self._passes_on = False
            self._held.append(out)
            self._wake()
        else:
            self._writer.write(out)

    async def _wait(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        if self._failure is not None:
            raise self._failure

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
