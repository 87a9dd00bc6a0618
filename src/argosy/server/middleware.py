"""What happens around every request: its id, keys, limits, the last resort for faults, one log line, metrics."""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from contextlib import suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from argosy.errors import ArgosyError, InvalidRequest, QueueFull, Unauthorized
from argosy.observe.logs import log_event
from argosy.observe.traceparent import parse_traceparent
from argosy.server.auth import is_known_key, presented_key
from argosy.server.connection import ClientGone
from argosy.server.errors import error_response, internal_error_bytes, json_response, loggable
from argosy.server.state import RequestRecord, ServerState

_LOGGER = logging.getLogger("argosy.server")
_ACCESS = logging.getLogger("argosy.access")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
CLIENT_GONE_STATUS = 499
LINGER_S = 2.0


def is_guarded(path: str) -> bool:
    """Whether a path does work or tells about models, and so needs a key if keys are set."""
    return path.startswith("/v1/") or path in ("/v1", "/tokenize", "/detokenize")


class RequestBoundary:
    """The outermost layer (ASGI)."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(self._state, scope, receive, send)
        await exchange.run(self._app)


class _Exchange:
    """One request and its response."""

    def __init__(self, state: ServerState, scope: Scope, receive: Receive, send: Send) -> None:
        self._state = state
        self._scope = scope
        self._receive = receive
        self._send_raw = send
        self._headers = Headers(scope=scope)
        self._guarded = is_guarded(scope["path"])
        given = self._headers.get("x-request-id", "")
        self._id_is_bad = bool(given) and _REQUEST_ID.fullmatch(given) is None
        request_id = given if given and not self._id_is_bad else f"req-{uuid.uuid4().hex}"
        self.record = RequestRecord(request_id, state.clock(), trace=parse_traceparent(self._headers.get("traceparent", "")))
        self.status = 0
        scope["argosy.record"] = self.record

    async def run(self, app: ASGIApp) -> None:
        state = self._state
        state.http_metrics.started()
        state.in_flight += self._guarded
        try:
            self._admit()
            await app(self._scope, self._receive, self._send)
        except (ClientGone, ClientDisconnect):
            self.record.client_gone = True
        except ArgosyError as error:
            self.record.error = loggable(error)
            await self._answer(error_response(error))
        except Exception:
            log_event(_LOGGER, logging.ERROR, "unexpected error", exc_info=True, request_id=self.record.request_id)
            self.record.error = "internal error"
            await self._answer(json_response(internal_error_bytes(self.record.request_id), 500))
        except asyncio.CancelledError:
            self.record.error = "cancelled by the server's shutdown"
            raise
        finally:
            state.in_flight -= self._guarded
            self._report()

    def _admit(self) -> None:
        """Raise what keeps the request from being looked at."""
        if self._id_is_bad:
            raise InvalidRequest("x-request-id takes 1 to 128 letters, digits and . _ : / + = @ -", param="x-request-id")
        if not self._guarded:
            return
        digests = self._state.config.api_key_digests
        if digests:
            key = presented_key(self._headers)
            if key is None:
                raise Unauthorized("an API key is needed: send the header Authorization: Bearer <key>")
            if not is_known_key(key, digests):
                raise Unauthorized("the API key is not known here")
        limit = self._state.config.max_concurrent_requests
        if limit is not None and self._state.in_flight > limit:
            raise QueueFull(f"{limit} requests are being answered, the limit of this server; try again")

    async def _answer(self, response: Response) -> None:
        """Send an error, if there is still somebody to read it and nothing has been sent."""
        if self.status:
            raise RuntimeError("the response failed after its head was sent")  # the HTTP server cuts the connection
        if response.headers.get("connection") == "close":
            await self._answer_and_linger(response)
        else:
            await response(self._scope, self._receive, self._send)

    async def _answer_and_linger(self, response: Response) -> None:
        """Answer before the body has been read, and go on reading for a moment: closing at once would reset the
        connection and could destroy the answer before the client has seen it."""
        await self._send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
        await self._send({"type": "http.response.body", "body": response.body, "more_body": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                more = True
                while more:
                    message = await self._receive()
                    more = message["type"] == "http.request" and message.get("more_body", False)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(raw=list(message.get("headers", [])))
            headers["x-request-id"] = self.record.request_id
            if self._guarded:
                headers.setdefault("cache-control", "private, no-store")
                headers["vary"] = "Authorization"
            if self._state.draining:
                headers["connection"] = "close"
            message = {**message, "headers": headers.raw}
        await self._send_raw(message)

    def _report(self) -> None:
        state, record = self._state, self.record
        duration_s = state.clock() - record.started_s
        status = CLIENT_GONE_STATUS if record.client_gone else self.status or 500
        route = getattr(self._scope.get("route"), "path", "unmatched")
        method = self._scope["method"] if self._scope["method"] in _METHODS else "other"
        state.http_metrics.finished(method, route, status, duration_s)
        quiet = not self._guarded and status < 400
        log_event(
            _ACCESS,
            logging.DEBUG if quiet else logging.INFO,
            "request",
            request_id=record.request_id,
            method=method,
            route=route,
            status=status,
            duration_s=round(duration_s, 6),
            completion_id=record.completion_id,
            model=record.model,
            stream=record.stream,
            prompt_tokens=record.prompt_tokens,
            cached_tokens=record.cached_tokens,
            output_tokens=record.output_tokens,
            ttft_s=None if record.first_token_s is None else round(record.first_token_s - record.started_s, 6),
            user=record.user,
            trace_id=None if record.trace is None else record.trace.trace_id,
            parent_span_id=None if record.trace is None else record.trace.span_id,
            error=record.error,
            **record.tags,
        )
