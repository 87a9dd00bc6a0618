"""HTTP/1.1 for clients: a lean `asyncio.Protocol` on httptools that hands over whole requests and takes bytes back.

A request is handed over when its body has arrived, so that a slow sender holds memory (bounded) and nothing else. A client
that leaves is noticed in every phase, also while a further request waits behind the one being answered.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from types import MappingProxyType
from typing import cast

import httptools

from argosy.errors import ArgosyError, BodyTimeout, ConfigError, InvalidRequest, PayloadTooLarge
from argosy.fleet.gateway.replies import error_body
from argosy.fleet.policies.outcomes import Outcome, RequestDropped
from argosy.observe.logs import log_event

_LOGGER = logging.getLogger("argosy.gateway.http")
_REASONS = MappingProxyType({status.value: status.phrase.encode() for status in HTTPStatus})
_LINGER_S = 2.0
RawHeaders = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What a client may send, and how long it may take.

    Attributes:
        max_pipelined: requests that may wait behind the one being answered, before reading stops.
        max_connections: further ones are closed at once.
        head_timeout_s, body_timeout_s: from the first byte of a head, or from its end, to the last byte.
        keep_alive_s: an idle connection is closed after it.
        stall_timeout_s: a client that takes no byte of its answer for so long is cut off.
        buffer_bytes: of an answer, above which its backend is no longer read from.
        max_held_bytes: bodies of all requests that arrive, wait or are being answered; a further one is refused.
    """

    max_head_bytes: int = 64 * 1024
    max_body_bytes: int = 32 * 1024 * 1024
    max_pipelined: int = 4
    max_connections: int = 10_000
    head_timeout_s: float = 30.0
    body_timeout_s: float = 60.0
    keep_alive_s: float = 75.0
    stall_timeout_s: float = 60.0
    buffer_bytes: int = 256 * 1024
    max_held_bytes: int = 1024 * 1024 * 1024

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} of the server must be above 0, got {getattr(self, name)}")


@dataclass(slots=True, eq=False)
class HttpRequest:
    """A request whose body is complete.

    Attributes:
        path: without the query, as sent.
        headers: by lower-case name; values of a repeated name are joined with commas.
        keep_alive: whether the connection may go on after the answer.
        chunked: whether the client understands chunked answers (HTTP/1.1).
    """

    method: str
    path: str
    query: str
    headers: dict[bytes, bytes]
    body: bytes
    keep_alive: bool
    chunked: bool
    client_address: str


Handler = Callable[["HttpRequest", "ResponseWriter"], Awaitable[None]]


