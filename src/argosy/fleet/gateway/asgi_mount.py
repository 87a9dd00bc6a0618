"""An ASGI application behind the gateway's own HTTP server: for the admin API, never for the data path."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote

from argosy.fleet.gateway.http_messages import HttpRequest, ResponseWriter

Message = MutableMapping[str, Any]
AsgiApp = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]


class AsgiMount:
    """Answers requests by an application. Its answers are sent when they are complete."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def handle(self, request: HttpRequest, writer: ResponseWriter) -> None:
        """Answer one request. A client that leaves cancels it."""
        call = _Call(request)
        await self._app(call.scope, call.receive, call.send)
        if not call.is_complete:
            raise RuntimeError("the application ended before its answer was complete")
        headers = [pair for pair in call.headers if pair[0].lower() != b"content-length"]
        writer.send(call.status, headers, b"".join(call.body))


class _Call:
    """One request as ASGI has it."""

    def __init__(self, request: HttpRequest) -> None:
        self._request: HttpRequest | None = request
        self.status = 500
        self.headers: list[tuple[bytes, bytes]] = []
        self.body: list[bytes] = []
        self.is_complete = False
        self.scope: MutableMapping[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": unquote(request.path),
            "raw_path": request.path.encode("latin-1"),
            "query_string": request.query.encode("latin-1"),
            "root_path": "",
            "headers": list(request.headers.items()),
            "client": (request.client_address, 0),
            "server": None,
        }

    async def receive(self) -> Message:
        request, self._request = self._request, None
        if request is None:
            await asyncio.get_running_loop().create_future()  # until the task is cancelled: the client has left
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": request.body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message.get("headers", ()))
        elif message["type"] == "http.response.body":
            self.body.append(message.get("body", b""))
            self.is_complete = not message.get("more_body", False)
