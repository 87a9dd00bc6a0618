"""When to raise an alert: slow answers, quotas nearly used up, tenants that take more than their share.

A rule is told what happens and asked at intervals which alerts hold; it answers with changes only.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from argosy.errors import ConfigError


class AlertChange(NamedTuple):
    """An alert began or ended to hold.

    Attributes:
        alert: "latency", "quota" or "noisy_neighbour".
        subject: model, scope or tenant; value: what was found; threshold: what it was compared with.
    """

    alert: str
    subject: str
    is_firing: bool
    value: float
    threshold: float
    at_s: float


class Sustained:
    """Whether a condition has held without a break for `hold_s`; one observation against it ends it."""

    __slots__ = ("_hold_s", "_since_s", "is_firing")

    def __init__(self, hold_s: float) -> None:
        self._hold_s = hold_s
        self._since_s: float | None = None
        self.is_firing = False

    def observe(self, holds: bool, now_s: float) -> bool:
        """Take in the condition at `now_s`; return whether `is_firing` changed."""
        if not holds:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now_s
        fires = self._since_s is not None and now_s - self._since_s >= self._hold_s
        changed = fires != self.is_firing
        self.is_firing = fires
        return changed


class RollingPercentile:
    """A percentile of the values of the last `window_s`, to within `GROWTH` of it, in bounded memory.

    Values are counted in buckets whose bounds grow by a constant factor (as in HdrHistogram and DDSketch); the window is a
    ring of `SLOTS` parts, the oldest of which is dropped whole.
    """

    GROWTH = 1.02
    SLOTS = 6
    LOWEST, HIGHEST = 1e-4, 1e5

    def __init__(self, window_s: float) -> None:
        self._slot_s = window_s / self.SLOTS
        self._slots: deque[tuple[int, dict[int, int]]] = deque()

    def observe(self, value: float, now_s: float) -> None:
        """Count `value`; one outside [`LOWEST`, `HIGHEST`] counts as the nearer bound."""
        number = math.floor(now_s / self._slot_s)
        if not self._slots or self._slots[-1][0] != number:
            self._slots.append((number, {}))
        clamped = min(self.HIGHEST, max(self.LOWEST, value))
        bucket = math.ceil(math.log(clamped / self.LOWEST, self.GROWTH))
        counts = self._slots[-1][1]
        counts[bucket] = counts.get(bucket, 0) + 1
        self._forget(number)

    def value(self, fraction: float, now_s: float) -> float | None:
        """The smallest bucket bound that `fraction` of the values do not exceed; None if there are no values."""
        self._forget(math.floor(now_s / self._slot_s))
        merged: dict[int, int] = {}
        for _, counts in self._slots:
            for bucket, count in counts.items():
                merged[bucket] = merged.get(bucket, 0) + count
        total = sum(merged.values())
        reached = 0
        for bucket in sorted(merged):
            reached += merged[bucket]
            if reached >= fraction * total:
                return float(self.LOWEST * self.GROWTH**bucket)
        return None

    def _forget(self, number: int) -> None:
        while self._slots and self._slots[0][0] <= number - self.SLOTS:
            self._slots.popleft()


@dataclass(frozen=True, slots=True)
class AlertConfig:
    """When alerts are raised.

    Attributes:
        latency_target_s: of the 99th percentile; None watches no latency. latency_factor: times it that alerts.
        quota_ratio: of a limit in use that alerts at once.
        fair_share_factor: times its fair share that makes a tenant a noisy neighbour.
        hold_s: how long latency and share must stay there; window_s: over which both are taken.
        max_subjects: models and tenants that are watched each; further ones are not.
    """

    latency_target_s: float | None = None
    latency_factor: float = 1.10
    quota_ratio: float = 0.90
    fair_share_factor: float = 2.0
    hold_s: float = 300.0
    window_s: float = 60.0
    max_subjects: int = 1000

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        if self.latency_target_s is not None and not 0.0 < self.latency_target_s < math.inf:
            raise ConfigError(f"latency_target_s must be above 0, got {self.latency_target_s}")
        if not self.latency_factor >= 1.0:
            raise ConfigError(f"latency_factor must be at least 1, got {self.latency_factor}")
        if not 0.0 < self.quota_ratio <= 1.0:
            raise ConfigError(f"quota_ratio must be above 0 and at most 1, got {self.quota_ratio}")
        if not self.fair_share_factor > 1.0:
            raise ConfigError(f"fair_share_factor must be above 1, got {self.fair_share_factor}")
        if not (0.0 <= self.hold_s < math.inf and 0.0 < self.window_s < math.inf):
            raise ConfigError(f"hold_s must not be negative and window_s above 0, got {self.hold_s} and {self.window_s}")
        if self.max_subjects < 1:
            raise ConfigError(f"max_subjects must be at least 1, got {self.max_subjects}")


class LatencyRule:
    """The 99th percentile of a model's latency stays above `latency_factor` x its target."""

    def __init__(self, config: AlertConfig) -> None:
        self._config = config
        self._latencies: dict[str, RollingPercentile] = {}
        self._states: dict[str, Sustained] = {}

    def observe(self, model: str, latency_s: float, now_s: float) -> None:
        """A request of `model` was answered."""
        found = self._latencies.get(model)
        if found is None:
            if len(self._latencies) >= self._config.max_subjects:
                return
            found = self._latencies[model] = RollingPercentile(self._config.window_s)
        found.observe(latency_s, now_s)

    def p99_s(self, now_s: float) -> dict[str, float]:
        """By model, of those that were asked within the window."""
        values = {model: latencies.value(0.99, now_s) for model, latencies in self._latencies.items()}
        return {model: value for model, value in values.items() if value is not None}

    def changes(self, now_s: float) -> list[AlertChange]:
        """Alerts that began or ended. A model that nobody asks alerts no longer, and is forgotten."""
        target_s = self._config.latency_target_s
        if target_s is None:
            return []
        threshold_s, p99_s = self._config.latency_factor * target_s, self.p99_s(now_s)
        found = _sustained(self._states, "latency", p99_s, threshold_s, self._config.hold_s, now_s)
        self._latencies = {model: kept for model, kept in self._latencies.items() if model in p99_s}
        return found


