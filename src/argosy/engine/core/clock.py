"""Time as a value that is passed in, so that the same decisions run live, simulated and under test."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """A clock that never runs backwards. Its zero is arbitrary; only differences mean anything."""

    def now_s(self) -> float:
        """Seconds since this clock's zero."""
        ...


class ManualClock:
    """A clock that moves when told to: for simulation and tests."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        """Seconds since this clock's zero."""
        return self._now_s

    def advance(self, duration_s: float) -> None:
        """Move forward by `duration_s` seconds. Raises `ValueError` if it is negative."""
        if duration_s < 0.0:
            raise ValueError(f"a clock moves forward only, got {duration_s} s")
        self._now_s += duration_s
