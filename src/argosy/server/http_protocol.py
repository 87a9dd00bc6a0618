"""uvicorn's HTTP/1.1 protocol with bounds on what a client may send before its request begins, and with disconnects
that reach the request being answered even when another one waits behind it on the same connection."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_HEAD_BYTES = 64 * 1024
MAX_PIPELINED = 4


class HeadTooLarge(Exception):
    """Request line and headers are above `MAX_HEAD_BYTES`; the parser turns this into status 400."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. A head that takes longer than `header_timeout_s` or more than `MAX_HEAD_BYTES` ends it.

    uvicorn tells only the request parsed last that the client has left, and stops reading, hence noticing, while one
    waits in its pipeline. Here the request being answered is told, and reading goes on for up to `MAX_PIPELINED` requests.
    """

    header_timeout_s = 30.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._answering: RequestResponseCycle | None = None
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock for the first head."""
        super().connection_made(transport)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request being answered, and forget those behind it."""
        self._stop_head_timer()
        self.pipeline.clear()
        cycle = self._answering
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A request's first byte has arrived."""
        super().on_message_begin()
        self._head_bytes = 0
        self._start_head_timer()

    def on_url(self, url: bytes) -> None:
        """Count the request line."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._stop_head_timer()
        super().on_headers_complete()
        if 0 < len(self.pipeline) <= MAX_PIPELINED:
            self.flow.resume_reading()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            raise HeadTooLarge

    def _start_head_timer(self) -> None:
        self._stop_head_timer()
        self._head_timer = self.loop.call_later(self.header_timeout_s, self.transport.close)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def protocol_class(header_timeout_s: float) -> type[BoundedHttpProtocol]:
    """The protocol with its timeout bound, as uvicorn instantiates it by itself."""
    return type("HttpProtocol", (BoundedHttpProtocol,), {"header_timeout_s": header_timeout_s})
