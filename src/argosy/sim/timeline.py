"""What clients and the fleet saw over time, beside what replicas did: latencies, sizes, queues, prices."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields

from argosy.sim.event_loop import EventLoop
from argosy.sim.histogram import LogHistogram
from argosy.sim.outcome import Outcome, RequestOutcome
from argosy.sim.time_series import Windows


@dataclass(frozen=True, slots=True)
class FleetSample:
    """A fleet at one moment.

    Attributes:
        ready, starting, replicas: that take requests, that will, and in all.
        in_system: requests that have not ended; unrouted: of them, those for which there is no replica.
        usd_per_h: of all replicas.
    """

    ready: int
    starting: int
    replicas: int
    in_system: int
    unrouted: int
    usd_per_h: float


@dataclass(slots=True)
class FleetWindow:
    """Of one window: latencies of requests that were answered in it, ends of others, and sums over samples of the fleet."""

    ttft: LogHistogram = field(default_factory=LogHistogram)
    tpot: LogHistogram = field(default_factory=LogHistogram)
    e2e: LogHistogram = field(default_factory=LogHistogram)
    failed: int = 0
    timed_out: int = 0
    samples: int = 0
    ready: int = 0
    starting: int = 0
    replicas: int = 0
    in_system: int = 0
    unrouted: int = 0
    usd_per_h: float = 0.0

    def absorb(self, other: FleetWindow) -> None:
        """Add what `other` has counted."""
        for one in ("ttft", "tpot", "e2e"):
            getattr(self, one).merge(getattr(other, one))
        for name in ("failed", "timed_out", "samples", *_SAMPLED):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def mean(self, name: str) -> float | None:
        """Mean of a field of `FleetSample` over the samples; None without any."""
        total: float = getattr(self, name)
        return total / self.samples if self.samples else None


_SAMPLED = tuple(one.name for one in fields(FleetSample))


class Timeline:
    """Keeps `FleetWindow`s, a fixed number however long the run is; looks at the fleet once in each.

    Looking goes on for as long as the loop runs: run that up to a time, or stop it.
    """

    def __init__(
        self,
        loop: EventLoop,
        look: Callable[[], FleetSample],
        *,
        window_s: float,
        measure_from_s: float = 0.0,
        measure_until_s: float = math.inf,
    ) -> None:
        """The first look is at this moment. Latencies count of requests that arrive within the measured time."""
        self.windows = Windows(FleetWindow, window_s)
        self._loop = loop
        self._look = look
        self._from_s, self._until_s = measure_from_s, measure_until_s
        # After everything else of its moment.
        loop.after(0.0, self._sample, priority=1)

    def on_outcome(self, outcome: RequestOutcome) -> None:
        """A request has ended; to be called once for each."""
        window = self.windows.at(outcome.finished_s)
        window.failed += outcome.outcome is Outcome.FAILED
        window.timed_out += outcome.outcome is Outcome.TIMED_OUT
        if outcome.outcome is not Outcome.FINISHED or not self._from_s <= outcome.request.arrival_s < self._until_s:
            return
        window.e2e.add(outcome.e2e_s)
        if outcome.ttft_s is not None:
            window.ttft.add(outcome.ttft_s)
        if outcome.tpot_s is not None:
            window.tpot.add(outcome.tpot_s)

    def whole_run(self) -> FleetWindow:
        """All windows as one."""
        total = FleetWindow()
        for window in self.windows.windows:
            total.absorb(window)
        return total

    def _sample(self) -> None:
        sample, window = self._look(), self.windows.at(self._loop.now_s())
        window.samples += 1
        for name in _SAMPLED:
            setattr(window, name, getattr(window, name) + getattr(sample, name))
        self._loop.after(self.windows.width_s, self._sample, priority=1)
