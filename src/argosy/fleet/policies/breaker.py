"""Circuit breaker of one backend: closed, open, half-open.

    closed --(half of the answers fail, or they take twice as long)--> open --(open_s)--> half-open
      ^                                                                 ^                    |
      +------------------------(close_successes)------------------------|--------------------+
                                                                        +--(too many probes fail)

Only what speaks against the backend counts: 5xx, timeouts, refused and broken connections. A 4xx speaks against the client,
and a 429 asks for patience, which is `Breaker.throttled_until_s`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from argosy.errors import ConfigError
from argosy.fleet.policies.breaker_window import LatencyBaseline, OutcomeWindow

# A timer may fire a little early; a request that waited as long as it was told to is not sent away for that.
_TIMER_SLACK_S = 0.01


class Verdict(StrEnum):
    """What one attempt says of its backend."""

    SUCCESS = "success"
    FAILURE = "failure"
    THROTTLED = "throttled"
    NEUTRAL = "neutral"


class BreakerState(StrEnum):
    """`CLOSED` lets everything through, `OPEN` nothing, `HALF_OPEN` one probe at a time."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


def verdict_of_status(status: int, *, loading: bool = False) -> Verdict:
    """What an upstream HTTP status says of its backend.

    Timeouts and connection errors have no status: they are `FAILURE`. An attempt that its client gave up is `NEUTRAL`.

    Args:
        loading: whether the backend is known to be loading its model; its 503 is an announcement then and no failure.
    """
    if status in (429, 529):
        return Verdict.THROTTLED
    if status >= 500:
        return Verdict.NEUTRAL if loading and status == 503 else Verdict.FAILURE
    return Verdict.NEUTRAL if status >= 400 else Verdict.SUCCESS


@dataclass(frozen=True, slots=True)
class BreakerConfig:
    """When a breaker opens and closes.

    Attributes:
        error_fraction: part of the answers within `window_s` that are failures, at which it opens.
        min_requests: answers within the window below which nothing is concluded from them.
        latency_ratio: geometric mean of the latencies within the window over the baseline, at which it opens.
        min_latency_samples: successes before the baseline counts, and within the window before it is compared.
        latency_floor_s: a mean latency below this never opens it: twice very little is still little.
        baseline_decay_s: time constant with which the baseline follows what it sees.
        open_s: how long it stays open.
        max_probes: requests let through half-open, one at a time. It opens again as soon as `close_successes` of them
            cannot succeed any more.
        close_successes: probes that must succeed for it to close.
        probe_timeout_s: how long a probe that nobody reports holds the place of the next one.
        max_throttle_s: longest time that one 429 keeps requests away.
    """

    error_fraction: float = 0.5
    min_requests: int = 5
    window_s: float = 30.0
    latency_ratio: float = 2.0
    min_latency_samples: int = 20
    latency_floor_s: float = 0.5
    baseline_decay_s: float = 600.0
    open_s: float = 30.0
    max_probes: int = 5
    close_successes: int = 2
    probe_timeout_s: float = 120.0
    max_throttle_s: float = 60.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        if not 0.0 < self.error_fraction <= 1.0:
            raise ConfigError(f"error_fraction of a breaker must be above 0 and at most 1, got {self.error_fraction}")
        if not self.latency_ratio > 1.0:
            raise ConfigError(f"latency_ratio of a breaker must be above 1, got {self.latency_ratio}")
        for name in ("min_requests", "min_latency_samples", "close_successes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} of a breaker must be at least 1, got {getattr(self, name)}")
        if self.max_probes < self.close_successes:
            raise ConfigError(
                f"max_probes of a breaker must be at least close_successes, got {self.max_probes} and {self.close_successes}"
            )
        for name in ("window_s", "baseline_decay_s", "open_s", "probe_timeout_s"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0.0):
                raise ConfigError(f"{name} of a breaker must be above 0, got {getattr(self, name)}")
        for name in ("latency_floor_s", "max_throttle_s"):
            if not getattr(self, name) >= 0.0:
                raise ConfigError(f"{name} of a breaker must not be negative, got {getattr(self, name)}")


@dataclass(slots=True, eq=False)
class Permit:
    """Leave to send one attempt to a backend.

    Attributes:
        epoch: number of the breaker's last change of state when it was given.
        succeeded_at_s: when its success was reported, or None.
    """

    backend_id: str
    epoch: int
    is_probe: bool
    succeeded_at_s: float | None = None