class FairShareRule:
    """A tenant's part of the served tokens stays above `fair_share_factor` x the part that its weight gives it.

    Fair is weight over the weights of all tenants that were served within the window: the idle ones leave their share.
    """

    def __init__(self, config: AlertConfig) -> None:
        self._config = config
        self._slot_s = config.window_s / RollingPercentile.SLOTS
        self._slots: deque[tuple[int, dict[str, float]]] = deque()
        self._weights: dict[str, float] = {}
        self._states: dict[str, Sustained] = {}

    def observe(self, tenant: str, tokens: float, now_s: float, *, weight: float = 1.0) -> None:
        """`tenant` was served `tokens`."""
        if tenant not in self._weights and len(self._weights) >= self._config.max_subjects:
            return
        self._weights[tenant] = weight
        number = math.floor(now_s / self._slot_s)
        if not self._slots or self._slots[-1][0] != number:
            self._slots.append((number, {}))
        served = self._slots[-1][1]
        served[tenant] = served.get(tenant, 0.0) + tokens

    def ratios(self, now_s: float) -> dict[str, float]:
        """By tenant, its part of the served tokens over its fair part; 1.0 is exactly fair."""
        oldest = math.floor(now_s / self._slot_s) - RollingPercentile.SLOTS
        while self._slots and self._slots[0][0] <= oldest:
            self._slots.popleft()
        served: dict[str, float] = {}
        for _, slot in self._slots:
            for tenant, tokens in slot.items():
                served[tenant] = served.get(tenant, 0.0) + tokens
        self._weights = {tenant: self._weights[tenant] for tenant in served}
        total, total_weight = sum(served.values()), sum(self._weights.values())
        if total <= 0.0:
            return {}
        return {tenant: (tokens / total) / (self._weights[tenant] / total_weight) for tenant, tokens in served.items()}

    def changes(self, now_s: float) -> list[AlertChange]:
        """Alerts that began or ended."""
        factor = self._config.fair_share_factor
        return _sustained(self._states, "noisy_neighbour", self.ratios(now_s), factor, self._config.hold_s, now_s)


class QuotaRule:
    """A limit is used to `quota_ratio` or more; no waiting, since what is used up is used up."""

    def __init__(self, config: AlertConfig) -> None:
        self._config = config
        self._firing: set[str] = set()

    def changes(self, used: Mapping[str, float], now_s: float) -> list[AlertChange]:
        """Alerts that began or ended, given the part in use of every limit that is watched, by name."""
        threshold = self._config.quota_ratio
        # Parts are quotients of counts: 0.9 of a limit must not be missed for the last bit.
        firing = {name for name, ratio in used.items() if ratio >= threshold - 1e-9}
        begun = [AlertChange("quota", name, True, used[name], threshold, now_s) for name in sorted(firing - self._firing)]
        ended = [
            AlertChange("quota", name, False, used.get(name, 0.0), threshold, now_s)
            for name in sorted(self._firing - firing)
        ]
        self._firing = firing
        return begun + ended


def _sustained(
    states: dict[str, Sustained], alert: str, values: Mapping[str, float], threshold: float, hold_s: float, now_s: float
) -> list[AlertChange]:
    """Changes of `alert` for every subject of `values` and of `states`, which keeps only subjects above the threshold."""
    changes = []
    for subject in [*values, *(known for known in states if known not in values)]:
        value = values.get(subject, 0.0)
        is_above = value > threshold * (1.0 + 1e-12)
        if not is_above and subject not in states:
            continue
        state = states.setdefault(subject, Sustained(hold_s))
        if state.observe(is_above, now_s):
            changes.append(AlertChange(alert, subject, state.is_firing, value, threshold, now_s))
        if not is_above:
            del states[subject]
    return changes
