"""A client's request as it is handed over, and the answer as it is taken back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argosy.fleet.gateway.client_connection import ClientConnection

REASONS = MappingProxyType({status.value: status.phrase.encode() for status in HTTPStatus})
RawHeaders = Iterable[tuple[bytes, bytes]]


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

    def __init__(self, connection: ClientConnection, request: HttpRequest) -> None:
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
        lines = [b"HTTP/1.1 %d %b\r\n" % (status, REASONS.get(status, b"Unknown")), server.date_line, length]
        lines += [b"%b: %b\r\n" % pair for pair in headers]
        lines.append(b"\r\n" if self._keep_alive else b"connection: close\r\n\r\n")
        return b"".join(lines)