class Breaker:
    """One backend's breaker. Times are seconds on the caller's clock and must not go back.

    Attributes:
        throttled_until_s: until when the backend has asked to be left alone.
        num_opened: times that it opened.
    """

    def __init__(self, backend_id: str, config: BreakerConfig) -> None:
        self.backend_id = backend_id
        self.config = config
        self.throttled_until_s = -math.inf
        self.num_opened = 0
        self._state = BreakerState.CLOSED
        self._epoch = 0
        self._reopens_at_s = -math.inf
        self._window = OutcomeWindow(config.window_s)
        self._baseline = LatencyBaseline(config.baseline_decay_s, config.min_latency_samples)
        self._probe: Permit | None = None
        self._probe_began_s = -math.inf
        self._probe_successes = 0
        self._probe_failures = 0

    def state(self, now_s: float) -> BreakerState:
        """The state at `now_s`; an open breaker turns half-open by itself."""
        if self._state is BreakerState.OPEN and now_s >= self._reopens_at_s:
            self._enter(BreakerState.HALF_OPEN)
        return self._state

    def allow(self, now_s: float) -> bool:
        """Whether `begin` would give a permit. Takes nothing."""
        if now_s < self.throttled_until_s - _TIMER_SLACK_S:
            return False
        state = self.state(now_s)
        if state is BreakerState.HALF_OPEN:
            return self._probe is None or now_s - self._probe_began_s >= self.config.probe_timeout_s
        return state is BreakerState.CLOSED

    def begin(self, now_s: float) -> Permit | None:
        """A permit for one attempt, or None. Half-open it takes the place of the one probe until its result is reported."""
        if not self.allow(now_s):
            return None
        permit = Permit(self.backend_id, self._epoch, self._state is BreakerState.HALF_OPEN)
        if permit.is_probe:
            self._probe, self._probe_began_s = permit, now_s
        return permit

    def on_result(
        self,
        permit: Permit,
        verdict: Verdict,
        now_s: float,
        *,
        latency_s: float | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        """Take in what became of an attempt. Every permit must come back, also that of an attempt its client gave up.

        Report a success when the first byte is there, with the time to it: how long a whole answer takes depends on its
        length. A stream that breaks later is reported again, as a failure, which takes the place of its success.

        Args:
            latency_s: time to the first byte, for a success.
            retry_after_s: what a 429 asked for.
        """
        if verdict is Verdict.THROTTLED and retry_after_s is not None:
            until_s = now_s + min(retry_after_s, self.config.max_throttle_s)
            self.throttled_until_s = max(self.throttled_until_s, until_s)
        if permit.epoch != self._epoch:
            return
        if permit.is_probe:
            self._on_probe(permit, verdict, now_s, latency_s)
        elif verdict is Verdict.FAILURE:
            if permit.succeeded_at_s is not None:
                self._window.take_back_success(permit.succeeded_at_s)
            self._window.add_failure(now_s)
            self._judge_errors(now_s)
        elif verdict is Verdict.SUCCESS:
            permit.succeeded_at_s = now_s
            self._on_success(now_s, latency_s)

    def allowed_at_s(self, now_s: float) -> float:
        """When a request may be let through at the earliest: `now_s` if at once, or at an unknown time by a probe."""
        state = self.state(now_s)
        return max(now_s, self.throttled_until_s, self._reopens_at_s if state is BreakerState.OPEN else now_s)

    def _on_success(self, now_s: float, latency_s: float | None) -> None:
        self._window.add_success(now_s, latency_s)
        if latency_s is None:
            return
        baseline_s = self._baseline.value_s
        self._baseline.observe(latency_s, now_s)
        if baseline_s is None or latency_s < self.config.latency_floor_s:
            return
        measured = self._window.mean_latency_s(now_s)
        if measured is None or measured[1] < self.config.min_latency_samples:
            return
        if measured[0] >= max(self.config.latency_floor_s, self.config.latency_ratio * baseline_s):
            self._open(now_s)

    def _judge_errors(self, now_s: float) -> None:
        successes, failures = self._window.counts(now_s)
        total = successes + failures
        if total >= self.config.min_requests and failures >= self.config.error_fraction * total:
            self._open(now_s)

    def _on_probe(self, permit: Permit, verdict: Verdict, now_s: float, latency_s: float | None) -> None:
        if permit is not self._probe:
            if permit.succeeded_at_s is not None and verdict is Verdict.FAILURE:
                self._probe_successes -= 1
                self._probe_failures += 1
            return
        self._probe = None
        if verdict is Verdict.SUCCESS and not self._is_slow(latency_s):
            permit.succeeded_at_s = now_s
            self._probe_successes += 1
        elif verdict in (Verdict.SUCCESS, Verdict.FAILURE):
            self._probe_failures += 1
        if verdict is Verdict.SUCCESS and latency_s is not None:
            # A backend that is slower for good must become the measure of itself, or it would never come back.
            self._baseline.observe(latency_s, now_s)
        if self._probe_successes >= self.config.close_successes:
            self._enter(BreakerState.CLOSED)
        elif self._probe_failures > self.config.max_probes - self.config.close_successes:
            self._open(now_s)

    def _is_slow(self, latency_s: float | None) -> bool:
        baseline_s = self._baseline.value_s
        if latency_s is None or baseline_s is None or latency_s < self.config.latency_floor_s:
            return False
        return latency_s >= self.config.latency_ratio * baseline_s

    def _open(self, now_s: float) -> None:
        self._enter(BreakerState.OPEN)
        self._reopens_at_s = now_s + self.config.open_s
        self.num_opened += 1

    def _enter(self, state: BreakerState) -> None:
        """Results of attempts begun before are of another epoch and say nothing about this one."""
        self._state = state
        self._epoch += 1
        self._window.clear()
        self._probe = None
        self._probe_successes = self._probe_failures = 0


class BreakerPair:
    """Breakers of backends that serve one request together, such as prefill and decode: both let it through or neither."""

    def __init__(self, *breakers: Breaker) -> None:
        self._breakers = breakers

    def begin(self, now_s: float) -> tuple[Permit, ...] | None:
        """One permit of each breaker, in order, or None, and then no probe's place is taken."""
        if not all(breaker.allow(now_s) for breaker in self._breakers):
            return None
        permits = tuple(breaker.begin(now_s) for breaker in self._breakers)
        assert None not in permits, "a breaker that allows gives a permit"
        return tuple(permit for permit in permits if permit is not None)