class ResponseWriter:
    """The answer to one request. Everything it is given goes to the socket's buffer at once.

    Attributes:
        started: the head has been written; finished: and the last byte.
        client_gone: the connection is closed; writing does nothing.
        on_pause, on_resume: called when the buffer is above `buffer_bytes` and when it has drained.
    """

    __slots__ = (
        "_chunked", "_connection", "_keep_alive", "_request", "client_gone", "finished", "on_pause", "on_resume", "started",
    )  # fmt: skip

    def __init__(self, connection: _ClientConnection, request: HttpRequest) -> None:
        self._connection = connection
        self._request = request
        self._keep_alive = request.keep_alive
        self._chunked = False
        self.started = False
        self.finished = False
        self.client_gone = False
        self.on_pause: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None

    def send(self, status: int, headers: RawHeaders, body: bytes) -> None:
        """A whole answer."""
        shown = b"" if self._request.method == "HEAD" else body
        self._write(self._head(status, headers, b"content-length: %d\r\n" % len(body)) + shown)
        self.finished = True

    def start(self, status: int, headers: RawHeaders, first: bytes) -> None:
        """The head of an answer whose length is not known, and its first bytes."""
        if self._request.chunked:
            self._chunked = True
            head = self._head(status, headers, b"transfer-encoding: chunked\r\n")
            self._write(b"%b%x\r\n%b\r\n" % (head, len(first), first) if first else head)
        else:
            self._keep_alive = False
            self._write(self._head(status, headers, b"") + first)

    def write(self, data: bytes) -> None:
        """Further bytes."""
        if data:
            self._write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def finish(self, last: bytes = b"") -> None:
        """The last bytes."""
        if self._chunked:
            self._write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last) if last else b"0\r\n\r\n")
        elif last:
            self._write(last)
        self.finished = True

    def break_off(self) -> None:
        """End an answer that cannot be completed so that the client sees it was cut."""
        self._keep_alive = False
        self.finished = True
        self._connection.abort_after_flush()

    @property
    def request_bytes(self) -> int:
        """Of the request's body."""
        return len(self._request.body)

    @property
    def is_paused(self) -> bool:
        """Whether the client takes bytes more slowly than they come."""
        return self._connection.is_paused

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection goes on."""
        return self._keep_alive

    def _write(self, data: bytes) -> None:
        self._connection.write(data)

    def _head(self, status: int, headers: RawHeaders, length: bytes) -> bytes:
        self.started = True
        server = self._connection.server
        if server.is_draining:
            self._keep_alive = False
        lines = [b"HTTP/1.1 %d %b\r\n" % (status, _REASONS.get(status, b"Unknown")), server.date_line, length]
        lines += [b"%b: %b\r\n" % pair for pair in headers]
        lines.append(b"\r\n" if self._keep_alive else b"connection: close\r\n\r\n")
        return b"".join(lines)


class _ClientConnection(asyncio.Protocol):
    """One connection: at most one request is being answered, a few may wait behind it."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.is_paused = False
        self.deadline_s = 0.0
        self._limits = server.limits
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # until connection_made
        self._parser = httptools.HttpRequestParser(self)
        self._address = ""
        self._waiting: deque[HttpRequest] = deque()
        self._task: asyncio.Task[None] | None = None
        self._writer: ResponseWriter | None = None
        self._refusal: ArgosyError | None = None
        self._reading_message = False
        self._head_complete = False
        self._expects_continue = False
        self._is_closed = False
        self._held_bytes = self._body_bytes = 0

    # --- asyncio -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self.server.adopt(self):
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=self._limits.buffer_bytes)
        peer = transport.get_extra_info("peername")
        self._address = peer[0] if isinstance(peer, tuple) else ""
        self.deadline_s = self.server.now_s() + self._limits.head_timeout_s

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002, asyncio's signature
        self._is_closed = True
        self._hold(-self._held_bytes)
        self.server.forget(self)
        self._waiting.clear()
        if self._writer is not None:
            self._writer.client_gone = True
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Nothing is switched: the request is answered as it is. What follows it was meant for another protocol.
            self._refuse(InvalidRequest("this server does not switch protocols"))
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(
                cause
                if isinstance(cause, ArgosyError)
                else InvalidRequest("the request is not valid HTTP/1.1", code="bad_http_request")
            )

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.is_paused = True
        self.deadline_s = self.server.now_s() + self._limits.stall_timeout_s
        if self._writer is not None and self._writer.on_pause is not None:
            self._writer.on_pause()

    def resume_writing(self) -> None:
        self.is_paused = False
        self._set_deadline()
        if self._writer is not None and self._writer.on_resume is not None:
            self._writer.on_resume()

    # --- httptools ---------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._reading_message = True
        self._head_complete = False
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        if self._task is None:
            self.deadline_s = self.server.now_s() + self._limits.head_timeout_s

    def on_url(self, url: bytes) -> None:
        self._target += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value) + 4)
        if self._head_complete:
            return  # a trailer
        name = name.lower()
        headers = self._headers
        headers[name] = value if name not in headers else b"%b, %b" % (headers[name], value)

    def on_headers_complete(self) -> None:
        self._head_complete = True
        headers = self._headers
        declared = headers.get(b"content-length", b"0").lstrip(b"0")
        if len(declared) > 15 or int(declared or b"0") > self._limits.max_body_bytes:
            raise self._body_too_large()
        expectation = headers.get(b"expect")
        if expectation is not None:
            if expectation.lower() != b"100-continue":
                raise ExpectationFailed(f"expect: {expectation[:40].decode('latin-1')!r} is not known here")
            self._expects_continue = True
            self._send_continue()
        if self._task is None:
            self.deadline_s = self.server.now_s() + self._limits.body_timeout_s

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._hold(len(body))
        if self._body_bytes > self._limits.max_body_bytes:
            raise self._body_too_large()
        if self.server.held_bytes > self._limits.max_held_bytes:
            raise RequestDropped(
                Outcome.REJECTED_CAPACITY, "the gateway holds as many bodies as it may; try again", retry_after_s=1.0
            )
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._reading_message = self._expects_continue = False
        parser = self._parser
        target, _, query = self._target.decode("latin-1").partition("?")
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        request = HttpRequest(
            parser.get_method().decode(),
            target,
            query,
            self._headers,
            body,
            parser.should_keep_alive() and not parser.should_upgrade(),
            parser.get_http_version() == "1.1",
            self._address,
        )
        self._body = []
        self._waiting.append(request)
        if self._task is None:
            self._answer_next()
        elif len(self._waiting) > self._limits.max_pipelined:
            self._transport.pause_reading()

    # --- answering ---------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if not self._is_closed:
            self._transport.write(data)
            if self.is_paused:
                self.deadline_s = min(self.deadline_s, self.server.now_s() + self._limits.stall_timeout_s)

    def abort_after_flush(self) -> None:
        self._transport.close()

    def close_if_idle(self) -> None:
        """Close unless a request is being answered or arriving."""
        if self._task is None and not self._reading_message:
            self._transport.close()

    def on_deadline(self) -> None:
        """Time is up for whatever the connection waits for."""
        if self.is_paused or self._refusal is not None:
            self._transport.abort()
        elif self._task is not None:
            self._set_deadline()
        elif self._reading_message and self._head_complete:
            self._refuse(BodyTimeout(f"the body did not arrive within {self._limits.body_timeout_s:g} s"))
        elif self._reading_message:
            self._refuse(BodyTimeout(f"the head did not arrive within {self._limits.head_timeout_s:g} s"))
        else:
            self._transport.close()

    def _answer_next(self) -> None:
        request = self._waiting.popleft()
        self._writer = ResponseWriter(self, request)
        self.deadline_s = float("inf")
        self._task = self.server.start_task(request, self._writer)
        self._task.add_done_callback(self._on_answered)

    def _on_answered(self, task: asyncio.Task[None]) -> None:
        writer = self._writer
        assert writer is not None
        self._task = self._writer = None
        self._hold(-min(self._held_bytes, writer.request_bytes))
        if task.cancelled():
            error: BaseException | None = None
        else:
            error = task.exception()
        if self._is_closed:
            return
        if error is not None:
            log_event(_LOGGER, logging.ERROR, "unexpected error", exc_info=(type(error), error, error.__traceback__))
        if not writer.finished:
            if writer.started:
                self._transport.abort()
                return
            body = error_body("internal error; the gateway's log has it", "api_error", None, "internal_error")
            writer.send(500, [(b"content-type", b"application/json")], body)
        if not writer.keeps_alive:
            self._transport.close()
        elif self._waiting:
            if len(self._waiting) <= self._limits.max_pipelined:
                self._transport.resume_reading()
            self._answer_next()
        elif self._refusal is not None:
            self._send_refusal()
        else:
            self._set_deadline()
            self._send_continue()
            if self.server.is_draining:
                self.close_if_idle()

    def _send_continue(self) -> None:
        if self._expects_continue and self._task is None:
            self._expects_continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _refuse(self, error: ArgosyError) -> None:
        """Nothing further of this connection is understood; what came before is still answered."""
        self._refusal = error
        self._reading_message = False
        self._body = []
        self._hold(-min(self._held_bytes, self._body_bytes))
        if self._task is None:
            self._send_refusal()

    def _send_refusal(self) -> None:
        """Answer, and read on for a moment: closing at once would reset the connection under the answer."""
        error = self._refusal
        assert error is not None
        body = error_body(error.message, error.type, error.param, error.code)
        lines = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        status = error.http_status
        self._transport.write(b"HTTP/1.1 %d %b\r\n%b%b%b" % (status, _REASONS[status], self.server.date_line, lines, body))
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self.deadline_s = self.server.now_s() + _LINGER_S

    def _set_deadline(self) -> None:
        limits, now_s = self._limits, self.server.now_s()
        if self._task is not None:
            self.deadline_s = float("inf")
        elif not self._reading_message:
            self.deadline_s = now_s + limits.keep_alive_s
        else:
            self.deadline_s = now_s + (limits.body_timeout_s if self._head_complete else limits.head_timeout_s)

    def _hold(self, num_bytes: int) -> None:
        self._held_bytes += num_bytes
        self.server.held_bytes += num_bytes

    def _count_head(self, num_bytes: int) -> None:
        self._head_bytes += num_bytes
        if self._head_bytes > self._limits.max_head_bytes:
            raise HeadersTooLarge(f"the request's head is larger than {self._limits.max_head_bytes} bytes, the limit")

    def _body_too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(f"the body is larger than {self._limits.max_body_bytes} bytes, the limit of this gateway")


