"""Errors as OpenAI answers them, without a web framework."""

from __future__ import annotations

import math
from typing import Any

import orjson

from argosy.errors import ArgosyError, QueueFull
from argosy.fleet.policies.outcomes import RequestDropped

JSON = (b"content-type", b"application/json")


def error_body(message: str, kind: str, param: str | None, code: str | None) -> bytes:
    """OpenAI's error body."""
    detail: dict[str, Any] = {"message": message, "type": kind, "param": param, "code": code}
    return orjson.dumps({"error": detail})


def error_event(error: ArgosyError) -> bytes:
    """`error` as an event of a stream that has begun; when to come back, in milliseconds, is the event's `retry` field."""
    wait_s = error.retry_after_s if isinstance(error, RequestDropped) else None
    retry = b"" if wait_s is None else b"retry: %d\n" % math.ceil(max(0.0, wait_s) * 1000.0)
    return b"%bdata: %b\n\n" % (retry, error_body(error.message, error.type, error.param, error.code))


def error_reply(error: ArgosyError) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Status, headers and body of an answer that says `error`."""
    headers = [JSON]
    if isinstance(error, RequestDropped):
        headers += [(name.encode(), value.encode("latin-1")) for name, value in error.headers().items()]
    elif isinstance(error, QueueFull):
        headers += [
            (b"retry-after", b"%d" % math.ceil(error.retry_after_s)),
            (b"retry-after-ms", b"%d" % (error.retry_after_s * 1000)),
        ]
    elif error.http_status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return error.http_status, headers, error_body(error.message, error.type, error.param, error.code)


def shown_model(name: str) -> str:
    """A model as messages name it, at most 80 characters of it."""
    return f"model {name[:80]!r}"
