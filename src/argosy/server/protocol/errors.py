"""OpenAI's error body, and how a malformed request is turned into one that names the field."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from argosy.errors import InvalidRequest
from argosy.server.protocol.base import ResponseModel

Model = TypeVar("Model", bound=BaseModel)


class ErrorDetail(ResponseModel):
    """What went wrong. `param` is the dotted path of the field to blame, e.g. `messages[0].content`."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(ResponseModel):
    """The body of every answer with a status of 400 or above, and of an error inside an event stream."""

    error: ErrorDetail


def validate(model: type[Model], document: Any) -> Model:
    """`document` (decoded JSON) as a `model`.

    Raises:
        InvalidRequest: with the path of the first offending field as `param`.
    """
    if not isinstance(document, dict):
        raise InvalidRequest(f"the body must be a JSON object, got {_kind_of(document)}")
    try:
        return model.model_validate(document)
    except ValidationError as error:
        problem = max(error.errors(include_url=False), key=lambda e: len(_real_path(e, document)))
        raise _invalid(problem, document, model) from None


def _invalid(problem: ErrorDetails, document: Any, model: type[BaseModel]) -> InvalidRequest:
    path = _real_path(problem, document)
    if problem["loc"][-1:] == ("[key]",):
        path = path[:-1]
        return InvalidRequest(f"a key of {format_path(path)}: {problem['msg']}", param=format_path(path))
    param = _shorten(problem.get("ctx", {}).get("param") or format_path(path))
    kind = problem["type"]
    if kind == "extra_forbidden":
        known = difflib.get_close_matches(str(path[-1]), model.model_fields, n=1) if len(path) == 1 else []
        hint = f"; did you mean {known[0]!r}?" if known else ""
        return InvalidRequest(f"{param} is not a field this server knows{hint}", param=param)
    if kind == "missing":
        return InvalidRequest(f"{param} is required", param=param)
    if kind in ("not_supported", "served"):
        return InvalidRequest(f"{param} {problem['msg']}", param=param)
    reason = problem["msg"].replace("Input should be", "must be", 1).replace(" after validation", "")
    reason = _PLAIN.get(kind, reason[:1].lower() + reason[1:])
    return InvalidRequest(f"{param}: {reason}, got {_describe(_value_at(document, path))}", param=param)


_PLAIN: Mapping[str, str] = {
    "float_type": "must be a number",
    "int_type": "must be an integer",
    "bool_type": "must be true or false",
    "string_type": "must be a string",
    "list_type": "must be an array",
    "dict_type": "must be an object",
    "model_type": "must be an object",
}


def format_path(path: tuple[str | int, ...]) -> str:
    """("messages", 0, "content") as `messages[0].content`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _real_path(problem: ErrorDetails, document: Any) -> tuple[str | int, ...]:
    """The error's location without the names of union members, which are not part of the document."""
    path: list[str | int] = []
    value = document
    for part in problem["loc"]:
        if isinstance(part, int):
            inside = isinstance(value, list) and part < len(value)
        else:
            inside = isinstance(value, dict) and part in value
        if inside:
            value = value[part]
            path.append(part)
    if problem["type"] == "missing":
        path.append(problem["loc"][-1])
    return tuple(path)


def _value_at(document: Any, path: tuple[str | int, ...]) -> Any:
    for part in path:
        document = document[part]
    return document


def _describe(value: Any) -> str:
    """A value in a few words; text is quoted only if short, so that prompts do not travel in errors."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, int | float):
        return _shorten(str(value))
    return f"{value!r}" if isinstance(value, str) and len(value) <= 40 else _kind_of(value)


def _kind_of(value: Any) -> str:
    if isinstance(value, str):
        return f"a string of {len(value)} characters"
    if isinstance(value, list):
        return f"an array of {len(value)}"
    return "an object" if isinstance(value, Mapping) else "null" if value is None else f"a {type(value).__name__}"


def _shorten(text: str, limit: int = 120) -> str:
    """Names and numbers a caller made up may be of any length."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
