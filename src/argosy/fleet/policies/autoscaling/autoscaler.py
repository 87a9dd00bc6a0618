"""From what a policy wants to a number of replicas that does not flap."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from argosy.errors import ConfigError
from argosy.fleet.policies.autoscaling.signals import FleetSignals, ScaleDecision, ScaleReason, ScalingPolicy

# What is left of dividing and multiplying: 30.000000000000004 replicas are 30.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class ScalingLimits:
    """How an autoscaler may act.

    Attributes:
        min_replicas, max_replicas: bounds, ready and starting together; 0 allows scaling to zero.
        tolerance: part by which what is wanted must exceed what is there before it grows, and by which the survivors must
            have room before it shrinks: hysteresis.
        up_window_s: it grows to the least that was wanted during this time; 0 is at once.
        down_window_s: it shrinks to the most that was wanted during this time.
        idle_to_zero_s: without a request for so long, it goes to zero, whatever the policy wants; None never does.
        cold_start_s: how long a replica takes to serve. `down_window_s` must not be shorter: else replicas are given back
            that are wanted again before they could be there again.
        max_starting: replicas that may start at once, None for no limit.
    """

    min_replicas: int = 1
    max_replicas: int = 1000
    tolerance: float = 0.1
    up_window_s: float = 0.0
    down_window_s: float = 300.0
    idle_to_zero_s: float | None = None
    cold_start_s: float = 0.0
    max_starting: int | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        if not 0 <= self.min_replicas <= self.max_replicas or self.max_replicas < 1:
            raise ConfigError(
                f"min_replicas ({self.min_replicas}) and max_replicas ({self.max_replicas}) must be "
                "0 <= min_replicas <= max_replicas, and max_replicas at least 1"
            )
        for name in ("tolerance", "up_window_s", "down_window_s", "cold_start_s"):
            if not getattr(self, name) >= 0.0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.down_window_s < self.cold_start_s:
            raise ConfigError(
                f"down_window_s ({self.down_window_s}) must not be shorter than cold_start_s ({self.cold_start_s})"
            )
        if self.idle_to_zero_s is not None and (self.min_replicas > 0 or self.idle_to_zero_s < 0.0):
            raise ConfigError("idle_to_zero_s needs min_replicas 0 and must not be negative")
        if self.max_starting is not None and self.max_starting < 1:
            raise ConfigError(f"max_starting must be at least 1, got {self.max_starting}")


class Autoscaler:
    """Decides how many replicas there should be. One instance acts on a fleet at a time.

    What is starting counts as there: a load of twice the capacity asks for twice the replicas once, not again at every
    call until the first of them serves.
    """

    def __init__(self, policy: ScalingPolicy, limits: ScalingLimits) -> None:
        self.policy = policy
        self.limits = limits
        self._wanted: deque[tuple[float, float]] = deque()
        self._began_s: float | None = None
        self._busy_s: float | None = None

    def decide(self, signals: FleetSignals) -> ScaleDecision:
        """The number of replicas there should be from `signals.now_s` on. Remembers what was wanted in its windows."""
        limits, now_s, current = self.limits, signals.now_s, signals.num_replicas
        wanted = self.policy.wanted(signals)
        self._remember(now_s, wanted)
        has_requests = signals.num_waiting > 0 or signals.num_running > 0 or signals.arrivals_per_s > 0.0
        if has_requests or self._busy_s is None:
            self._busy_s = now_s
        if limits.idle_to_zero_s is not None and now_s - self._busy_s >= limits.idle_to_zero_s:
            reason = ScaleReason.TO_ZERO if current else ScaleReason.STEADY
            return ScaleDecision(0, wanted, reason)
        if current == 0 and has_requests:
            number, reason = _ceil(wanted), ScaleReason.FROM_ZERO
        else:
            number, reason = self._within_windows(current, wanted, now_s)
        return ScaleDecision(self._bounded(number, signals, has_requests), wanted, reason)

    def _within_windows(self, current: int, wanted: float, now_s: float) -> tuple[int, ScaleReason]:
        limits = self.limits
        grows_above = current * (1.0 + limits.tolerance)
        if wanted > grows_above:
            least = self._least_since(now_s - limits.up_window_s)
            return (_ceil(least), ScaleReason.UP) if least > grows_above else (current, ScaleReason.UP_HELD)
        if _ceil(wanted * (1.0 + limits.tolerance)) < current:
            most = self._most_since(now_s - limits.down_window_s) * (1.0 + limits.tolerance)
            return (_ceil(most), ScaleReason.DOWN) if most <= current - 1 else (current, ScaleReason.DOWN_HELD)
        return current, ScaleReason.STEADY

    def _bounded(self, number: int, signals: FleetSignals, has_requests: bool) -> int:
        """Within the limits, and not zero while there are requests or, with `idle_to_zero_s`, before it has passed."""
        limits = self.limits
        last_one = has_requests or (limits.idle_to_zero_s is not None and signals.num_replicas > 0)
        number = min(max(number, limits.min_replicas, int(last_one)), limits.max_replicas)
        if limits.max_starting is not None:
            number = min(number, max(signals.num_replicas, signals.num_ready + limits.max_starting))
        return number

    def _remember(self, now_s: float, wanted: float) -> None:
        if self._began_s is None:
            self._began_s = now_s
        self._wanted.append((now_s, wanted))
        oldest_s = now_s - max(self.limits.up_window_s, self.limits.down_window_s)
        while self._wanted[0][0] < oldest_s:
            self._wanted.popleft()

    def _least_since(self, since_s: float) -> float:
        """The least wanted in the window, or 0 if there was not yet a whole one to look at."""
        if self._began_s is None or self._began_s > since_s:
            return 0.0
        return min(wanted for at_s, wanted in self._wanted if at_s >= since_s)

    def _most_since(self, since_s: float) -> float:
        """The most wanted in the window, or infinity likewise."""
        if self._began_s is None or self._began_s > since_s:
            return math.inf
        return max(wanted for at_s, wanted in self._wanted if at_s >= since_s)


def _ceil(number: float) -> int:
    return math.ceil(number * (1.0 - _ROUNDING))
