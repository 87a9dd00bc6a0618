"""Health of one backend, from live, ready and deep probes.

Live: does the server answer. Ready: would it take a request. Deep: does a generated token make sense, which alone sees an
engine that hangs behind a server that answers. Each has its interval, timeout and number of failures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from argosy.errors import ConfigError
from argosy.fleet.policies.health import HealthCheck, HealthTracker


class ProbeKind(StrEnum):
    """What a probe asks."""

    LIVE = "live"
    READY = "ready"
    DEEP = "deep"


class ProbeResult(StrEnum):
    """What a probe found. `LOADING`: the server answers and says that its model is not there yet.

    `ASLEEP`: it answers, and its model is not in memory and will not be unless a request comes or it is told to load it.
    `BUSY`: the server takes no more work at the moment (429), which says nothing about its model.
    """

    OK = "ok"
    FAILED = "failed"
    LOADING = "loading"
    ASLEEP = "asleep"
    BUSY = "busy"


class HealthPhase(StrEnum):
    """`UNKNOWN` before the first result; only `READY` takes requests; `LOADING` will, and `ASLEEP` once woken."""

    UNKNOWN = "unknown"
    LOADING = "loading"
    ASLEEP = "asleep"
    READY = "ready"
    UNREADY = "unready"
    DOWN = "down"


DEFAULT_CHECKS: Mapping[ProbeKind, HealthCheck] = MappingProxyType(
    {
        ProbeKind.LIVE: HealthCheck(interval_s=10.0, timeout_s=5.0, failures=3),
        ProbeKind.READY: HealthCheck(interval_s=5.0, timeout_s=3.0, failures=2),
        ProbeKind.DEEP: HealthCheck(interval_s=30.0, timeout_s=10.0, failures=1, deep=True),
    }
)


@dataclass(frozen=True, slots=True)
class HealthConfig:
    """How a backend is probed.

    Attributes:
        checks: by kind of probe; one that is absent is not made.
        loading_timeout_s: how long a model may load before its backend counts as unready; a load is no failure until then.
    """

    checks: Mapping[ProbeKind, HealthCheck] = field(default_factory=lambda: DEFAULT_CHECKS)
    loading_timeout_s: float = 1800.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        if not self.loading_timeout_s > 0.0:
            raise ConfigError(f"loading_timeout_s must be above 0, got {self.loading_timeout_s}")


class HealthState:
    """Health of one backend. Times are seconds on the caller's clock.

    Attributes:
        phase: what the results so far amount to.
        changed_at_s: when the phase changed last.
        was_ready: whether it has been ready since it was down last.
    """

    def __init__(self, config: HealthConfig) -> None:
        """Unknown until the first result; a backend that is not probed at all is ready from the start."""
        self.config = config
        self._trackers = {kind: HealthTracker(check) for kind, check in config.checks.items()}
        self._due_at_s = dict.fromkeys(config.checks, -math.inf)
        self._in_flight: set[ProbeKind] = set()
        self._seen: set[ProbeKind] = set()
        self._loading_since_s: float | None = None
        self._asleep = False
        self.phase = HealthPhase.UNKNOWN if config.checks else HealthPhase.READY
        self.changed_at_s = 0.0
        self.was_ready = False

    @property
    def takes_requests(self) -> bool:
        """Whether requests may be sent there."""
        return self.phase is HealthPhase.READY

    def due(self, now_s: float) -> list[ProbeKind]:
        """Probes to be made at `now_s`; each counts as begun. No deep one where a cheaper one says that it must fail."""
        found = []
        for kind, due_at_s in self._due_at_s.items():
            if now_s < due_at_s or kind in self._in_flight:
                continue
            if kind is ProbeKind.DEEP and self._shallow_fails:
                continue
            self._in_flight.add(kind)
            self._due_at_s[kind] = now_s + self.config.checks[kind].interval_s
            found.append(kind)
        return found

    def suspect(self) -> None:
        """A request got no connection: make the live and ready probes at once instead of at their next turn."""
        for kind in self._due_at_s:
            if kind is not ProbeKind.DEEP:
                self._due_at_s[kind] = -math.inf

    def next_due_s(self) -> float:
        """When the next probe is to be made; infinity if none ever is."""
        return min(self._due_at_s.values(), default=math.inf)

    def on_probe(self, kind: ProbeKind, result: ProbeResult, now_s: float) -> bool:
        """Take in the result of a probe; return whether the phase changed.

        The first result of a kind decides alone: there is nothing yet that it could contradict. A model that was loading is
        ready only when a ready probe says so.
        """
        self._in_flight.discard(kind)
        tracker = self._trackers[kind]
        if result is ProbeResult.LOADING:
            tracker.healthy = False
            if self._loading_since_s is None:
                self._loading_since_s = now_s
        elif result is ProbeResult.FAILED:
            tracker.on_failure()
            tracker.healthy = tracker.healthy and kind in self._seen
        elif result in (ProbeResult.OK, ProbeResult.ASLEEP):
            tracker.on_success()
        if kind is ProbeKind.READY and result is not ProbeResult.BUSY:
            self._asleep = result is ProbeResult.ASLEEP
        if result is not ProbeResult.LOADING and result is not ProbeResult.BUSY and kind is not ProbeKind.LIVE:
            self._loading_since_s = None
        if not self._alive:
            self._loading_since_s = None
        self._seen.add(kind)
        return self._move(self._judge(now_s), now_s)

    @property
    def _shallow_fails(self) -> bool:
        if self._loading_since_s is not None or self._asleep:
            return True
        return any(not tracker.healthy for kind, tracker in self._trackers.items() if kind is not ProbeKind.DEEP)

    @property
    def _alive(self) -> bool:
        live = self._trackers.get(ProbeKind.LIVE)
        return live is None or live.healthy

    def _judge(self, now_s: float) -> HealthPhase:
        if not self._alive:
            return HealthPhase.DOWN
        if self._loading_since_s is not None:
            late = now_s - self._loading_since_s >= self.config.loading_timeout_s
            return HealthPhase.UNREADY if late else HealthPhase.LOADING
        if not all(tracker.healthy for tracker in self._trackers.values()):
            return HealthPhase.UNREADY
        if self._asleep:
            return HealthPhase.ASLEEP
        answered = all(kind in self._seen for kind in self._trackers if kind is not ProbeKind.DEEP)
        return HealthPhase.READY if answered else HealthPhase.UNKNOWN

    def _move(self, phase: HealthPhase, now_s: float) -> bool:
        if phase is self.phase:
            return False
        self.phase, self.changed_at_s = phase, now_s
        if phase in (HealthPhase.READY, HealthPhase.DOWN):
            self.was_ready = phase is HealthPhase.READY
        return True
