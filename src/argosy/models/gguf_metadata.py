"""Typed access to the metadata keys that a GGUF file keeps under its architecture's name."""

from __future__ import annotations

import math
from typing import Any

from argosy.errors import ModelFileError, UnsupportedModel
from argosy.models.gguf_file import GgufFile

MAX_COUNT = 2**31 - 1
"""No size of a model is larger; a damaged one may claim it is."""


class ArchitectureKeys:
    """The keys `{architecture}.*` of one file; every getter raises `ModelFileError` naming the key that is wrong."""

    def __init__(self, file: GgufFile) -> None:
        self.path = file.path
        self._metadata = file.metadata
        architecture = file.metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise ModelFileError(f"{file.path} is not a language model: it names no general.architecture")
        self.architecture = architecture

    def get(self, suffix: str, default: Any = None) -> Any:
        """The raw value, or `default` if the key is absent."""
        return self._metadata.get(f"{self.architecture}.{suffix}", default)

    def count(self, suffix: str, *, default: int | None = None, at_least: int = 1, at_most: int = MAX_COUNT) -> int:
        """An integer within [at_least, at_most]; absent gives `default`, or an error if that is None."""
        value = self._required(suffix, default)
        if type(value) is not int or not at_least <= value <= at_most:
            self._fail(suffix, f"an integer from {at_least} to {at_most}", value)
        return int(value)

    def same_in_all_layers(self, suffix: str, *, default: int | None = None) -> int:
        """A count that may be stored once or per layer.

        Raises:
            UnsupportedModel: the layers differ.
        """
        value = self._required(suffix, default)
        if not isinstance(value, list):
            return self.count(suffix, default=default)
        if len(set(value)) != 1:
            raise UnsupportedModel(f"{self.path}: {suffix} differs between layers, which is not supported")
        if type(value[0]) is not int or not 1 <= value[0] <= MAX_COUNT:
            self._fail(suffix, "a positive integer", value[0])
        return int(value[0])

    def number(self, suffix: str, *, default: float | None = None) -> float:
        """A finite number."""
        value = self._required(suffix, default)
        if type(value) not in (int, float) or not math.isfinite(value):
            self._fail(suffix, "a finite number", value)
        return float(value)

    def positive(self, suffix: str, *, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self.number(suffix, default=default)
        if value <= 0:
            self._fail(suffix, "above 0", value)
        return value

    def refuse_unless(self, suffix: str, neutral: Any) -> None:
        """Raise `UnsupportedModel` if the key is present with a value other than `neutral`."""
        value = self.get(suffix, neutral)
        if value != neutral:
            raise UnsupportedModel(f"{self.path}: {self.architecture}.{suffix} = {value!r} is not supported")

    def _required(self, suffix: str, default: Any) -> Any:
        value = self.get(suffix, default)
        if value is None:
            raise ModelFileError(f"{self.path} is damaged: the key {self.architecture}.{suffix} is missing")
        return value

    def _fail(self, suffix: str, expected: str, value: Any) -> None:
        raise ModelFileError(f"{self.path} is damaged: {self.architecture}.{suffix} must be {expected}, got {value!r}")