class HeadersTooLarge(ArgosyError):
    """Request line and headers are above the limit."""

    http_status = 431
    type = "invalid_request_error"
    code = "headers_too_large"


class ExpectationFailed(ArgosyError):
    """An `expect` header other than 100-continue."""

    http_status = 417
    type = "invalid_request_error"
    code = "expectation_failed"


class HttpServer:
    """Listens, and keeps the connections. Belongs to one event loop.

    Attributes:
        is_draining: every answer from here on ends its connection.
        held_bytes: of the bodies of all requests that have not ended.
        date_line: header of every answer, renewed once a second.
    """

    def __init__(self, handler: Handler, limits: ServerLimits) -> None:
        self.limits = limits
        self.is_draining = False
        self.held_bytes = 0
        self.date_line = b""
        self._handler = handler
        self._connections: set[_ClientConnection] = set()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]  # until start
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int, *, reuse_port: bool = False, backlog: int = 2048) -> None:
        """Listen on `host`:`port`; port 0 takes a free one."""
        self._loop = asyncio.get_running_loop()
        self.date_line = _date_line()
        self._server = await self._loop.create_server(
            lambda: _ClientConnection(self), host, port, reuse_port=reuse_port, backlog=backlog
        )
        self._sweeper = self._loop.create_task(self._sweep())

    @property
    def port(self) -> int:
        """The port that is listened on."""
        assert self._server is not None, "start comes first"
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def num_connections(self) -> int:
        """Connections open."""
        return len(self._connections)

    @property
    def num_answering(self) -> int:
        """Requests being answered."""
        return len(self._tasks)

    def stop_accepting(self) -> None:
        """Close the listening socket and idle connections; the others end after their answer."""
        self.is_draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close_if_idle()

    async def close(self) -> None:
        """Cut everything off."""
        self.stop_accepting()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._connections):
            connection._transport.abort()
        if self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)

    def now_s(self) -> float:
        """The loop's time."""
        return self._loop.time()

    def adopt(self, connection: _ClientConnection) -> bool:
        """Take in a connection; False if there are too many."""
        if len(self._connections) >= self.limits.max_connections:
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: _ClientConnection) -> None:
        """It is closed."""
        self._connections.discard(connection)

    def start_task(self, request: HttpRequest, writer: ResponseWriter) -> asyncio.Task[None]:
        """Run the handler for one request."""
        task: asyncio.Task[None] = self._loop.create_task(self._handler(request, writer))  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _sweep(self) -> None:
        """End what has taken too long. One walk over all connections costs less than a timer per request."""
        limits = self.limits
        shortest_s = min(limits.head_timeout_s, limits.body_timeout_s, limits.keep_alive_s, limits.stall_timeout_s)
        while True:
            await asyncio.sleep(min(1.0, shortest_s / 4.0))
            self.date_line = _date_line()
            now_s = self.now_s()
            for connection in [each for each in self._connections if each.deadline_s < now_s]:
                connection.on_deadline()


def _date_line() -> bytes:
    return b"date: %b\r\n" % formatdate(time.time(), usegmt=True).encode()
