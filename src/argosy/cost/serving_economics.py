"""What serving costs: dollars per token as a range, spot and region prices, cascades."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from argosy.cost.checks import at_least_one, fraction, not_negative, positive
from argosy.cost.device import Device
from argosy.cost.prices import PriceRange, Region, Term, all_regions, price_range, prices_of
from argosy.cost.quantity import Grade
from argosy.errors import ConfigError

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class TokenPrice:
    """Dollars per million tokens, from the low to the high end of what the devices cost; `grade` and `oldest` of prices."""

    low_usd: float
    high_usd: float
    grade: Grade
    oldest: str


def dollars_per_million_tokens(devices: int, price: PriceRange, tokens_per_s: float) -> TokenPrice:
    """Devices x $/h / (3600 x tokens/s) x 10^6, of all tokens that `tokens_per_s` counts.

    Raises:
        ConfigError: no device or no throughput.
    """
    at_least_one(devices=devices)
    positive(tokens_per_s=tokens_per_s)
    hours = devices / (_HOUR_S * tokens_per_s) * 1e6
    return TokenPrice(price.low_usd_per_h * hours, price.high_usd_per_h * hours, price.grade, price.oldest)


def spot_saving(spot_share: float, discount: float) -> float:
    """Share of the bill saved when `spot_share` of traffic runs at `discount` off: their product.

    Raises:
        ConfigError: a share or discount outside 0 to 1.
    """
    fraction(spot_share=spot_share, discount=discount)
    return spot_share * discount


def cheapest_region(device: Device, *, rtt_budget_ms: float, term: Term = Term.ON_DEMAND) -> Region:
    """The region with the lowest price of `device` whose longest round trip fits the budget; of equals the nearest.

    Raises:
        ConfigError: no region fits, or none that does has a price on this term.
    """
    positive(rtt_budget_ms=rtt_budget_ms)
    regions = sorted(all_regions(), key=lambda region: region.rtt_high.value)
    fitting = [region for region in regions if region.rtt_high.value * 1e3 <= rtt_budget_ms]
    if not fitting:
        nearest = regions[0]
        raise ConfigError(
            f"no region answers within {rtt_budget_ms:g} ms; {nearest.name} needs {nearest.rtt_high.value * 1e3:g}"
        )
    priced = [region for region in fitting if prices_of(device, term=term, region=region.name)]
    if not priced:
        raise ConfigError(f"no {term} price of {device.name} is known within {rtt_budget_ms:g} ms; state one")
    return min(priced, key=lambda region: price_range(device, term=term, region=region.name).low_usd_per_h)


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
    for before, after in itertools.pairwise(stages):
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
