"""The data API: which paths there are, and what of a request matters to the gateway."""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import getrandbits
from types import MappingProxyType
from typing import Any

import orjson

from argosy.errors import InvalidRequest, UnsupportedMediaType
from argosy.fleet.gateway.exchange import Endpoint, Exchange
from argosy.fleet.gateway.http_messages import HttpRequest

ENDPOINTS: Mapping[str, Endpoint] = MappingProxyType(
    {
        endpoint.route: endpoint
        for endpoint in (
            Endpoint("/v1/chat/completions", "chat", takes_include_usage=True),
            Endpoint("/v1/completions", "completion", takes_include_usage=True),
            Endpoint("/v1/embeddings", "embedding"),
            Endpoint("/v1/responses", "responses", replayable=False),
            Endpoint("/v1/messages", "messages"),
            Endpoint("/v1/rerank", "passthrough"),
            Endpoint("/v1/score", "passthrough"),
            Endpoint("/tokenize", "passthrough"),
            Endpoint("/detokenize", "passthrough"),
        )
    }
)
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_MAX_LISTS_AND_OBJECTS = 200_000
_MAX_STRINGS = 500_000
_MAX_ANSWERS = 1024
# How an engine finds the KV blocks of a prompt that another one computed: an address of the client's choice would be called.
_FLEET_FIELDS = ("kv_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room")
_BOUNDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_SESSION_HEADERS = (b"x-session-id", b"x-session-token", b"x-user-id", b"x-tenant-id", b"x-correlation-id")
_SESSION_FIELDS = ("session_id", "user", "user_id")
_KEY_PARAMETERS = re.compile(r"(?:^|&)(?:key|api[-_]?key|access_token|token)=", re.IGNORECASE)


MODELS_PATH = "/v1/models"


def no_such_path(path: str) -> str:
    """What is said of a `path` that is not there; of a client whose base URL lacks `/v1`, what is missing."""
    shown = path if len(path) <= 100 else path[:99] + "…"
    meant = f"/v1{path}"
    return f"there is no {shown!r} here" + (f"; did you mean {meant}?" if meant in ENDPOINTS or meant == MODELS_PATH else "")


def presented_key(headers: Mapping[bytes, bytes]) -> str | None:
    """The key of `Authorization: Bearer`, else of `x-api-key`, else of `api-key`; None if there is none."""
    scheme, _, credentials = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer" and credentials.strip():
        return credentials.strip().decode("latin-1")
    key = headers.get(b"x-api-key") or headers.get(b"api-key")
    return key.decode("latin-1") if key else None


def open_exchange(endpoint: Endpoint, request: HttpRequest, exchange_id: str, now_s: float) -> Exchange:
    """The record of a request that has arrived; nothing in it has been checked but its ids."""
    given = request.headers.get(b"x-request-id", b"")
    request_id = given.decode() if _REQUEST_ID.fullmatch(given) else _new_request_id()
    traceparent = request.headers.get(b"traceparent", b"")
    is_traced = _TRACEPARENT.fullmatch(traceparent) is not None
    return Exchange(
        endpoint,
        request.method,
        request.path,
        request.headers,
        request.body,
        request_id,
        exchange_id,
        now_s,
        request.client_address,
        traceparent=traceparent.decode() if is_traced else "",
        tracestate=request.headers.get(b"tracestate", b"").decode("latin-1") if is_traced else "",
    )


def check_head(request: HttpRequest) -> None:
    """Raise what keeps a request from being looked at."""
    given = request.headers.get(b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given) is None:
        raise InvalidRequest("x-request-id takes 1 to 128 letters, digits and . _ : / + = @ -", param="x-request-id")
    if _KEY_PARAMETERS.search(request.query):
        raise InvalidRequest("keys are taken from the Authorization header only, never from the URL", code="key_in_url")
    declared = request.headers.get(b"content-type", b"application/json")
    kind = declared.partition(b";")[0].strip().lower()
    if kind != b"application/json" and not (kind.startswith(b"application/") and kind.endswith(b"+json")):
        raise UnsupportedMediaType(f"the body must have content-type application/json, got {_shown(kind)!r}")
    encoding = request.headers.get(b"content-encoding", b"identity").lower()
    if encoding != b"identity":
        raise UnsupportedMediaType(f"compressed bodies are not accepted, got content-encoding {_shown(encoding)!r}")


