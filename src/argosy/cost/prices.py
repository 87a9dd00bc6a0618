"""What an hour of a device costs: dated ranges by term, region and seller. A cost made from them is a range as well."""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from argosy.cost.catalogue import catalogue_text, find_device
from argosy.cost.catalogue_devices import parse_catalogue
from argosy.cost.catalogue_names import fold
from argosy.cost.catalogue_sources import Sources, check_keys
from argosy.cost.device import Device
from argosy.cost.quantity import Dimension, Grade, Quantity, worst_grade
from argosy.errors import ConfigError


class Term(enum.StrEnum):
    """How a device is paid for."""

    ON_DEMAND = "on demand"
    RESERVED = "reserved"
    SPOT = "spot"


@dataclass(frozen=True, slots=True)
class Price:
    """One device for one hour, from one seller. `region` is "" where the source names none."""

    device: str
    term: Term
    region: str
    seller: str
    low: Quantity
    high: Quantity


@dataclass(frozen=True, slots=True)
class PriceRange:
    """The span of one or more prices in $/h, with the worst of their grades and the oldest of their dates.

    `oldest` is "" for a price that the user states.
    """

    low_usd_per_h: float
    high_usd_per_h: float
    grade: Grade
    oldest: str

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a range that is empty, negative or not finite."""
        if not (math.isfinite(self.high_usd_per_h) and 0 <= self.low_usd_per_h <= self.high_usd_per_h):
            raise ConfigError(f"a price range needs 0 <= low <= high, got {self.low_usd_per_h} to {self.high_usd_per_h} $/h")


@dataclass(frozen=True, slots=True)
class Region:
    """A place to rent in, with the round trip to users in the United States."""

    name: str
    rtt_low: Quantity
    rtt_high: Quantity


def load_prices(text: str) -> tuple[tuple[Price, ...], tuple[Region, ...]]:
    """The prices and regions of a catalogue file.

    Raises:
        ConfigError: names the entry and what is wrong with it, an unknown device among others.
    """
    sources, tables = parse_catalogue(text, ("price", "region"))
    regions = tuple(_region(sources, entry) for entry in tables["region"])
    return tuple(_price(sources, entry, regions) for entry in tables["price"]), regions


def _region(sources: Sources, entry: Mapping[str, Any]) -> Region:
    where = f"region {entry.get('name')!r}"
    check_keys(entry, where, required=("name", "rtt_low", "rtt_high", "source"))
    low, high = (sources.quantity(entry[key], Dimension.SECONDS, entry["source"], where) for key in ("rtt_low", "rtt_high"))
    if low.value > high.value:
        raise ConfigError(f"{where}: rtt_low is above rtt_high")
    return Region(entry["name"], low, high)


def _price(sources: Sources, entry: Mapping[str, Any], regions: Iterable[Region]) -> Price:
    where = f"price of {entry.get('device')!r}"
    check_keys(entry, where, required=("device", "term", "seller", "region", "low", "high", "source"))
    if entry["term"] not in set(Term):
        raise ConfigError(f"{where}: term must be one of {', '.join(Term)}, got {entry['term']!r}")
    if entry["region"] not in ("", *(region.name for region in regions)):
        raise ConfigError(f"{where}: region {entry['region']!r} is not in the file")
    low, high = (sources.quantity(entry[key], Dimension.USD_PER_HOUR, entry["source"], where) for key in ("low", "high"))
    if not 0 < low.value <= high.value:
        raise ConfigError(f"{where}: needs 0 < low <= high, got {low.value} to {high.value}")
    device = find_device(entry["device"]).name
    return Price(device, Term(entry["term"]), entry["region"], entry["seller"], low, high)


@functools.cache
def _catalogue() -> tuple[tuple[Price, ...], tuple[Region, ...]]:
    return load_prices(catalogue_text("prices.toml"))


def all_prices() -> tuple[Price, ...]:
    """Every price of the catalogue."""
    return _catalogue()[0]


def all_regions() -> tuple[Region, ...]:
    """Every region of the catalogue."""
    return _catalogue()[1]


def find_region(name: str) -> Region:
    """The region of that name.

    Raises:
        ConfigError: unknown; names those known.
    """
    for region in all_regions():
        if fold(region.name) == fold(name):
            return region
    raise ConfigError(f"no region is called {name!r}; known are {', '.join(region.name for region in all_regions())}")


def prices_of(device: Device, *, term: Term | None = None, region: str | None = None) -> tuple[Price, ...]:
    """The prices known for a device; those of one term or region if given.

    Raises:
        ConfigError: the region is unknown.
    """
    place = None if region is None else find_region(region).name
    return tuple(
        price
        for price in all_prices()
        if price.device == device.name and term in (None, price.term) and place in (None, price.region)
    )


def price_range(device: Device, *, term: Term = Term.ON_DEMAND, region: str | None = None) -> PriceRange:
    """The span of all known prices of a device on one term.

    Raises:
        ConfigError: none is known (never a default), or the region is unknown.
    """
    prices = prices_of(device, term=term, region=region)
    if not prices:
        place = "" if region is None else f" in {region}"
        raise ConfigError(f"no {term} price of {device.name} is known{place}; state a price per hour")
    return PriceRange(
        low_usd_per_h=min(price.low.value for price in prices),
        high_usd_per_h=max(price.high.value for price in prices),
        grade=worst_grade(quantity.grade for price in prices for quantity in (price.low, price.high)),
        oldest=min(quantity.as_of for price in prices for quantity in (price.low, price.high)),
    )
