"""HTTP/1.1 for a load generator: one request and its streamed answer over an asyncio transport, parsed by httptools.

A general client spends more time on a token than a small model does on computing it, and reads the clock only when its
own tasks get their turn. Here the clock is read once per piece received, before anything is parsed.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

from argosy.errors import ConfigError


class ConnectionCut(Exception):
    """The connection failed or ended before the answer was complete; `str` says how."""


class AnswerSink(Protocol):
    """Takes an answer as it comes; `now_s` is when its bytes were received."""

    def on_status(self, status: int) -> None:
        """The status line and the headers are complete."""
        ...

    def on_body(self, body: bytes, now_s: float) -> None:
        """A piece of the body, transfer coding removed."""
        ...


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a server is: scheme, host, port, and the path that its endpoints begin with."""

    is_tls: bool
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, base_url: str) -> Origin:
        """From a URL, with or without `/v1` at its end.

        Raises:
            ConfigError: not an http or https URL with a host.
        """
        try:
            parts = urlsplit(base_url.strip())
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"--base-url: {base_url!r} is no URL: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ConfigError(f"--base-url: {base_url!r} must be like http://127.0.0.1:8000")
        is_tls = parts.scheme == "https"
        return cls(is_tls, parts.hostname, port or (443 if is_tls else 80), parts.path.rstrip("/").removesuffix("/v1"))

    @property
    def authority(self) -> str:
        """For the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """As a URL, without `/v1`."""
        return f"{'https' if self.is_tls else 'http'}://{self.authority}{self.path}"


class HttpConnection(asyncio.Protocol):
    """One connection. Answers one request at a time; may be used again while `is_reusable`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._sink: AnswerSink | None = None
        self._done: asyncio.Future[None] | None = None
        self._now_s = 0.0
        self._ends_with_connection = True
        self._has_headers = False
        self.is_reusable = False

    async def exchange(self, request: bytes, sink: AnswerSink) -> None:
        """Send one request and give its answer to `sink`; returns when it is complete.

        Cancelling closes the connection, which tells the server that nobody waits any more.

        Raises:
            ConnectionCut: the answer is not complete and will not be.
        """
        assert self._transport is not None
        assert self._done is None
        if self._transport.is_closing():
            raise ConnectionCut("the server closed the connection")
        self.is_reusable = False
        self._parser = httptools.HttpResponseParser(self)
        self._sink, self._ends_with_connection = sink, True
        self._done = asyncio.get_running_loop().create_future()
        try:
            self._transport.write(request)
            await self._done
        except BaseException:
            self.close()
            raise
        finally:
            self._done = self._sink = self._parser = None

    def close(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: D102
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses

    def data_received(self, data: bytes) -> None:  # noqa: D102
        self._now_s = self._clock()
        if self._parser is None:
            self.close()  # bytes that nobody asked for
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionCut(f"the server does not speak HTTP/1.1: {error}"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102
        self.is_reusable = False
        if exc is None and self._has_headers and self._ends_with_connection:
            self._finish()
        else:
            self._fail(ConnectionCut(str(exc) if exc else "the server closed the connection before the answer was complete"))

    # What httptools calls.

    def on_header(self, name: bytes, _value: bytes) -> None:  # noqa: D102
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._ends_with_connection = False

    def on_headers_complete(self) -> None:  # noqa: D102
        assert self._sink is not None
        assert self._parser is not None
        self._sink.on_status(self._parser.get_status_code())
        self._has_headers = True

    def on_body(self, body: bytes) -> None:  # noqa: D102
        if self._sink is not None:
            self._sink.on_body(body, self._now_s)

    def on_message_complete(self) -> None:  # noqa: D102
        assert self._parser is not None
        self.is_reusable = bool(self._parser.should_keep_alive())
        self._finish()

    def _finish(self) -> None:
        self._has_headers = False
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _fail(self, error: ConnectionCut) -> None:
        self._has_headers = False
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)


class ConnectionPool:
    """Connections to one origin, as many as requests are under way; an idle one is used again."""

    def __init__(self, origin: Origin, clock: Callable[[], float]) -> None:
        self._origin = origin
        self._clock = clock
        self._idle: list[HttpConnection] = []
        self._tls = ssl.create_default_context() if origin.is_tls else None

    async def exchange(self, request: bytes, sink: AnswerSink) -> None:
        """As `HttpConnection.exchange`, on an idle connection or a fresh one.

        A server may close an idle connection in the very moment it is used: nothing of the answer having come, the
        request is sent again on a fresh one.

        Raises:
            OSError: no connection can be made.
            ConnectionCut: the answer was cut.
        """
        while self._idle:
            connection = self._idle.pop()
            watched = _Watched(sink)
            try:
                await self._run(connection, request, watched)
                return
            except ConnectionCut:
                if watched.has_begun:
                    raise
        await self._run(await self._connect(), request, sink)

    async def close(self) -> None:
        """Close the idle connections."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        await asyncio.sleep(0)

    async def _run(self, connection: HttpConnection, request: bytes, sink: AnswerSink) -> None:
        await connection.exchange(request, sink)
        if connection.is_reusable:
            self._idle.append(connection)
        else:
            connection.close()

    async def _connect(self) -> HttpConnection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: HttpConnection(self._clock), self._origin.host, self._origin.port, ssl=self._tls
        )
        return connection


class _Watched:
    """An `AnswerSink` that knows whether anything has come."""

    def __init__(self, sink: AnswerSink) -> None:
        self._sink = sink
        self.has_begun = False

    def on_status(self, status: int) -> None:
        self.has_begun = True
        self._sink.on_status(status)

    def on_body(self, body: bytes, now_s: float) -> None:
        self._sink.on_body(body, now_s)