def read_body(exchange: Exchange) -> None:
    """Decode the body and fill in what admission needs: model, stream, bound on the output, affinity.

    Raises:
        InvalidRequest: it is not a JSON object, or one of these members is not what it must be.
    """
    _check_parts(exchange.body)
    try:
        document = orjson.loads(exchange.body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(document, dict):
        raise InvalidRequest("the body must be a JSON object")
    model = document.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidRequest("model must be the name of a model; GET /v1/models lists them", param="model")
    stream = document.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise InvalidRequest("stream must be true or false", param="stream")
    for name in _FLEET_FIELDS:
        if name in document:
            raise InvalidRequest(f"{name} is set by the fleet itself, a client must leave it out", param=name)
    for name in ("n", "best_of"):
        if name in document:
            _check_num_answers(name, document[name])
    exchange.document = document
    exchange.model = model
    exchange.stream = stream is True
    exchange.max_output_tokens = _output_bound(document)
    exchange.affinity_key = _affinity_key(exchange.headers, document)


def client_asks_for_usage(document: Mapping[str, Any]) -> bool:
    """Whether a stream is to end with a chunk that reports usage."""
    options = document.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))


def _check_parts(body: bytes) -> None:
    """Refuse a body of so many parts that to look at each would hold up all other requests; text may be as long as it likes.

    Brackets and quotes within texts are counted along: to tell them apart would take as long as what this saves.
    """
    if len(body) < 2 * min(_MAX_LISTS_AND_OBJECTS, _MAX_STRINGS):
        return
    if body.count(b"[") + body.count(b"{") > _MAX_LISTS_AND_OBJECTS:
        raise InvalidRequest(f"the body has more than {_MAX_LISTS_AND_OBJECTS} lists and objects; send it in parts")
    if body.count(b'"') > 2 * _MAX_STRINGS:
        raise InvalidRequest(f"the body has more than {_MAX_STRINGS} strings; send it in parts")


def _check_num_answers(name: str, value: Any) -> None:
    """Engines would read "100" and 1e2 as numbers, too; what is not understood here would not be paid for."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_ANSWERS):
        raise InvalidRequest(f"{name} must be a whole number from 1 to {_MAX_ANSWERS}", param=name)


def _new_request_id() -> str:
    """A UUID of version 4, since llama.cpp's Python server (starlette-context) refuses requests that carry any other id.

    Nothing relies on an id that cannot be guessed, so it does not take a call of the system.
    """
    digits = f"{getrandbits(128):032x}"
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


def _output_bound(document: Mapping[str, Any]) -> int | None:
    bound: int | None = None
    for name in _BOUNDS:
        value = document.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InvalidRequest(f"{name} must be a whole number from 0 up", param=name)
        bound = value if bound is None else max(bound, value)
    return bound


def _affinity_key(headers: Mapping[bytes, bytes], document: Mapping[str, Any]) -> str:
    """A conversation, else a session, else a user. A request id would be new each time and so is not looked at."""
    for header in _SESSION_HEADERS:
        value = headers.get(header)
        if value:
            return value.decode("latin-1")
    session = document.get("session_params")
    if isinstance(session, dict) and isinstance(session.get("session_id"), str):
        return str(session["session_id"])
    for name in _SESSION_FIELDS:
        field = document.get(name)
        if isinstance(field, str) and field:
            return field
    return ""


def _shown(value: bytes) -> str:
    return value[:40].decode("latin-1")
