"""Scaling policies that answer to what is measured: ceil(measure / target x replicas), rounded by the autoscaler."""

from __future__ import annotations

from dataclasses import dataclass

from argosy.errors import ConfigError
from argosy.fleet.policies.autoscaling.capacity import Capacity
from argosy.fleet.policies.autoscaling.signals import FleetSignals


@dataclass(frozen=True, slots=True)
class TargetUtilisation:
    """As many replicas as bring the mean utilisation to `target`, in (0, 1].

    The load is shared by the ready ones only, so their number is what is scaled, and whoever starts already is not asked
    for again. Since load moves to the survivors, N - 1 replicas are enough only if they stay below the target too.
    """

    target: float = 0.7

    def __post_init__(self) -> None:
        """Raise `ConfigError` if the target is out of range."""
        if not 0.0 < self.target <= 1.0:
            raise ConfigError(f"target utilisation must be within (0, 1], got {self.target}")

    def wanted(self, signals: FleetSignals) -> float:
        """Ready x utilisation / target."""
        return signals.num_ready * signals.utilisation / self.target


@dataclass(frozen=True, slots=True)
class TargetQueue:
    """As many replicas as leave at most `target` requests waiting for each, and no fewer than the running ones need.

    Attributes:
        running_per_replica: requests that one replica runs at once.
    """

    target: float
    running_per_replica: float

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the value that is not positive."""
        for name in ("target", "running_per_replica"):
            if not getattr(self, name) > 0.0:
                raise ConfigError(f"{name} of a queue target must be above 0, got {getattr(self, name)}")

    def wanted(self, signals: FleetSignals) -> float:
        """The larger of waiting / target and running / running_per_replica."""
        return max(signals.num_waiting / self.target, signals.num_running / self.running_per_replica)


@dataclass(frozen=True, slots=True)
class TargetLatency:
    """Replicas in proportion to P99 latency over its target, in seconds. Without requests, it wants nothing."""

    target_s: float

    def __post_init__(self) -> None:
        """Raise `ConfigError` if the target is not positive."""
        if not self.target_s > 0.0:
            raise ConfigError(f"target_s must be above 0, got {self.target_s}")

    def wanted(self, signals: FleetSignals) -> float:
        """Ready x P99 / target."""
        return 0.0 if signals.p99_latency_s is None else signals.num_ready * signals.p99_latency_s / self.target_s


@dataclass(frozen=True, slots=True)
class TargetRate:
    """Replicas for the requests that arrive and for those that wait, which are to be worked off within `drain_s`.

    Attributes:
        capacity: what one replica serves.
        target: utilisation at which it is to run, (0, 1].
        drain_s: seconds. A backlog that is to vanish within about the start of a replica wants many of them for a short
            time; with math.inf the backlog is worked off by what is spare.
    """

    capacity: Capacity
    target: float = 1.0
    drain_s: float = 600.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the value that is out of range."""
        if not 0.0 < self.target <= 1.0:
            raise ConfigError(f"target utilisation must be within (0, 1], got {self.target}")
        if not self.drain_s > 0.0:
            raise ConfigError(f"drain_s must be above 0, got {self.drain_s}")

    def wanted(self, signals: FleetSignals) -> float:
        """(arrivals per second + waiting / drain_s) / (capacity x target)."""
        demand_per_s = signals.arrivals_per_s + signals.num_waiting / self.drain_s
        return demand_per_s / (self.capacity.requests_per_s * self.target)
