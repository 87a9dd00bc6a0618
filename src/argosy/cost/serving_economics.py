"""What serving costs: dollars per token as a range, spot and region prices, cascades."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from argosy.cost.checks import at_least_one, fraction, not_negative, positive
from argosy.errors import ConfigError

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class DollarRange:
    """A price or cost from `low` to `high`; one price is a range of no width."""

    low: float
    high: float

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a range that is none."""
        not_negative(low=self.low, high=self.high)
        if self.low > self.high:
            raise ConfigError(f"a range goes from low to high, got {self.low} to {self.high}")

    @classmethod
    def exactly(cls, dollars: float) -> DollarRange:
        """One price."""
        return cls(dollars, dollars)

    def times(self, factor: float) -> DollarRange:
        """Both ends scaled by a factor that is not negative."""
        not_negative(factor=factor)
        return DollarRange(self.low * factor, self.high * factor)


def dollars_per_million_tokens(devices: int, dollars_per_device_hour: DollarRange, tokens_per_s: float) -> DollarRange:
    """Devices x $/h / (3600 x tokens/s) x 10^6, of all tokens that `tokens_per_s` counts.

    Raises:
        ConfigError: no device or no throughput.
    """
    at_least_one(devices=devices)
    positive(tokens_per_s=tokens_per_s)
    return dollars_per_device_hour.times(devices / (_HOUR_S * tokens_per_s) * 1e6)


def spot_saving(spot_share: float, discount: float) -> float:
    """Share of the bill saved when `spot_share` of traffic runs at `discount` off: their product.

    Raises:
        ConfigError: a share or discount outside 0 to 1.
    """
    fraction(spot_share=spot_share, discount=discount)
    return spot_share * discount


@dataclass(frozen=True, slots=True)
class RegionPrice:
    """Prices of one accelerator in one region, $/h, and round trips to users there, ms.

    Dated examples for comparing regions, not offers.
    """

    region: str
    device: str
    on_demand_usd_per_h: float
    spot_usd_per_h: float
    rtt_ms: tuple[float, float]


# Typical of 2024 list prices; RTT to users in the United States.
H100_REGIONS = (
    RegionPrice("us-east", "H100", 4.00, 2.50, (10.0, 50.0)),
    RegionPrice("us-west", "H100", 3.80, 2.30, (30.0, 70.0)),
    RegionPrice("eu-west", "H100", 4.20, 2.80, (75.0, 100.0)),
)


def cheapest_region(regions: Sequence[RegionPrice], *, rtt_budget_ms: float, spot: bool = False) -> RegionPrice:
    """The cheapest region whose longest round trip fits the budget; of equals the nearest.

    Raises:
        ConfigError: none fits; says which comes closest.
    """
    positive(rtt_budget_ms=rtt_budget_ms)
    if not regions:
        raise ConfigError("no region to choose from")
    fitting = [region for region in regions if region.rtt_ms[1] <= rtt_budget_ms]
    if not fitting:
        nearest = min(regions, key=lambda region: region.rtt_ms[1])
        raise ConfigError(f"no region answers within {rtt_budget_ms} ms; {nearest.region} needs {nearest.rtt_ms[1]} ms")
    return min(fitting, key=lambda r: (r.spot_usd_per_h if spot else r.on_demand_usd_per_h, r.rtt_ms[1]))


@dataclass(frozen=True, slots=True)
class CascadeStage:
    """A stage that scores `candidates` at `seconds_per_candidate`, or takes `fixed_s` for all of them."""

    name: str
    candidates: int
    seconds_per_candidate: float = 0.0
    fixed_s: float = 0.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` for counts and times that cannot be."""
        at_least_one(candidates=self.candidates)
        not_negative(seconds_per_candidate=self.seconds_per_candidate, fixed_s=self.fixed_s)

    @property
    def seconds(self) -> float:
        """Time of the stage."""
        return self.fixed_s + self.candidates * self.seconds_per_candidate


def cascade_seconds(stages: Sequence[CascadeStage]) -> float:
    """Latency of stages run one after another, each on no more candidates than the one before.

    Raises:
        ConfigError: no stage, or one with more candidates than the one before it.
    """
    if not stages:
        raise ConfigError("a cascade needs at least one stage")
    for before, after in zip(stages, stages[1:], strict=False):
        if after.candidates > before.candidates:
            raise ConfigError(f"{after.name} scores {after.candidates} candidates of {before.candidates} from {before.name}")
    return sum(stage.seconds for stage in stages)


def cascade_speedup(stages: Sequence[CascadeStage], *, candidates: int, seconds_per_candidate: float) -> float:
    """How much faster than scoring all `candidates` with the last stage's model.

    Raises:
        ConfigError: as `cascade_seconds`, or a cascade that takes no time.
    """
    at_least_one(candidates=candidates)
    positive(seconds_per_candidate=seconds_per_candidate)
    taken_s = cascade_seconds(stages)
    positive(cascade_seconds=taken_s)
    return candidates * seconds_per_candidate / taken_s
