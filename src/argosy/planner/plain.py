"""Answers as plain data: dataclasses to dicts, lists, numbers and strings that any JSON writer takes."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """`value` without classes. Infinite numbers become None, since JSON has none; keys become strings.

    Raises:
        TypeError: a value of a kind that answers do not hold.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} is not part of an answer")


class Plain:
    """Mixin of every answer: `to_json()`."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        result: dict[str, Any] = plain(self)
        return result
