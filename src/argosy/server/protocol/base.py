"""What all wire types share: strictness, and ways to say which values of a field are served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 64
MAX_BAD_WORDS = 1024
MAX_N = 128
MIN_REPETITION_PENALTY = 0.001
MAX_PENALTY = 2.0
MAX_LOGIT_BIAS = 100.0

Item = TypeVar("Item")
ListOf = Annotated[list[Item], Field(fail_fast=True)]
"""A list that is refused at its first bad item: a body has room for millions, and a report of each is slow to make."""


class RequestModel(BaseModel):
    """A request body or a part of one: unknown fields and implicit conversions are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True)


class ResponseModel(BaseModel):
    """A response body or a part of one: describes what is sent, for the API document and for clients of our own."""

    model_config = ConfigDict(extra="forbid")


class Only:
    """Annotates a field of which only some values are served, for they ask for nothing (None, [], "auto", …).

    Equality is of type and value: `0` is not `False`. `advice` completes the refusal.
    """

    def __init__(self, *values: Any, advice: str = "leave it out") -> None:
        self.values = values
        self.advice = advice

    def check(self, value: Any) -> Any:
        """`value` if it is served."""
        if any(type(value) is type(served) and value == served for served in self.values):
            return value
        raise PydanticCustomError("not_supported", "is not supported by this server; {advice}", {"advice": self.advice})

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": list(self.values), "description": "Not supported: only the values that ask for nothing."}


class OneOf:
    """Annotates a field that may have one of several JSON types.

    `alternatives` maps "string", "list", "list_of_strings", "list_of_ints" or "list_of_lists" to a type; a list is told
    from another by its first element. `expected` completes "must be …" when none fits.
    """

    def __init__(self, expected: str, **alternatives: Any) -> None:
        self.expected = expected
        self.alternatives = alternatives

    def tag_of(self, value: Any) -> str | None:
        """The alternative `value` belongs to, or None."""
        tag = "string" if isinstance(value, str) else "list" if isinstance(value, list) else None
        if tag == "list" and "list" not in self.alternatives:
            tag = _LIST_TAGS.get(type(value[0]) if value else str)
        return tag if tag in self.alternatives else None

    def __get_pydantic_core_schema__(self, _source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.tagged_union_schema(
            {tag: handler.generate_schema(kind) for tag, kind in self.alternatives.items()},
            self.tag_of,
            custom_error_type="served",
            custom_error_message=f"must be {self.expected}",
        )


_LIST_TAGS: Mapping[type, str] = {str: "list_of_strings", int: "list_of_ints", list: "list_of_lists"}
