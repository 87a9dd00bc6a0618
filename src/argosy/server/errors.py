"""Errors as OpenAI answers."""

from __future__ import annotations

import re
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.responses import Response

from argosy.errors import ArgosyError, QueueFull

_FIELD_NAME = re.compile(r"[a-z_-]{1,40}(?![^.\[])")
_TYPE_OF_STATUS = {404: "not_found_error", 405: "invalid_request_error"}


def error_bytes(error: ArgosyError) -> bytes:
    """`error` as OpenAI's error body."""
    return _body(error.message, error.type, error.param, error.code)


def internal_error_bytes(request_id: str) -> bytes:
    """The body for a fault of ours: tells nothing but the id under which the log has it."""
    return _body(f"internal error; the log has it under request id {request_id}", "api_error", None, "internal_error")


def error_response(error: ArgosyError) -> Response:
    """`error` as a response with its status, and for retryable pressure with the time to wait."""
    headers: dict[str, str] = {}
    if isinstance(error, QueueFull):
        headers = {"retry-after": str(error.retry_after_s), "retry-after-ms": str(error.retry_after_s * 1000)}
    elif error.http_status == 401:
        headers = {"www-authenticate": "Bearer"}
    elif error.http_status in (408, 413):
        headers = {"connection": "close"}  # the rest of the body is still on its way
    return json_response(error_bytes(error), error.http_status, headers)


def http_exception_response(error: HTTPException, method: str, path: str) -> Response:
    """What the router refuses: no such path, or not with this method."""
    shown = path if len(path) <= 100 else path[:99] + "…"
    if error.status_code == 404:
        message, code = f"there is no {shown!r} here; /openapi.json lists what is", "not_found"
    elif error.status_code == 405:
        message, code = f"{method} is not allowed on {shown!r}", "method_not_allowed"
    else:
        message, code = str(error.detail), "http_error"
    kind = _TYPE_OF_STATUS.get(error.status_code, "invalid_request_error" if error.status_code < 500 else "api_error")
    return json_response(_body(message, kind, None, code), error.status_code, dict(error.headers or {}))


def json_response(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """`body`, which is JSON already."""
    return Response(body, status, headers, "application/json")


def loggable(error: ArgosyError) -> str:
    """What the log says of an error. A caller's mistake may be quoted in its message, prompt included, so of those only
    the kind and the top-level field are told."""
    if error.http_status >= 500:
        return error.message
    field = _FIELD_NAME.match(error.param or "")
    return f"{error.code or error.type}{f': {field[0]}' if field else ''}"


def _body(message: str, kind: str, param: str | None, code: str | None) -> bytes:
    detail: dict[str, Any] = {"message": message, "type": kind, "param": param, "code": code}
    return orjson.dumps({"error": detail})
