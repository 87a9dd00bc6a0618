"""How many threads of a team take part, by how long they wait for each other.

A thread that shares its core with another process is off it for a time slice now and then, and the others wait for the chunk
it holds. With a step's hundreds of ops it is then faster without that thread: the other process keeps its core, and nobody
waits. Results do not depend on the number of threads, so it may change from step to step.
"""

from __future__ import annotations

WINDOW_S = 0.02
"""Steps are judged together until they have lasted so long: several time slices of a scheduler."""

MOST_WAITING = 0.25
"""Of a window's time, the waiting of all threads together above which one thread too many takes part."""

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
"""After this time another thread is tried again; each time in vain the next pause is twice as long."""


class CrewSize:
    """Decides after every step how many of `num_threads` take part in the next one.

    Attributes:
        active: that number, at least 1.
    """

    def __init__(self, num_threads: int) -> None:
        self.active = num_threads
        self._num_threads = num_threads
        self._window_s = self._waited_s = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._next_try_s = 0.0
        self._is_trying = False

    def after_step(self, now_s: float, duration_s: float, waited_s: float) -> int:
        """Take in a step that ended at `now_s`, in which all threads together waited asleep for `waited_s`."""
        self._window_s += duration_s
        self._waited_s += waited_s
        if self._window_s < WINDOW_S:
            return self.active
        waits = self._waited_s > MOST_WAITING * self._window_s
        self._window_s = self._waited_s = 0.0
        if waits and self.active > 1:
            self._leave_one_out(now_s)
        elif self._is_trying:
            self._is_trying, self._pause_s, self._next_try_s = False, FIRST_PAUSE_S, now_s
        if not waits and self.active < self._num_threads and now_s >= self._next_try_s:
            self.active += 1
            self._is_trying = True
        return self.active

    def _leave_one_out(self, now_s: float) -> None:
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S) if self._is_trying else FIRST_PAUSE_S
        self.active -= 1
        self._is_trying = False
        self._next_try_s = now_s + self._pause_s
