import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.cost.catalogue import find_device
from argosy.cost.prices import PriceRange, Term, find_region, price_range
from argosy.cost.quantity import Grade
from argosy.cost.serving_economics import (
    CascadeStage,
    cascade_seconds,
    cascade_speedup,
    cheapest_region,
    dollars_per_million_tokens,
    spot_saving,
)
from argosy.errors import ConfigError

H100 = find_device("H100 SXM")


def price(low: float, high: float) -> PriceRange:
    return PriceRange(low, high, Grade.SECONDARY, "2026-01-01")


def test_four_devices_at_four_dollars_and_three_thousand_tokens_a_second():
    cost = dollars_per_million_tokens(4, price(4, 4), 3000)
    assert cost.low_usd == cost.high_usd == pytest.approx(1.481, rel=0.005)


def test_a_range_of_prices_is_a_range_of_costs_with_its_grade_and_date():
    cost = dollars_per_million_tokens(4, price(2, 6), 3000)
    assert cost.high_usd == pytest.approx(3 * cost.low_usd)
    assert (cost.grade, cost.oldest) == (Grade.SECONDARY, "2026-01-01")


@given(st.integers(1, 64), st.floats(0.1, 20), st.floats(1, 1e6))
def test_cost_is_linear_in_devices_and_falls_with_throughput(devices, dollars, tokens_per_s):
    one = dollars_per_million_tokens(1, price(dollars, dollars), tokens_per_s).low_usd
    assert dollars_per_million_tokens(devices, price(dollars, dollars), tokens_per_s).low_usd == pytest.approx(devices * one)
    assert dollars_per_million_tokens(1, price(dollars, dollars), 2 * tokens_per_s).low_usd == pytest.approx(one / 2)


def test_spot_saves_the_product():
    assert (spot_saving(0.3, 0.6), spot_saving(0.3, 0.9)) == pytest.approx((0.18, 0.27))


@pytest.mark.parametrize(
    ("region", "on_demand", "spot", "rtt_ms"),
    [
        ("US-East", 4.00, 2.50, (10, 50)),
        ("US-West", 3.80, 2.30, (30, 70)),
        ("EU-West", 4.20, 2.80, (75, 100)),
    ],
)
def test_region_prices(region, on_demand, spot, rtt_ms):
    for term, dollars in ((Term.ON_DEMAND, on_demand), (Term.SPOT, spot)):
        found = price_range(H100, term=term, region=region)
        assert (found.low_usd_per_h, found.high_usd_per_h) == (dollars, dollars)
    found_region = find_region(region)
    assert (found_region.rtt_low.value, found_region.rtt_high.value) == pytest.approx((rtt_ms[0] / 1e3, rtt_ms[1] / 1e3))


@pytest.mark.parametrize(
    ("budget_ms", "term", "region"),
    [(100, Term.ON_DEMAND, "US-West"), (60, Term.ON_DEMAND, "US-East"), (100, Term.SPOT, "US-West")],
)
def test_cheapest_region_within_the_round_trip(budget_ms, term, region):
    assert cheapest_region(H100, rtt_budget_ms=budget_ms, term=term).name == region


def test_no_region_within_the_round_trip_is_said_with_the_nearest():
    with pytest.raises(ConfigError, match="US-East needs 50"):
        cheapest_region(H100, rtt_budget_ms=20)
    with pytest.raises(ConfigError, match="state one"):
        cheapest_region(find_device("T4"), rtt_budget_ms=200, term=Term.SPOT)


def test_cascade_of_four_stages_against_scoring_everything():
    stages = [
        CascadeStage("retrieve", 1_000_000, fixed_s=0.010),
        CascadeStage("light", 10_000, fixed_s=0.020),
        CascadeStage("medium", 1_000, seconds_per_candidate=50e-6),
        CascadeStage("heavy", 100, seconds_per_candidate=1e-3),
    ]
    assert cascade_seconds(stages) == pytest.approx(0.180)
    assert cascade_speedup(stages, candidates=1_000_000, seconds_per_candidate=1e-3) == pytest.approx(5556, rel=0.005)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: dollars_per_million_tokens(0, price(1, 2), 1), "devices"),
        (lambda: dollars_per_million_tokens(1, price(1, 2), 0), "tokens_per_s"),
        (lambda: dollars_per_million_tokens(1, price(1, 2), float("nan")), "tokens_per_s"),
        (lambda: spot_saving(1.2, 0.5), "spot_share"),
        (lambda: spot_saving(0.2, float("nan")), "discount"),
        (lambda: cheapest_region(H100, rtt_budget_ms=-1), "rtt_budget_ms"),
        (lambda: CascadeStage("a", 0), "candidates"),
        (lambda: CascadeStage("a", 1, seconds_per_candidate=-1), "seconds_per_candidate"),
        (lambda: cascade_seconds([]), "at least one stage"),
        (lambda: cascade_seconds([CascadeStage("a", 1), CascadeStage("b", 2)]), "b scores 2"),
        (lambda: cascade_speedup([CascadeStage("a", 1)], candidates=1, seconds_per_candidate=1), "cascade_seconds"),
    ],
)
def test_nonsense_is_refused_by_name(call, field):
    with pytest.raises(ConfigError, match=field):
        call()
