"""One client's connection: an `asyncio.Protocol` on httptools that hands over whole requests.

A request is handed over when its body has arrived, so that a slow sender holds memory (bounded) and nothing else. A client
that leaves is noticed in every phase, also while a further request waits behind the one being answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import httptools

from argosy.errors import ArgosyError, BodyTimeout, ConfigError, InvalidRequest, PayloadTooLarge
from argosy.fleet.gateway.http_messages import REASONS, HttpRequest, ResponseWriter
from argosy.fleet.gateway.replies import error_body
from argosy.fleet.policies.outcomes import Outcome, RequestDropped
from argosy.observe.logs import log_event

if TYPE_CHECKING:
    from argosy.fleet.gateway.http_server import HttpServer

_LOGGER = logging.getLogger("argosy.gateway.http")
_LINGER_S = 2.0
_OF_UPGRADES = frozenset({b"connection", b"upgrade", b"http2-settings"})


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


class ClientConnection(asyncio.Protocol):
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
        self._ignores_upgrade = False
        self._is_closed = False
        self._held_bytes = self._body_bytes = 0

    # --- asyncio -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands; one too many is closed at once."""
        self._transport = cast(asyncio.Transport, transport)
        if not self.server.adopt(self):
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=self._limits.buffer_bytes)
        peer = transport.get_extra_info("peername")
        self._address = peer[0] if isinstance(peer, tuple) else ""
        self.deadline_s = self.server.now_s() + self._limits.head_timeout_s

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002, asyncio's signature
        """The client has left: what is being answered is cancelled, what waits is forgotten."""
        self._is_closed = True
        self._hold(-self._held_bytes)
        self.server.forget(self)
        self._waiting.clear()
        if self._writer is not None:
            self._writer.client_gone = True
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse. What is not HTTP/1.1 is refused, after the answers that are due before it."""
        if self._refusal is not None:
            return
        try:
            while data:
                try:
                    self._parser.feed_data(data)
                    return
                except httptools.HttpParserUpgrade as upgrade:
                    if not self._ignores_upgrade:
                        # A CONNECT is answered as what it is, a request for what is not here; a tunnel follows it.
                        self._refuse(InvalidRequest("this server does not switch protocols"))
                        return
                    data = self._head_without_upgrade() + data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(
                cause
                if isinstance(cause, ArgosyError)
                else InvalidRequest("the request is not valid HTTP/1.1", code="bad_http_request")
            )

    def eof_received(self) -> bool:
        """A client that sends no more is gone."""
        return False

    def pause_writing(self) -> None:
        """The client reads more slowly than it is written to."""
        self.is_paused = True
        self.deadline_s = self.server.now_s() + self._limits.stall_timeout_s
        if self._writer is not None and self._writer.on_pause is not None:
            self._writer.on_pause()

    def resume_writing(self) -> None:
        """It has caught up."""
        self.is_paused = False
        self._set_deadline()
        if self._writer is not None and self._writer.on_resume is not None:
            self._writer.on_resume()

    # --- httptools ---------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request's first byte."""
        self._reading_message = True
        self._head_complete = False
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._body: bytes | bytearray = b""
        self._body_bytes = 0
        if self._task is None:
            self.deadline_s = self.server.now_s() + self._limits.head_timeout_s

    def on_url(self, url: bytes) -> None:
        """Part of its target."""
        self._target += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """One of its headers; trailers are counted and dropped."""
        self._count_head(len(name) + len(value) + 4)
        if self._head_complete:
            return  # a trailer
        name = name.lower()
        headers = self._headers
        headers[name] = value if name not in headers else b"%b, %b" % (headers[name], value)

    def on_headers_complete(self) -> None:
        """Its head is complete: refuse a body that is too large before it is sent, and ask for it if that is wished."""
        self._head_complete = True
        headers = self._headers
        self._ignores_upgrade = self._parser.should_upgrade() and self._parser.get_method() != b"CONNECT"
        if self._ignores_upgrade:
            return
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
        """Part of its body."""
        self._body_bytes += len(body)
        self._hold(len(body))
        if self._body_bytes > self._limits.max_body_bytes:
            raise self._body_too_large()
        if self.server.held_bytes > self._limits.max_held_bytes:
            raise RequestDropped(
                Outcome.REJECTED_CAPACITY, "the gateway holds as many bodies as it may; try again", retry_after_s=1.0
            )
        if not self._body:
            self._body = body
        else:
            # In one piece: of a body in chunks of a byte, the pieces would take many times the memory that is counted.
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += body

    def on_message_complete(self) -> None:
        """It is complete: answer it, or let it wait its turn."""
        if self._ignores_upgrade:
            return  # it is read once more, see `data_received`
        self._reading_message = self._expects_continue = False
        parser = self._parser
        target, _, query = self._target.decode("latin-1").partition("?")
        request = HttpRequest(
            parser.get_method().decode(),
            target,
            query,
            self._headers,
            bytes(self._body),
            parser.should_keep_alive() and not parser.should_upgrade(),
            parser.get_http_version() == "1.1",
            self._address,
        )
        self._body = b""
        self._body_bytes = 0
        self._waiting.append(request)
        if self._task is None:
            self._answer_next()
        elif len(self._waiting) > self._limits.max_pipelined:
            self._transport.pause_reading()

    # --- answering ---------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Bytes for the client; nothing happens if it has left."""
        if not self._is_closed:
            self._transport.write(data)
            if self.is_paused:
                self.deadline_s = min(self.deadline_s, self.server.now_s() + self._limits.stall_timeout_s)

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def abort_after_flush(self) -> None:
        """Close when what was written has left."""
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

    def _head_without_upgrade(self) -> bytes:
        """The head of the request as if it had not asked for another protocol, which a server may ignore (RFC 9110, section
        7.8), to be read once more: the parser takes such a request to have no body.

        Java's HTTP client asks for HTTP/2 with each first request.
        """
        parser = self._parser
        lines = [b"%b %b HTTP/%b\r\n" % (parser.get_method(), self._target, parser.get_http_version().encode())]
        lines += [b"%b: %b\r\n" % pair for pair in self._headers.items() if pair[0] not in _OF_UPGRADES]
        self._parser = httptools.HttpRequestParser(self)
        return b"".join([*lines, b"\r\n"])

    def _refuse(self, error: ArgosyError) -> None:
        """Nothing further of this connection is understood; what came before is still answered."""
        self._refusal = error
        self._reading_message = False
        self._body = b""
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
        self._transport.write(b"HTTP/1.1 %d %b\r\n%b%b%b" % (status, REASONS[status], self.server.date_line, lines, body))
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
