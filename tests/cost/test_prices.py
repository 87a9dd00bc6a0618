"""Prices by device, term and region."""

from __future__ import annotations

import math
from datetime import date

import pytest

from argosy.cost.catalogue import catalogue_text, find_device
from argosy.cost.prices import PriceRange, Term, all_prices, all_regions, find_region, load_prices, price_range, prices_of
from argosy.cost.quantity import Grade
from argosy.errors import ConfigError


@pytest.mark.parametrize(
    ("region", "on_demand", "spot"), [("US-East", 4.00, 2.50), ("us-west", 3.80, 2.30), ("EU-West", 4.20, 2.80)]
)
def test_regions_of_the_worked_example(region: str, on_demand: float, spot: float) -> None:
    device = find_device("H100 SXM")
    for term, usd in ((Term.ON_DEMAND, on_demand), (Term.SPOT, spot)):
        span = price_range(device, term=term, region=region)
        assert (span.low_usd_per_h, span.high_usd_per_h) == (usd, usd)


def test_round_trips_to_users() -> None:
    spans = {region.name: (region.rtt_low.value, region.rtt_high.value) for region in all_regions()}
    assert spans == {"US-East": (0.01, 0.05), "US-West": (0.03, 0.07), "EU-West": (0.075, 0.1)}


def test_a_range_spans_all_sellers() -> None:
    span = price_range(find_device("H100 SXM"))
    assert (span.low_usd_per_h, span.high_usd_per_h) == (3.80, 6.98)
    assert span.high_usd_per_h / span.low_usd_per_h > 1.7
    assert price_range(find_device("MI300X")).low_usd_per_h == 1.99


def test_a_range_is_as_old_as_its_oldest_price() -> None:
    assert price_range(find_device("H200")).oldest == "2026-01-31"
    assert price_range(find_device("H200")).grade is Grade.SECONDARY


def test_a_price_nobody_stated_is_not_made_up() -> None:
    with pytest.raises(ConfigError, match="no on demand price of B200 SXM is known; state a price per hour"):
        price_range(find_device("B200"))
    with pytest.raises(ConfigError, match="no reserved price of H100 SXM is known in US-East"):
        price_range(find_device("H100 SXM"), term=Term.RESERVED, region="US-East")
    with pytest.raises(ConfigError, match="no region is called 'Mars'; known are US-East"):
        price_range(find_device("H100 SXM"), region="Mars")
    assert prices_of(find_device("B200")) == ()


def test_every_price_has_seller_source_and_date() -> None:
    assert len(all_prices()) > 15
    for price in all_prices():
        assert price.seller
        assert 0 < price.low.value <= price.high.value < 20
        assert date.fromisoformat(price.low.as_of)
        assert find_device(price.device).name == price.device


def test_regions_are_found_by_name_only() -> None:
    assert find_region("eu west").name == "EU-West"


@pytest.mark.parametrize(("low", "high"), [(2.0, 1.0), (-1.0, 1.0), (0.0, math.inf), (math.nan, 1.0)])
def test_ranges_that_cannot_be(low: float, high: float) -> None:
    with pytest.raises(ConfigError, match="0 <= low <= high"):
        PriceRange(low, high, Grade.PRIMARY, "")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('device = "T4"', 'device = "T5"', "no device is called 'T5'"),
        ('low = "0.35 $/h"', 'low = "0.65 $/h"', "0 < low <= high"),
        ('low = "0.35 $/h"', 'low = "0.35 W"', r"expected \$/h"),
        ('region = "US-West"\nlow = "3.80 $/h"', 'region = "Moon"\nlow = "3.80 $/h"', "region 'Moon' is not in the file"),
        ('term = "spot"\nseller = "worked example"\nregion = "US-East"', 'term = "free"\nseller = "x"\nregion = ""', "term"),
        ('rtt_low = "75 ms"', 'rtt_low = "750 ms"', "rtt_low is above rtt_high"),
    ],
)
def test_files_that_are_wrong(old: str, new: str, message: str) -> None:
    text = catalogue_text("prices.toml")
    assert text.count(old) == 1
    with pytest.raises(ConfigError, match=message):
        load_prices(text.replace(old, new))
