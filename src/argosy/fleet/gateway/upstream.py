"""HTTP/1.1 to one backend: kept-alive connections, each with one request at a time, read by callbacks.

The pool is the backend's bulkhead: a backend that hangs fills its own pool and nobody else's. It never queues; when every
connection is in use the caller learns so at once and may go elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

from argosy.errors import ConfigError
from argosy.fleet.gateway.exchange import AttemptResult

_MAX_HEAD_BYTES = 64 * 1024


class UpstreamError(Exception):
    """A call of a backend failed; `result` says how, `str(error)` in one line.

    Attributes:
        is_stale: the connection had been used before and ended before a byte of this answer came, as one does that the
            backend closes for idleness at the same moment.
    """

    def __init__(self, result: AttemptResult, message: str, *, is_stale: bool = False) -> None:
        super().__init__(message)
        self.result = result
        self.is_stale = is_stale


class ResponseSink(Protocol):
    """Takes an answer in as it is read: one head, data, then the end or a failure. Called from the event loop."""

    def on_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Status and headers, names in lower case."""
        ...

    def on_data(self, data: bytes) -> None:
        """What one read brought of the body."""
        ...

    def on_end(self) -> None:
        """The answer is complete; the connection is no longer this sink's."""
        ...

    def on_failure(self, error: UpstreamError) -> None:
        """There will be no more of it, at any point."""
        ...


@dataclass(frozen=True, slots=True)
class UpstreamLimits:
    """How a backend is called.

    Attributes:
        max_connections: at most so many requests at once.
        keep_idle_s: an unused connection is closed after it; below what the backend keeps (uvicorn: 5 s).
        first_byte_timeout_s: from the request to the first byte of the body; idle_timeout_s: between two reads after that.
    """

    max_connections: int = 1024
    connect_timeout_s: float = 2.0
    first_byte_timeout_s: float = 120.0
    idle_timeout_s: float = 60.0
    keep_idle_s: float = 4.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} of a backend must be above 0, got {getattr(self, name)}")


