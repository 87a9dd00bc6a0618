"""What happens next, in simulated time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

from argosy.sim.clock import VirtualClock

Callback = Callable[[], None]


class EventHandle:
    """One appointment; `cancel` keeps it from happening."""

    __slots__ = ("_loop", "callback", "priority", "time_s")

    def __init__(self, loop: EventLoop, time_s: float, priority: int, callback: Callback) -> None:
        self._loop = loop
        self.time_s = time_s
        self.priority = priority
        self.callback: Callback | None = callback

    @property
    def is_pending(self) -> bool:
        """Whether it has neither happened nor been cancelled."""
        return self.callback is not None

    def cancel(self) -> None:
        """Keep it from happening. Idempotent, and without effect once it has happened."""
        if self.callback is not None:
            self.callback = None
            self._loop.forget_one()


class EventLoop:
    """Runs callbacks in the order of (time, priority, sequence number); the sequence number is that of the call to `at`.

    Lower priorities go first. Cancelled entries are skipped when they come up, and swept out when they are the larger part
    of the queue, so that its size stays in proportion to what is pending.
    """

    _MIN_SWEEP = 256

    def __init__(self, clock: VirtualClock | None = None) -> None:
        self.clock = clock if clock is not None else VirtualClock()
        self._queue: list[tuple[float, int, int, EventHandle]] = []
        self._last_number = 0
        self._num_cancelled = 0
        self._stopped = False

    @property
    def num_pending(self) -> int:
        """Events that will happen unless cancelled."""
        return len(self._queue) - self._num_cancelled

    @property
    def next_time_s(self) -> float:
        """When the next event is due; infinity if there is none."""
        self._drop_cancelled_head()
        return self._queue[0][0] if self._queue else math.inf

    def now_s(self) -> float:
        """Simulated seconds since the start."""
        return self.clock.now_s()

    def at(self, time_s: float, callback: Callback, *, priority: int = 0) -> EventHandle:
        """Call `callback` at `time_s`. Raises `ValueError` if that is past or not finite."""
        if not self.clock.now_s() <= time_s < math.inf:
            raise ValueError(f"an event needs a finite time from {self.clock.now_s()} s on, got {time_s} s")
        self._last_number += 1
        handle = EventHandle(self, time_s, priority, callback)
        heapq.heappush(self._queue, (time_s, priority, self._last_number, handle))
        return handle

    def after(self, delay_s: float, callback: Callback, *, priority: int = 0) -> EventHandle:
        """Call `callback` in `delay_s` seconds. Raises `ValueError` if that is negative or not finite."""
        return self.at(self.clock.now_s() + delay_s, callback, priority=priority)

    def run(self, until_s: float | None = None) -> None:
        """Run every event up to and including `until_s`, then let the clock stand there; without it, until none is left.

        An exception from a callback passes through; the event that raised it counts as having happened.
        """
        limit_s = math.inf if until_s is None else until_s
        self._stopped = False
        queue = self._queue
        while queue and not self._stopped and queue[0][0] <= limit_s:
            time_s, _, _, handle = heapq.heappop(queue)
            callback, handle.callback = handle.callback, None
            if callback is None:
                self._num_cancelled -= 1
                continue
            self.clock.move_to(time_s)
            callback()
        if until_s is not None and not self._stopped and until_s > self.clock.now_s():
            self.clock.move_to(until_s)

    def stop(self) -> None:
        """Make `run` return after the event that is running; what is pending stays so."""
        self._stopped = True

    def forget_one(self) -> None:
        """Count a cancelled event; for `EventHandle` alone."""
        self._num_cancelled += 1
        if self._num_cancelled > self._MIN_SWEEP and 2 * self._num_cancelled > len(self._queue):
            # In place: `run` holds the list.
            self._queue[:] = [entry for entry in self._queue if entry[3].callback is not None]
            heapq.heapify(self._queue)
            self._num_cancelled = 0

    def _drop_cancelled_head(self) -> None:
        while self._queue and self._queue[0][3].callback is None:
            heapq.heappop(self._queue)
            self._num_cancelled -= 1
