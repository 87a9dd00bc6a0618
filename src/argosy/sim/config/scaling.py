"""An autoscaler: what it wants, within which limits, and how it is connected."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar

from argosy.cost.checks import not_negative, positive
from argosy.errors import ConfigError
from argosy.fleet.policies.autoscaling.autoscaler import Autoscaler, ScalingLimits
from argosy.fleet.policies.autoscaling.capacity import KnownCapacity
from argosy.fleet.policies.autoscaling.forecast import DAY_S, DailySchedule, Forecaster, HoltWinters, SeasonalNaive
from argosy.fleet.policies.autoscaling.predictive import HighestOf, PredictedRate
from argosy.fleet.policies.autoscaling.reactive import TargetLatency, TargetQueue, TargetRate, TargetUtilisation
from argosy.fleet.policies.autoscaling.signals import ScalingPolicy


@dataclass(frozen=True, slots=True)
class UtilisationRule:
    """See `TargetUtilisation`."""

    kind: ClassVar[str] = "utilisation"
    target: float = 0.7

    def __post_init__(self) -> None:
        """Raise `ConfigError` as the policy does."""
        self.make()

    def make(self) -> ScalingPolicy:
        """The policy."""
        return TargetUtilisation(self.target)


@dataclass(frozen=True, slots=True)
class QueueRule:
    """See `TargetQueue`."""

    kind: ClassVar[str] = "queue"
    target: float
    running_per_replica: float

    def __post_init__(self) -> None:
        """Raise `ConfigError` as the policy does."""
        self.make()

    def make(self) -> ScalingPolicy:
        """The policy."""
        return TargetQueue(self.target, self.running_per_replica)


@dataclass(frozen=True, slots=True)
class LatencyRule:
    """See `TargetLatency`; the latency is from arrival to the end."""

    kind: ClassVar[str] = "latency"
    target_s: float

    def __post_init__(self) -> None:
        """Raise `ConfigError` as the policy does."""
        self.make()

    def make(self) -> ScalingPolicy:
        """The policy."""
        return TargetLatency(self.target_s)


@dataclass(frozen=True, slots=True)
class RateRule:
    """See `TargetRate`; `requests_per_s` is what one replica serves."""

    kind: ClassVar[str] = "rate"
    requests_per_s: float
    target: float = 1.0
    drain_s: float = 600.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` as the policy does."""
        self.make()

    def make(self) -> ScalingPolicy:
        """The policy."""
        return TargetRate(KnownCapacity(self.requests_per_s), self.target, self.drain_s)


@dataclass(frozen=True, slots=True)
class ScheduleForecast:
    """See `DailySchedule`; `steps` are [seconds after midnight, requests per second]."""

    kind: ClassVar[str] = "daily_schedule"
    steps: tuple[tuple[float, float], ...]
    midnight_s: float = 0.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` as the forecaster does."""
        self.make()

    def make(self) -> Forecaster:
        """The forecaster."""
        return DailySchedule(self.steps, self.midnight_s)


@dataclass(frozen=True, slots=True)
class SeasonalForecast:
    """See `SeasonalNaive`."""

    kind: ClassVar[str] = "seasonal_naive"
    season_s: float = 7 * DAY_S
    bucket_s: float = 900.0
    num_seasons: int = 1

    def __post_init__(self) -> None:
        """Raise `ConfigError` as the forecaster does."""
        self.make()

    def make(self) -> Forecaster:
        """The forecaster, which knows nothing yet."""
        return SeasonalNaive(self.season_s, self.bucket_s, self.num_seasons)


@dataclass(frozen=True, slots=True)
class HoltWintersForecast:
    """See `HoltWinters`."""

    kind: ClassVar[str] = "holt_winters"
    season_s: float = DAY_S
    bucket_s: float = 900.0
    alpha: float = 0.2
    beta: float = 0.01
    gamma: float = 0.3

    def __post_init__(self) -> None:
        """Raise `ConfigError` as the forecaster does."""
        self.make()

    def make(self) -> Forecaster:
        """The forecaster, which knows nothing yet."""
        return HoltWinters(self.season_s, self.bucket_s, self.alpha, self.beta, self.gamma)


@dataclass(frozen=True, slots=True)
class PredictedRule:
    """See `PredictedRate`; `requests_per_s` is what one replica serves."""

    kind: ClassVar[str] = "predicted"
    forecast: ScheduleForecast | SeasonalForecast | HoltWintersForecast
    requests_per_s: float
    lead_s: float
    target: float = 1.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` as the policy does."""
        self.make()

    def make(self) -> ScalingPolicy:
        """The policy, whose forecaster knows nothing yet."""
        return PredictedRate(self.forecast.make(), KnownCapacity(self.requests_per_s), self.lead_s, self.target)


@dataclass(frozen=True, slots=True)
class AutoscalerSettings:
    """Adds replicas of one group and drains them again.

    Attributes:
        rules: the most that any of them wants is wanted.
        cold_start_s: from asking for a replica to its serving.
        group: whose replicas; "" where there is only one group.
        every_s: from one decision to the next.
        buffer: replicas beyond what is wanted.
        concurrency: requests in flight that fill a replica, for utilisation; None takes the engine's `max_num_seqs`.
        limits: all but `cold_start_s`, which stands here.
    """

    rules: tuple[UtilisationRule | QueueRule | LatencyRule | RateRule | PredictedRule, ...]
    cold_start_s: float
    group: str = ""
    every_s: float = 15.0
    buffer: float = 0.0
    concurrency: float | None = None
    limits: ScalingLimits = field(default_factory=ScalingLimits)

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is impossible."""
        if not self.rules:
            raise ConfigError("rules must not be empty")
        not_negative(cold_start_s=self.cold_start_s, buffer=self.buffer)
        positive(every_s=self.every_s)
        if self.concurrency is not None:
            positive(concurrency=self.concurrency)
        if self.limits.cold_start_s:
            raise ConfigError("limits must not have cold_start_s: the one beside rules counts")
        self.make()

    def make(self) -> Autoscaler:
        """The autoscaler, which remembers nothing yet.

        Raises:
            ConfigError: the limits are impossible with this cold start.
        """
        policy = HighestOf(tuple(rule.make() for rule in self.rules), self.buffer)
        return Autoscaler(policy, dataclasses.replace(self.limits, cold_start_s=self.cold_start_s))
