"""Answers the health paths on a port of their own, from whatever event loop it is started on.

A probe must not wait behind a thousand streams: kubelets give it a second. This listener does nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib

from argosy.fleet.gateway.health_endpoints import GatewayHealth

_HEAD_TIMEOUT_S = 5.0
_MAX_HEAD_BYTES = 8192
_MAX_CONNECTIONS = 64
_REASONS = {200: b"OK", 400: b"Bad Request", 404: b"Not Found", 405: b"Method Not Allowed", 503: b"Service Unavailable"}


class HealthServer:
    """One answer per connection. Belongs to the event loop that starts it."""

    def __init__(self, health: GatewayHealth) -> None:
        self._health = health
        self._server: asyncio.Server | None = None
        self._open = 0

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, a free one for 0.

        Raises:
            OSError: the address cannot be bound.
        """
        self._server = await asyncio.start_server(self._on_connection, host, port, limit=_MAX_HEAD_BYTES)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening. Idempotent."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= _MAX_CONNECTIONS:
                async with asyncio.timeout(_HEAD_TIMEOUT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._answer(head))
                    await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # a client that says nothing sensible gets no answer
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def _answer(self, head: bytes) -> bytes:
        line = head.split(b"\r\n", 1)[0].split(b" ")
        if len(line) != 3:
            return _response(400, b"", has_body=True)
        method, target = line[0], line[1].split(b"?", 1)[0]
        if method not in (b"GET", b"HEAD"):
            return _response(405, b"", has_body=True)
        status, body = self._health.answer(target.decode("latin-1")) or (404, b'{"status":"not found"}')
        return _response(status, body, has_body=method == b"GET")


def _response(status: int, body: bytes, *, has_body: bool) -> bytes:
    head = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    return head % (status, _REASONS[status], len(body)) + (body if has_body else b"")
