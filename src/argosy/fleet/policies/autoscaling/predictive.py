"""Scaling policies that act on a forecast, and the combination of several policies."""

from __future__ import annotations

import math
from dataclasses import dataclass

from argosy.errors import ConfigError
from argosy.fleet.policies.autoscaling.capacity import Capacity
from argosy.fleet.policies.autoscaling.forecast import Forecaster, highest_rate_per_s
from argosy.fleet.policies.autoscaling.signals import FleetSignals, ScalingPolicy


@dataclass(frozen=True, slots=True)
class PredictedRate:
    """Replicas for the highest rate expected between now and `lead_s` ahead.

    `lead_s` covers the start of a replica and a margin: whoever is asked for when the forecast first shows a rise is warm
    when it comes. A fall that is expected changes nothing before it is there.

    Attributes:
        capacity: what one replica serves.
        target: utilisation at which it is to run, (0, 1].
    """

    forecaster: Forecaster
    capacity: Capacity
    lead_s: float
    target: float = 1.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the value that is out of range."""
        if not 0.0 < self.target <= 1.0:
            raise ConfigError(f"target utilisation must be within (0, 1], got {self.target}")
        if self.lead_s < 0.0:
            raise ConfigError(f"lead_s must not be negative, got {self.lead_s}")

    def wanted(self, signals: FleetSignals) -> float:
        """Highest expected rate / (capacity x target), or 0 while nothing is known. Teaches the forecaster."""
        self.forecaster.observe(signals.now_s, signals.arrivals_per_s)
        rate = highest_rate_per_s(self.forecaster, signals.now_s, signals.now_s + self.lead_s)
        return 0.0 if rate is None else rate / (self.capacity.requests_per_s * self.target)


@dataclass(frozen=True, slots=True)
class HighestOf:
    """The most that any of several policies wants, such as max(predicted, reactive), and `buffer` replicas more."""

    policies: tuple[ScalingPolicy, ...]
    buffer: float = 0.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` if there is no policy."""
        if not self.policies:
            raise ConfigError("HighestOf needs at least one policy")

    def wanted(self, signals: FleetSignals) -> float:
        """Asks every policy, so that each goes on learning."""
        return max([policy.wanted(signals) for policy in self.policies]) + self.buffer


def warm_pool_size(peak_per_s: float, capacity_per_s: float, margin: float = 1.0) -> int:
    """Replicas to keep warm: peak rate / what one serves x margin, rounded up."""
    return math.ceil(peak_per_s / capacity_per_s * margin)
