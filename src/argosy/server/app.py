"""The application: routes, their documentation, and what surrounds them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

import argosy
from argosy.engine.client import EngineClient
from argosy.observe.metrics import EngineMetrics, HttpMetrics
from argosy.server import chat, completions, health, models, tokenize
from argosy.server.config import ServerConfig
from argosy.server.docs_page import render_docs
from argosy.server.errors import http_exception_response
from argosy.server.middleware import RequestBoundary
from argosy.server.protocol.chat import ChatCompletion, ChatCompletionRequest
from argosy.server.protocol.completions import Completion, CompletionRequest
from argosy.server.protocol.errors import ErrorResponse
from argosy.server.protocol.models import Health, InferenceHealth, ModelCard, ModelList, Version
from argosy.server.protocol.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from argosy.server.state import ServerState

Handler = Callable[[Request], Awaitable[Response]]
_SCHEMA_REF = "#/components/schemas/{model}"
_REQUEST_ERRORS = {
    400: "A field is missing, unknown, not supported or out of range; `param` names it.",
    401: "The API key is missing or wrong.",
    404: "The model is not served here.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "Too many requests wait; try again after `Retry-After`.",
    500: "The generation failed, or the server has a fault.",
    503: "The engine is not ready, is draining, or has died.",
}
_LOOKUP_ERRORS = {status: _REQUEST_ERRORS[status] for status in (401, 404)}


def create_app(
    engine: EngineClient,
    config: ServerConfig,
    metrics: EngineMetrics | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> FastAPI:
    """The ASGI application in front of `engine`.

    `metrics` is the sink the engine reports to; without one, the engine's metrics stay at zero. Its cache settings are
    published here. `app.state.server` is the `ServerState`.
    """
    info = engine.info
    if metrics is None:
        names = config.served_model_names or (info.model_name,)
        metrics = EngineMetrics(names[0], max_model_len=info.max_model_len)
    metrics.set_cache_config(
        block_size=info.block_size,
        num_gpu_blocks=info.num_blocks,
        cache_dtype=info.kv_dtype,
        enable_prefix_caching=info.enable_prefix_caching,
    )
    http_metrics = HttpMetrics(metrics.registry, version=argosy.__version__)
    state = ServerState(engine, config, metrics, http_metrics, clock, int(time.time()))
    app = FastAPI(
        title="Argosy",
        version=argosy.__version__,
        openapi_url="/openapi.json" if config.docs else None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.server = state
    app.state.inference_probe = health.InferenceProbe(state)
    app.add_middleware(RequestBoundary, state=state)
    app.add_exception_handler(HTTPException, _on_http_exception)
    _add_routes(app)
    if config.docs:
        _add_documentation(app)
    return app


def _add_routes(app: FastAPI) -> None:
    streamed = {"description": "With `stream`, events whose data are chunks, then `[DONE]`."}
    _post(app, "/v1/chat/completions", chat.chat_completions, ChatCompletionRequest, ChatCompletion, streamed)
    _post(app, "/v1/completions", completions.completions, CompletionRequest, Completion, streamed)
    _post(app, "/tokenize", tokenize.tokenize, TokenizeRequest, TokenizeResponse)
    _post(app, "/detokenize", tokenize.detokenize, DetokenizeRequest, DetokenizeResponse)
    _get(app, "/v1/models", models.list_models, ModelList, _LOOKUP_ERRORS)
    _get(app, "/v1/models/{model:path}", models.retrieve_model, ModelCard, _LOOKUP_ERRORS)
    _get(app, "/version", models.version, Version)
    for path in ("/health", "/health/live", "/healthz", "/livez", "/live", "/ping"):
        _get(app, path, health.live, Health, unavailable=Health)
    for path in ("/health/ready", "/readyz", "/ready"):
        _get(app, path, health.ready, Health, unavailable=Health)
    _get(app, "/health/inference", health.inference, InferenceHealth, unavailable=InferenceHealth)
    app.add_api_route("/metrics", models.metrics, methods=["GET"], response_class=Response)
    app.add_api_route("/metrics", models.metrics, methods=["HEAD"], response_class=Response, include_in_schema=False)


def _post(
    app: FastAPI,
    path: str,
    handler: Handler,
    request_model: type[BaseModel],
    response_model: type[BaseModel],
    ok: dict[str, Any] | None = None,
) -> None:
    """A route that reads its body itself, to answer its errors as OpenAI does; the document is told of the types."""
    schema = {"$ref": _SCHEMA_REF.format(model=request_model.__name__)}
    app.add_api_route(
        path,
        handler,
        methods=["POST"],
        response_model=None,
        response_class=Response,
        responses={200: {"model": response_model, **(ok or {})}, **_errors(_REQUEST_ERRORS)},
        openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}},
    )


def _get(
    app: FastAPI,
    path: str,
    handler: Handler,
    response_model: type[BaseModel],
    errors: dict[int, str] | None = None,
    *,
    unavailable: type[BaseModel] | None = None,
) -> None:
    responses: dict[int | str, dict[str, Any]] = {200: {"model": response_model}, **_errors(errors or {})}
    if unavailable is not None:
        responses[503] = {"model": unavailable, "description": "`status` says why."}
    options: dict[str, Any] = {"response_model": None, "response_class": Response}
    app.add_api_route(path, handler, methods=["GET"], responses=responses, **options)
    app.add_api_route(path, handler, methods=["HEAD"], include_in_schema=False, **options)


def _errors(descriptions: dict[int, str]) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorResponse, "description": text} for status, text in descriptions.items()}


def _add_documentation(app: FastAPI) -> None:
    """Complete the API document with the request types, and serve it as a page that needs nothing from elsewhere."""
    requests = (ChatCompletionRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)
    _, definitions = models_json_schema([(model, "validation") for model in requests], ref_template=_SCHEMA_REF)
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        document["components"]["schemas"].update(definitions["$defs"])
        return document

    app.openapi = openapi  # type: ignore[method-assign]

    async def docs(_request: Request) -> Response:
        return HTMLResponse(render_docs(app.openapi()))

    app.add_route("/docs", docs, methods=["GET"], include_in_schema=False)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return http_exception_response(error, request.method, request.url.path)
