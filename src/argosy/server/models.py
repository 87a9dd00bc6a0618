"""`GET /v1/models`, `/v1/models/{id}`, `/version`, `/metrics`."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

import argosy
from argosy.observe.metrics import render
from argosy.server.errors import json_response
from argosy.server.state import ServerState, state_of


async def list_models(request: Request) -> Response:
    """The names this server answers to."""
    state = state_of(request)
    return json_response(orjson.dumps({"object": "list", "data": [_card(state, name) for name in state.model_names]}))


async def retrieve_model(request: Request) -> Response:
    """One of them."""
    state = state_of(request)
    return json_response(orjson.dumps(_card(state, state.resolve_model(request.path_params["model"]))))


async def version(_request: Request) -> Response:
    """The version of this server."""
    return json_response(orjson.dumps({"version": argosy.__version__}))


async def metrics(request: Request) -> Response:
    """All metrics, in the Prometheus or OpenMetrics text format."""
    body, content_type = render(state_of(request).engine_metrics.registry, request.headers.get("accept", ""))
    return Response(body, headers={"content-type": content_type})


def _card(state: ServerState, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": state.created_s,
        "owned_by": "argosy",
        "root": state.engine.info.model_name,
        "parent": None,
        "max_model_len": state.engine.info.max_model_len,
    }
