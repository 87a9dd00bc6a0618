"""One callback per event loop and step, however many streams have news."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable

from argosy.engine.delta_channel import DeltaChannel


class WakeUps:
    """Wakes the readers of channels with one callback per event loop and step, whatever the number of channels.

    A loop that is slow has one callback pending at most; further channels join it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due: dict[asyncio.AbstractEventLoop, set[DeltaChannel]] = {}

    def schedule(self, channels: Iterable[DeltaChannel]) -> list[DeltaChannel]:
        """Have the readers woken. Returns the channels that nobody can read because their event loop is closed."""
        to_call: set[asyncio.AbstractEventLoop] = set()
        with self._lock:
            for channel in channels:
                loop = channel.loop
                if loop not in self._due:
                    self._due[loop] = set()
                    to_call.add(loop)
                elif loop.is_closed():  # it never ran the callback it was given
                    to_call.add(loop)
                self._due[loop].add(channel)
        orphans: list[DeltaChannel] = []
        for loop in to_call:
            try:
                loop.call_soon_threadsafe(self._wake, loop)
            except RuntimeError:
                orphans += self._take(loop)
        return orphans

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        for channel in self._take(loop):
            channel.wake()

    def _take(self, loop: asyncio.AbstractEventLoop) -> set[DeltaChannel]:
        with self._lock:
            return self._due.pop(loop, set())
