"""Which part of the gateway answers which path."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import orjson

from argosy.errors import ArgosyError
from argosy.fleet.gateway.asgi_mount import AsgiMount
from argosy.fleet.gateway.endpoints import ENDPOINTS, MODELS_PATH, check_head, no_such_path, open_exchange, presented_key
from argosy.fleet.gateway.exchange import Endpoint
from argosy.fleet.gateway.health_endpoints import GatewayHealth
from argosy.fleet.gateway.http_messages import HttpRequest, ResponseWriter
from argosy.fleet.gateway.pipeline import Pipeline
from argosy.fleet.gateway.replies import JSON, error_body, error_reply

_MODELS = Endpoint(MODELS_PATH, "models")


class GatewayApp:
    """The handler of the gateway's HTTP server.

    Args:
        render_metrics: for an Accept header, the page of metrics and its content type.
        admin: answers whatever is left, None if there is no admin API.
        created_unix_s: what `/v1/models` says of every model: when the gateway was started.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        health: GatewayHealth,
        render_metrics: Callable[[str], tuple[bytes, str]],
        *,
        admin: AsgiMount | None = None,
        created_unix_s: int = 0,
    ) -> None:
        self._pipeline = pipeline
        self._health = health
        self._render_metrics = render_metrics
        self._admin = admin
        self._created_unix_s = created_unix_s

    async def __call__(self, request: HttpRequest, writer: ResponseWriter) -> None:
        """Answer one request."""
        path = request.path
        if path in ENDPOINTS:
            if request.method == "POST":
                await self._pipeline.handle(request, writer)
            else:
                self._refuse_method(request, writer, "POST")
        elif (answer := self._health.answer(path)) is not None:
            status, body = answer
            writer.send(status, [JSON, (b"cache-control", b"no-store")], body)
        elif path == MODELS_PATH or path.startswith(MODELS_PATH + "/"):
            await self._models(request, writer)
        elif path == "/metrics":
            body, kind = self._render_metrics(request.headers.get(b"accept", b"").decode("latin-1"))
            writer.send(200, [(b"content-type", kind.encode())], body)
        elif self._admin is not None:
            await self._admin.handle(request, writer)
        else:
            writer.send(404, [JSON], error_body(no_such_path(path), "not_found_error", None, "not_found"))

    async def _models(self, request: HttpRequest, writer: ResponseWriter) -> None:
        """The models that the caller may ask for, or one of them."""
        if request.method not in ("GET", "HEAD"):
            self._refuse_method(request, writer, "GET, HEAD")
            return
        exchange = open_exchange(_MODELS, request, f"models-{secrets.token_hex(8)}", self._pipeline.clock())
        stages = self._pipeline.stages
        added = [(b"x-request-id", exchange.request_id.encode()), (b"cache-control", b"private, no-store")]
        try:
            check_head(request)
            principal = await stages.authenticator.authenticate(presented_key(request.headers), exchange)
        except ArgosyError as error:
            status, headers, body = error_reply(error)
            writer.send(status, [*headers, *added], body)
            return
        names = stages.chooser.visible_models(principal)
        wanted = request.path[len(MODELS_PATH) + 1 :]
        if not wanted:
            body = orjson.dumps({"object": "list", "data": [self._model(name) for name in names]})
            writer.send(200, [JSON, *added], body)
        elif wanted in names:
            writer.send(200, [JSON, *added], orjson.dumps(self._model(wanted)))
        else:
            body = error_body("there is no such model here", "not_found_error", "model", "model_not_found")
            writer.send(404, [JSON, *added], body)

    def _model(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": self._created_unix_s, "owned_by": "argosy"}

    def _refuse_method(self, request: HttpRequest, writer: ResponseWriter, allowed: str) -> None:
        message = f"{request.method} is not allowed on {request.path!r}"
        body = error_body(message, "invalid_request_error", None, "method_not_allowed")
        writer.send(405, [JSON, (b"allow", allowed.encode())], body)
