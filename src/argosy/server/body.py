"""From a request's bytes to a validated model, with bounds on size, time and nesting."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel
from starlette.requests import Request

from argosy.errors import BodyTimeout, InvalidRequest, PayloadTooLarge, UnsupportedMediaType
from argosy.server.config import ServerConfig
from argosy.server.protocol.errors import validate
from argosy.server.state import record_of, state_of

Model = TypeVar("Model", bound=BaseModel)
MAX_MEMBERS = 2**18
MAX_VALUES = 2**20
MAX_CONTAINERS = 2**16
"""Far more than a request can use. Some parsing steps keep all threads waiting, and take as long as there are values."""

_STRING_OR_STRUCTURE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{,]', re.DOTALL)
_QUOTE, _COMMA = b'",'


async def read_model(request: Request, model: type[Model]) -> Model:
    """The request's body as a `model`; its size goes into the request's record.

    Raises:
        UnsupportedMediaType, PayloadTooLarge, BodyTimeout, InvalidRequest: as their names say.
        ClientDisconnect, ClientGone: the client left before it had sent everything, or while it was looked at.
    """
    _check_media_type(request)
    state = state_of(request)
    body = await _read(request, state.config)
    record_of(request).body_bytes = len(body)
    return await state.side_work.run(lambda: validate(model, parse_json(body)), len(body), request.receive)


def parse_json(body: bytes) -> Any:
    """Decode a JSON text (RFC 8259); NaN, Infinity, bad UTF-8, lone surrogates, repeated names, objects of more than
    `MAX_MEMBERS` members, more than `MAX_VALUES` values and more than `MAX_CONTAINERS` arrays and objects are errors.

    Raises:
        InvalidRequest: what is wrong, and at which line and column.
    """
    if not body.strip():
        raise InvalidRequest("the body is empty; a JSON object is needed")
    _check_num_values(body)
    try:
        document = orjson.loads(body)
        json.loads(body, object_pairs_hook=_check_members)
    except ValueError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise InvalidRequest("the body is not acceptable: JSON nested too deeply") from None
    return document


def _check_num_values(body: bytes) -> None:
    num_containers = body.count(b"[") + body.count(b"{")
    if num_containers <= MAX_CONTAINERS and num_containers + body.count(b",") <= MAX_VALUES:
        return
    # Texts may be full of brackets and commas: count those outside of strings.
    num_values = num_containers = 0
    for match in _STRING_OR_STRUCTURE.finditer(body):
        first = body[match.start()]
        num_values += first != _QUOTE
        num_containers += first not in (_QUOTE, _COMMA)
        if num_containers > MAX_CONTAINERS:
            raise InvalidRequest(f"the body has more than {MAX_CONTAINERS} arrays and objects, the limit")
        if num_values > MAX_VALUES:
            raise InvalidRequest(f"the body has more than {MAX_VALUES} values, the limit")


def _check_members(pairs: list[tuple[str, Any]]) -> None:
    if len(pairs) > MAX_MEMBERS:
        raise InvalidRequest(f"the body has an object of {len(pairs)} members, the limit is {MAX_MEMBERS}")
    names = set()
    for name, _ in pairs:
        if name in names:
            shown = name if len(name) <= 100 else name[:99] + "…"
            raise InvalidRequest(f"{shown} is given twice in one object", param=shown)
        names.add(name)


def _check_media_type(request: Request) -> None:
    declared = request.headers.get("content-type", "application/json")
    media_type, _, parameters = declared.partition(";")
    kind = media_type.strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise UnsupportedMediaType(f"the body must have content-type application/json, got {media_type.strip()[:80]!r}")
    charset = parameters.partition("charset=")[2].strip(' "').lower()
    if charset not in ("", "utf-8", "utf8"):
        raise UnsupportedMediaType(f"JSON must be encoded in UTF-8, got charset {charset[:40]!r}")
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise UnsupportedMediaType(f"compressed bodies are not accepted, got content-encoding {encoding[:40]!r}")


async def _read(request: Request, config: ServerConfig) -> bytes:
    limit = config.max_body_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and _exceeds(declared, limit):
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(config.body_timeout_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise _too_large(limit)
    except TimeoutError:
        raise BodyTimeout(f"the body did not arrive within {config.body_timeout_s:g} s") from None
    return bytes(body)


def _exceeds(digits: str, limit: int) -> bool:
    """Whether a decimal number of any length, which `int` alone would not take, is above `limit`."""
    significant = digits.lstrip("0")
    return len(significant) > len(str(limit)) or int(significant or "0") > limit


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the body is larger than {limit} bytes, the limit of this server")
