"""What a simulation did over time, in a fixed number of windows however long it lasts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Generic, Protocol, Self, TypeVar


@dataclass(slots=True)
class Window:
    """Sums over the events of one window; a step counts in the window in which it ends.

    Attributes:
        busy_s: seconds of steps, over all replicas.
        running, waiting, kv_held, kv_cached: seconds times number at the end of the step.
        kv_blocks: seconds times the blocks that there are.
        energy_j: of replicas whose watts are known.
        steps, tokens, prefill_tokens, generated_tokens, preemptions, prefix_query_tokens, prefix_hit_tokens: of those steps.
        arrivals, in_system: requests that arrived, and the sum of how many were in the system before each of them.
        finished: requests that were answered.
    """

    busy_s: float = 0.0
    running: float = 0.0
    waiting: float = 0.0
    kv_held: float = 0.0
    kv_cached: float = 0.0
    kv_blocks: float = 0.0
    energy_j: float = 0.0
    steps: int = 0
    tokens: int = 0
    prefill_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    arrivals: int = 0
    in_system: int = 0
    finished: int = 0

    def absorb(self, other: Window) -> None:
        """Add the sums of `other`."""
        for name in _NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def per_busy_second(self, value: float) -> float | None:
        """Mean of something that is a sum of seconds times number; None if no step ended in the window."""
        return value / self.busy_s if self.busy_s else None


_NAMES = tuple(field.name for field in fields(Window))


class Absorbing(Protocol):
    """What a window must be able to do."""

    def absorb(self, other: Self) -> None:
        """Take in the neighbour that follows."""
        ...


W = TypeVar("W", bound=Absorbing)


class Windows(Generic[W]):
    """Windows of equal width from time 0 on. When they would be too many, neighbours are joined and the width doubles.

    Attributes:
        width_s: of a window.
        windows: up to the latest event; read by others, changed here only.
    """

    def __init__(self, make: Callable[[], W], width_s: float = 1.0, most_windows: int = 512) -> None:
        """`make` makes an empty window."""
        assert width_s > 0.0, "windows have a width"
        assert most_windows >= 2, "windows can be joined"
        self.width_s = width_s
        self.windows: list[W] = []
        self._make = make
        self._most = most_windows

    def at(self, time_s: float) -> W:
        """The window of `time_s`, to add to."""
        index = int(time_s / self.width_s)
        while index >= self._most:
            self._join()
            index = int(time_s / self.width_s)
        while len(self.windows) <= index:
            self.windows.append(self._make())
        return self.windows[index]

    def coarsened(self, most_windows: int) -> Windows[W]:
        """At most so many windows (at least 2), each the sum of neighbours; these stay as they are."""
        coarse = Windows(self._make, self.width_s, most_windows)
        for index, window in enumerate(self.windows):
            coarse.at((index + 0.5) * self.width_s).absorb(window)
        return coarse

    def rows(self, make: Callable[[float, W], Any]) -> list[Any]:
        """`make(start in seconds, window)` for every window."""
        return [make(index * self.width_s, window) for index, window in enumerate(self.windows)]

    def _join(self) -> None:
        pairs = self.windows[::2]
        for window, after in zip(pairs, self.windows[1::2], strict=False):
            window.absorb(after)
        self.windows = pairs
        self.width_s *= 2.0


class TimeSeries(Windows[Window]):
    """Sums over time."""

    def __init__(self, width_s: float = 1.0, most_windows: int = 512) -> None:
        super().__init__(Window, width_s, most_windows)
