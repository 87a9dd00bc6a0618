"""Values of metric labels, bounded: what a client can name must not become a series each."""

from __future__ import annotations

OTHER = "other"


class LabelValues:
    """Admits the first `max_values` different values of one label; every further one is told as "other".

    A value that was admitted stays: a series that came and went would look like a counter that restarts.
    """

    __slots__ = ("_admitted", "_max_values")

    def __init__(self, max_values: int, known: tuple[str, ...] = ()) -> None:
        """Values in `known` are admitted from the start, whatever comes first."""
        self._max_values = max_values
        self._admitted: set[str] = set(known[:max_values])

    def __len__(self) -> int:
        """How many values are told by name."""
        return len(self._admitted)

    def bounded(self, value: str) -> str:
        """`value`, or "other" if there are too many already."""
        if value in self._admitted:
            return value
        if len(self._admitted) < self._max_values and len(value) <= 200:
            self._admitted.add(value)
            return value
        return OTHER
