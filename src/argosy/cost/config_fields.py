"""Typed reading of a model's configuration: a wrong or missing field is one line that names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from argosy.errors import ConfigError


class ConfigFields:
    """The fields of one configuration. A field that is null counts as missing, as Hugging Face writes unset fields."""

    def __init__(self, fields: Mapping[str, Any], origin: str) -> None:
        self._fields = fields
        self.origin = origin

    def has(self, key: str) -> bool:
        """Whether the field is there and not null."""
        return self._fields.get(key) is not None

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1) -> int:
        """An integer field of at least `minimum`.

        Raises:
            ConfigError: missing without a default, not an integer, or below `minimum`.
        """
        value = self._fields.get(key)
        if value is None:
            if default is None:
                raise ConfigError(f"{self.origin} has no {key!r}, which this kind of model needs")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise ConfigError(f"{self.origin}: {key!r} must be an integer of at least {minimum}, got {value!r}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A boolean field.

        Raises:
            ConfigError: not a boolean.
        """
        value = self._fields.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ConfigError(f"{self.origin}: {key!r} must be true or false, got {value!r}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string field.

        Raises:
            ConfigError: missing without a default, or not a string.
        """
        value = self._fields.get(key, default)
        if not isinstance(value, str):
            raise ConfigError(f"{self.origin}: {key!r} must be a string, got {value!r}")
        return value

    def sequence(self, key: str, length: int | None = None) -> list[Any] | None:
        """A list field, or None where it is missing.

        Raises:
            ConfigError: not a list, or not of `length`.
        """
        value = self._fields.get(key)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)) or (length is not None and len(value) != length):
            wanted = "a list" if length is None else f"a list of {length}"
            raise ConfigError(f"{self.origin}: {key!r} must be {wanted}, got {value!r}")
        return list(value)
