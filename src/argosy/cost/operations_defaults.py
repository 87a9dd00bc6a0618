"""Usual thresholds of operating a fleet, as typed defaults: alerts, circuit breakers, health checks.

Durations in seconds, levels as ratios. The windows follow the practice of multi-window alerting (Beyer et al. 2018, "The
Site Reliability Workbook", chapter 5), the breaker Nygard 2007, "Release It!".
"""

from __future__ import annotations

from dataclasses import dataclass

from argosy.cost.checks import at_least_one, fraction, not_negative, positive


@dataclass(frozen=True, slots=True)
class AlertThresholds:
    """When to alert: P99 over its target, a quota nearly used, a tenant far above its fair share, each for `hold_s`."""

    latency_over_target: float = 1.10
    latency_hold_s: float = 300.0
    quota_used: float = 0.90
    over_fair_share: float = 2.0
    fair_share_hold_s: float = 300.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a threshold out of range."""
        positive(latency_over_target=self.latency_over_target, over_fair_share=self.over_fair_share)
        not_negative(latency_hold_s=self.latency_hold_s, fair_share_hold_s=self.fair_share_hold_s)
        fraction(quota_used=self.quota_used)

    def latency_alerts(self, p99_s: float, target_s: float, held_s: float) -> bool:
        """Whether a P99 above its limit for `held_s` is worth an alert."""
        positive(target_s=target_s)
        not_negative(p99_s=p99_s, held_s=held_s)
        return p99_s > self.latency_over_target * target_s and held_s >= self.latency_hold_s

    def quota_alerts(self, used: float, limit: float) -> bool:
        """Whether usage has reached its alert level."""
        positive(limit=limit)
        not_negative(used=used)
        return used >= self.quota_used * limit

    def fair_share_alerts(self, used: float, fair_share: float, held_s: float) -> bool:
        """Whether a tenant above a multiple of its fair share for `held_s` is worth an alert."""
        positive(fair_share=fair_share)
        not_negative(used=used, held_s=held_s)
        return used > self.over_fair_share * fair_share and held_s >= self.fair_share_hold_s


@dataclass(frozen=True, slots=True)
class BreakerThresholds:
    """When a breaker opens (share of errors, or latency over its baseline), how long, and probes while half-open."""

    error_share: float = 0.50
    latency_over_baseline: float = 2.0
    open_s: float = 30.0
    half_open_probes: int = 5

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a threshold out of range."""
        fraction(error_share=self.error_share)
        positive(latency_over_baseline=self.latency_over_baseline, open_s=self.open_s)
        at_least_one(half_open_probes=self.half_open_probes)

    def opens(self, *, error_share: float, latency_s: float, baseline_s: float) -> bool:
        """Whether a replica with these figures is taken out."""
        fraction(error_share=error_share)
        not_negative(latency_s=latency_s)
        positive(baseline_s=baseline_s)
        return error_share >= self.error_share or latency_s >= self.latency_over_baseline * baseline_s


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """A probe every `interval_s` that fails after `timeout_s`; after `failures` in a row it counts."""

    interval_s: float
    timeout_s: float
    failures: int

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a setting out of range."""
        positive(interval_s=self.interval_s, timeout_s=self.timeout_s)
        at_least_one(failures=self.failures)

    @property
    def detection_s(self) -> float:
        """Longest time from a hang to its detection: a full interval before each probe, the last timeout included."""
        return self.failures * self.interval_s + self.timeout_s


LIVENESS = HealthCheck(interval_s=10.0, timeout_s=5.0, failures=3)
READINESS = HealthCheck(interval_s=5.0, timeout_s=3.0, failures=2)
DEEP = HealthCheck(interval_s=30.0, timeout_s=10.0, failures=1)  # generates a token
