"""The clock of a simulation."""

from __future__ import annotations


class VirtualClock:
    """Simulated seconds since the start, as `engine.core.clock.Clock`; moved by the event loop only, and never backwards."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_s(self) -> float:
        """Simulated seconds since the start."""
        return self._now_s

    def move_to(self, time_s: float) -> None:
        """Move to `time_s`; for the event loop alone."""
        assert time_s >= self._now_s, f"the clock stands at {self._now_s} s and cannot go back to {time_s} s"
        self._now_s = time_s
