"""What came out of a simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from argosy.errors import ConfigError
from argosy.sim.histogram import LogHistogram
from argosy.sim.outcome import RequestOutcome
from argosy.sim.stability import Stability
from argosy.sim.time_series import TimeSeries


@dataclass(frozen=True, slots=True)
class Slo:
    """Bounds that a good request keeps; None for no bound. A request of one token has no TPOT and keeps any."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a bound that is not above 0."""
        for name in ("ttft_s", "tpot_s", "e2e_s"):
            value = getattr(self, name)
            if value is not None and not value > 0.0:
                raise ConfigError(f"SLO {name} must be above 0, got {value}")

    def is_met(self, outcome: RequestOutcome) -> bool:
        """Whether an answered request keeps all bounds."""
        return (
            _within(outcome.ttft_s, self.ttft_s)
            and _within(outcome.tpot_s, self.tpot_s)
            and _within(outcome.e2e_s, self.e2e_s)
        )


def _within(value: float | None, bound: float | None) -> bool:
    return bound is None or value is None or value <= bound


@dataclass(frozen=True, slots=True)
class ReplicaCost:
    """What a replica costs: devices, dollars per hour of one of them and watts of one under load, None if not known."""

    devices: int = 1
    usd_per_device_hour: float | None = None
    watts_per_device: float | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` for what no replica has."""
        if self.devices < 1:
            raise ConfigError(f"a replica has at least 1 device, got {self.devices}")
        for name in ("usd_per_device_hour", "watts_per_device"):
            value = getattr(self, name)
            if value is not None and not value >= 0.0:
                raise ConfigError(f"{name} must not be negative, got {value}")


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of some seconds: exact mean and extremes, percentiles to `histogram.RELATIVE_ERROR`. None without values."""

    count: int
    mean_s: float | None
    least_s: float | None
    p50_s: float | None
    p90_s: float | None
    p95_s: float | None
    p99_s: float | None
    greatest_s: float | None

    @classmethod
    def of(cls, histogram: LogHistogram) -> Distribution:
        """The distribution that `histogram` has counted."""
        empty = not histogram.count
        return cls(
            count=histogram.count,
            mean_s=histogram.mean,
            least_s=None if empty else histogram.least,
            p50_s=histogram.quantile(0.5),
            p90_s=histogram.quantile(0.9),
            p95_s=histogram.quantile(0.95),
            p99_s=histogram.quantile(0.99),
            greatest_s=None if empty else histogram.greatest,
        )


@dataclass(frozen=True, slots=True)
class ReplicaResults:
    """Sums over one replica's steps. `busy_share` is of the time in which it existed; means are over busy time."""

    name: str
    busy_s: float
    busy_share: float
    steps: int
    tokens: int
    prefill_tokens: int
    generated_tokens: int
    preemptions: int
    prefix_query_tokens: int
    prefix_hit_tokens: int
    mean_running: float | None
    mean_kv_used: float | None
    peak_kv_used: float
    usd: float | None
    energy_j: float | None


@dataclass(frozen=True, slots=True)
class SimulationResults:
    """A run in figures.

    Requests count if they arrived within the measured time; steps always.

    Attributes:
        duration_s: simulated time; measured_s: the part in which arrivals were counted.
        submitted, outcomes: requests that arrived, and how many ended how; `in_flight` have not ended.
        refused: requests that no replica took.
        ttft, tpot, e2e, queueing: of answered requests; all but TPOT from arrival, `queueing` until admission to the batch.
        itl: gaps between steps that gave one sequence tokens, over all such gaps but those of preemptions.
        requests_per_s, output_tokens_per_s: answered, per measured second.
        goodput_per_s: answered requests that kept the SLO, per measured second; slo_share: of all that were offered and have
            ended. None without an SLO.
        prefix_hit_rate: prompt tokens found in prefix caches, of those looked up; None if none were.
        usd, energy_j: over all replicas while they existed; energy is at board power while busy, so an upper bound of that
            and without idle power. None if not known.
        stability: whether the system kept up; if not, no latency here is a property of the system.
    """

    duration_s: float
    measured_s: float
    submitted: int
    refused: int
    in_flight: int
    outcomes: Mapping[str, int]
    ttft: Distribution
    tpot: Distribution
    itl: Distribution
    e2e: Distribution
    queueing: Distribution
    requests_per_s: float
    output_tokens_per_s: float
    goodput_per_s: float | None
    slo_share: float | None
    prefix_hit_rate: float | None
    preemptions: int
    corrupted: int
    usd: float | None
    energy_j: float | None
    replicas: tuple[ReplicaResults, ...]
    series: TimeSeries
    stability: Stability

    @property
    def usd_per_million_output_tokens(self) -> float | None:
        """Dollars over output tokens of the whole run, times 10^6."""
        tokens = sum(replica.generated_tokens for replica in self.replicas)
        return None if self.usd is None or not tokens else self.usd / tokens * 1e6