class UpstreamConnection(asyncio.Protocol):
    """One connection. In use from `UpstreamPool.acquire` until its sink is told the end, or until `abort`."""

    def __init__(self, pool: UpstreamPool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._sink: ResponseSink | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._num_requests = 0
        self._paused = False
        self._lost = False
        self.deadline_s = float("inf")
        self.idle_since_s = 0.0
        self._reset()

    def _reset(self) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._head_complete = False
        self._until_close = True
        self._body: list[bytes] = []
        self._body_begun = False
        self._complete = False
        self._keeps_alive = False

    @property
    def is_usable(self) -> bool:
        """Whether a request may be sent on it."""
        return not self._lost and self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes, sink: ResponseSink, *, first_byte_timeout_s: float) -> None:
        """Send a whole request; its answer goes to `sink`."""
        assert self._sink is None, "one request at a time"
        assert self._transport is not None
        self._reset()
        self._sink = sink
        self._num_requests += 1
        self.deadline_s = self._pool.now_s() + first_byte_timeout_s
        self._transport.write(request)

    def pause(self) -> None:
        """Stop reading: whoever gets the answer cannot keep up."""
        if not self._paused and self.is_usable and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._paused:
            self._paused = False
            if self.is_usable and self._transport is not None:
                self.deadline_s = self._pool.now_s() + self._pool.limits.idle_timeout_s
                self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once, answered or not; the sink hears nothing more."""
        self._sink = None
        self._lost = True
        if self._transport is not None:
            self._transport.abort()
        self._pool.remove(self)

    def on_deadline(self) -> None:
        """The backend has been silent for too long. Does not count while reading is paused."""
        if self._paused:
            self.deadline_s = self._pool.now_s() + self._pool.limits.idle_timeout_s
        elif self._body_begun:
            self._fail(UpstreamError(AttemptResult.IDLE_TIMEOUT, "the backend went silent within its answer"))
        else:
            self._fail(UpstreamError(AttemptResult.FIRST_BYTE_TIMEOUT, "the backend did not begin to answer in time"))

    # --- asyncio -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed: the end of an answer without a length, or a failure."""
        self._lost = True
        if self._sink is None:
            self._pool.remove(self)
        elif exc is None and self._head_complete and self._until_close:
            self._finish()
        else:
            nothing_came = not self._head_bytes
            self._fail(
                UpstreamError(
                    AttemptResult.CUT,
                    "the backend closed the connection before its answer was complete",
                    is_stale=nothing_came and self._num_requests > 1,
                )
            )

    def data_received(self, data: bytes) -> None:
        """Parse, then hand over what this read brought of the body in one piece."""
        if self._sink is None:
            self.abort()  # an answer to nothing
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(UpstreamError(AttemptResult.CUT, "the backend's answer is not valid HTTP/1.1"))
            return
        sink = self._sink
        if self._body and sink is not None:
            body = self._body
            data = body[0] if len(body) == 1 else b"".join(body)
            self._body = []
            self._body_begun = True
            if not self._complete:
                self.deadline_s = self._pool.now_s() + self._pool.limits.idle_timeout_s
            sink.on_data(data)
        if self._complete and self._sink is not None:
            self._finish()

    # --- httptools ---------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """An answer begins. There is one per request: what a backend puts behind it must not become part of it."""
        if self._complete:
            raise ValueError("more than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; trailers are dropped."""
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > _MAX_HEAD_BYTES:
            raise ValueError("head too large")
        if self._head_complete:
            return  # a trailer
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._until_close = False
        self._headers.append((name, value))

    def on_status(self, status: bytes) -> None:
        """The answer has begun."""
        self._head_bytes += len(status) + 1

    def on_headers_complete(self) -> None:
        """The head is complete, unless it is one of an informational answer."""
        status = self._parser.get_status_code()
        if status < 200:
            self._headers = []
            return
        if status in (204, 304):
            self._until_close = False
        self._head_complete = True
        if self._sink is not None:
            self._sink.on_head(status, self._headers)

    def on_body(self, body: bytes) -> None:
        """Part of the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """The answer is complete."""
        if self._head_complete:  # else it was an informational answer
            self._complete = True
            self._keeps_alive = self._parser.should_keep_alive()

    def _finish(self) -> None:
        sink = self._sink
        self._sink = None
        self.deadline_s = float("inf")
        if self._keeps_alive and self.is_usable and not self._paused:
            self._pool.give_back(self)
        else:
            self.abort()
        if sink is not None:
            sink.on_end()

    def _fail(self, error: UpstreamError) -> None:
        sink = self._sink
        self.abort()
        if sink is not None:
            sink.on_failure(error)


class UpstreamPool:
    """The connections to one backend. Belongs to one event loop; `start` and `close` frame its life."""

    def __init__(self, url: str, limits: UpstreamLimits | None = None, *, ca_file: str | None = None) -> None:
        """`url` is scheme, host, port and an optional path that comes before every request's.

        Raises:
            ConfigError: the URL is not http(s)://host[:port][/path].
        """
        self.limits = limits or UpstreamLimits()
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise ConfigError("the url of a backend must be http(s)://host[:port][/path], without user and query")
        self._ssl = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        self._host = parts.hostname
        self._port = parts.port or (443 if self._ssl else 80)
        self.host_header = parts.netloc.encode()
        self.path_prefix = parts.path.rstrip("/").encode()
        self._idle: deque[UpstreamConnection] = deque()
        self._busy: dict[UpstreamConnection, None] = {}
        self._num_connecting = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def num_busy(self) -> int:
        """Connections in use or being made."""
        return len(self._busy) + self._num_connecting

    @property
    def num_open(self) -> int:
        """Connections open."""
        return len(self._busy) + len(self._idle)

    def now_s(self) -> float:
        """The loop's time."""
        assert self._loop is not None
        return self._loop.time()

    async def acquire(self, *, fresh: bool = False) -> UpstreamConnection:
        """A connection to send one request on; a new one if `fresh`.

        Raises:
            UpstreamError: every connection is in use (`BUSY`), or none could be made (`CONNECT_ERROR`).
        """
        if self._loop is None:
            self._start()
        while self._idle and not fresh:
            connection = self._idle.pop()
            if connection.is_usable:
                self._busy[connection] = None
                return connection
        limits = self.limits
        if self.num_busy >= limits.max_connections:
            raise UpstreamError(AttemptResult.BUSY, f"all {limits.max_connections} connections to the backend are in use")
        assert self._loop is not None
        connection = UpstreamConnection(self)
        self._num_connecting += 1
        try:
            async with asyncio.timeout(limits.connect_timeout_s):
                await self._loop.create_connection(lambda: connection, self._host, self._port, ssl=self._ssl)
        except TimeoutError:
            connection.abort()
            message = f"no connection to the backend within {limits.connect_timeout_s:g} s"
            raise UpstreamError(AttemptResult.CONNECT_ERROR, message) from None
        except OSError as error:
            connection.abort()
            # `strerror` of asyncio holds the address, which is nobody's business.
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else type(error).__name__
            raise UpstreamError(AttemptResult.CONNECT_ERROR, f"no connection to the backend: {reason}") from None
        except BaseException:
            connection.abort()
            raise
        finally:
            self._num_connecting -= 1
        self._busy[connection] = None
        return connection

    def give_back(self, connection: UpstreamConnection) -> None:
        """It has read a whole answer and may be used again."""
        self._busy.pop(connection, None)
        connection.idle_since_s = self.now_s()
        self._idle.append(connection)

    def remove(self, connection: UpstreamConnection) -> None:
        """It is closed."""
        self._busy.pop(connection, None)
        with suppress(ValueError):
            self._idle.remove(connection)

    async def close(self) -> None:
        """Close every connection, also those in use."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in [*self._busy, *self._idle]:
            connection.abort()
        await asyncio.sleep(0)

    def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._sweeper = self._loop.create_task(self._sweep())

    async def _sweep(self) -> None:
        """End calls that are overdue and connections idle for too long: one walk instead of a timer per request."""
        limits = self.limits
        shortest_s = min(limits.first_byte_timeout_s, limits.idle_timeout_s, limits.keep_idle_s)
        interval_s = max(0.01, min(0.5, shortest_s / 10.0))
        while True:
            await asyncio.sleep(interval_s)
            now_s = self.now_s()
            for connection in [each for each in self._busy if each.deadline_s < now_s]:
                connection.on_deadline()
            while self._idle and self._idle[0].idle_since_s < now_s - limits.keep_idle_s:
                self._idle[0].abort()
