"""Something that happens again and again in simulated time."""

from __future__ import annotations

from collections.abc import Callable

from argosy.errors import ConfigError
from argosy.sim.event_loop import EventLoop


class Periodic:
    """Calls `callback` every `every_s` seconds, for the first time `first_s` from the moment it is made.

    It keeps an event loop going: run that up to a time, or call `stop`.
    """

    def __init__(self, loop: EventLoop, every_s: float, callback: Callable[[], None], *, first_s: float = 0.0) -> None:
        """Raises `ConfigError` unless `every_s` is above 0."""
        if not every_s > 0.0:
            raise ConfigError(f"a period must be above 0 s, got {every_s}")
        self._loop = loop
        self._every_s = every_s
        self._callback = callback
        self._next = loop.after(first_s, self._tick)

    def stop(self) -> None:
        """Call nothing more. Idempotent."""
        self._next.cancel()

    def _tick(self) -> None:
        self._next = self._loop.after(self._every_s, self._tick)
        self._callback()
