"""Provenance of catalogue values: a table of sources per file, and every number read with the one it names."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any

from argosy.cost.quantity import Dimension, Grade, Quantity, parse_quantity
from argosy.errors import ConfigError


class Sources:
    """The `[sources]` of one catalogue file. Each has a text, a grade and the date its entries were compiled."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._sources: dict[str, tuple[str, Grade, str]] = {}
        for key, entry in table.items():
            check_keys(entry, f"source {key!r}", required=("text", "grade", "as_of"))
            try:
                grade = Grade(entry["grade"])
                date.fromisoformat(entry["as_of"])
            except (ValueError, TypeError):
                grades = ", ".join(Grade)
                raise ConfigError(f"source {key!r} needs an ISO date and a grade out of {grades}") from None
            self._sources[key] = (entry["text"], grade, entry["as_of"])

    def get(self, key: str, where: str) -> tuple[str, Grade, str]:
        """Text, grade and date of a source.

        Raises:
            ConfigError: the file has no such source.
        """
        if key not in self._sources:
            raise ConfigError(f"{where}: no source {key!r}; the file has {', '.join(sorted(self._sources))}")
        return self._sources[key]

    def quantity(self, value: Any, dimension: Dimension, default_source: str, where: str) -> Quantity:
        """Read "80 GiB", or a table of value and source.

        Raises:
            ConfigError: no such source, no quantity, or one of another dimension (a sparse peak where a dense one belongs).
        """
        source = default_source
        if isinstance(value, Mapping):
            check_keys(value, where, required=("value", "source"))
            value, source = value["value"], value["source"]
        if not isinstance(value, str):
            raise ConfigError(f"{where}: {value!r} has no unit; write it as text such as '80 GiB'")
        text, grade, as_of = self.get(source, where)
        quantity = parse_quantity(value, source=text, grade=grade, as_of=as_of)
        if quantity.dimension is not dimension:
            raise ConfigError(f"{where}: {value!r} is in {quantity.dimension or 'no unit'}, expected {dimension}")
        return quantity


def count_field(table: Mapping[str, Any], key: str, where: str) -> int:
    """A whole number of at least 1.

    Raises:
        ConfigError: anything else.
    """
    value = table[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{where}: {key} must be a whole number of at least 1, got {value!r}")
    return value


def names_of(table: Mapping[str, Any], where: str) -> tuple[str, tuple[str, ...]]:
    """The name and the aliases of an entry.

    Raises:
        ConfigError: not texts.
    """
    name, aliases = table["name"], table["aliases"]
    if not isinstance(aliases, list) or not all(isinstance(text, str) and text for text in (name, *aliases)):
        raise ConfigError(f"{where}: name must be a text and aliases a list of texts")
    return name, tuple(aliases)


def check_keys(table: Any, where: str, *, required: tuple[str, ...] = (), optional: tuple[str, ...] = ()) -> None:
    """Refuse what is not a table, lacks a key, or has one that nothing reads.

    Raises:
        ConfigError: names the key.
    """
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} must be a table, got {table!r}")
    for key in required:
        if key not in table:
            raise ConfigError(f"{where} has no {key!r}")
    unknown = sorted(set(table) - set(required) - set(optional))
    if unknown:
        raise ConfigError(
            f"{where} has a key {unknown[0]!r} that nothing reads; known are {', '.join((*required, *optional))}"
        )
