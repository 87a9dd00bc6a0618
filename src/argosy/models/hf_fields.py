"""Typed access to a JSON configuration, with errors that name the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from argosy.errors import ModelFileError

_EMPTY: Mapping[str, Any] = {}


class Fields:
    """A JSON object. A key that is absent takes its value from `defaults`; without one there, reading it is an error.

    Each reader raises `ModelFileError` naming the key if the value is missing or of the wrong kind. The `optional_` ones
    give None for null and for an absent key without default.

    Args:
        values: the object.
        defaults: values of absent keys.
        path: what to put before a key in messages, e.g. "text_config.".
    """

    def __init__(self, values: Mapping[str, Any], defaults: Mapping[str, Any] = _EMPTY, *, path: str = "") -> None:
        self.values = values
        self.defaults = defaults
        self.path = path

    def name(self, key: str) -> str:
        """The key as messages call it."""
        return f"{self.path}{key}"

    def raw(self, key: str) -> Any:
        """The value as it stands, None if absent without default."""
        return self.values[key] if key in self.values else self.defaults.get(key)

    def number(self, key: str) -> float:
        """A finite number."""
        value = self._required(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or value - value != 0:
            raise self._wrong(key, "a number", value)
        return float(value)

    def positive(self, key: str) -> float:
        """A finite number above zero."""
        value = self.number(key)
        if value <= 0:
            raise self._wrong(key, "above 0", value)
        return value

    def count(self, key: str) -> int:
        """A whole number of at least 1."""
        value = self.number(key)
        if value < 1 or value != int(value):
            raise self._wrong(key, "a whole number of at least 1", value)
        return int(value)

    def flag(self, key: str) -> bool:
        """true or false."""
        value = self._required(key)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def text(self, key: str) -> str:
        """A string."""
        value = self._required(key)
        if not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        return value

    def optional_number(self, key: str) -> float | None:
        """A finite number, or None."""
        return None if self.raw(key) is None else self.number(key)

    def optional_count(self, key: str) -> int | None:
        """A whole number of at least 1, or None."""
        return None if self.raw(key) is None else self.count(key)

    def optional_object(self, key: str) -> Fields | None:
        """A nested object, or None; its keys are named `key.…` in messages."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self._wrong(key, "an object", value)
        return Fields(value, path=f"{self.name(key)}.")

    def texts(self, key: str) -> list[str] | None:
        """A list of strings, or None."""
        value = self.raw(key)
        if value is not None and not (isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)):
            raise self._wrong(key, "a list of strings", value)
        return None if value is None else list(value)

    def ids(self, key: str) -> tuple[int, ...]:
        """Whole numbers of at least 0: null or absent (none), one number, or a list."""
        value = self.raw(key)
        items = () if value is None else value if isinstance(value, list | tuple) else (value,)
        if any(isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in items):
            raise self._wrong(key, "whole numbers of at least 0", value)
        return tuple(items)

    def _required(self, key: str) -> Any:
        value = self.raw(key)
        if value is None:
            state = "is null" if key in self.values else "is missing"
            raise ModelFileError(f"config.json: {self.name(key)} {state}")
        return value

    def _wrong(self, key: str, expected: str, value: Any) -> ModelFileError:
        return ModelFileError(f"config.json: {self.name(key)} must be {expected}, got {value!r}")
