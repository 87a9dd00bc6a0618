from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.errors import ConfigError
from argosy.fleet.gateway.prices import FREE, Price, PriceTable

CENTS = st.integers(0, 10**7).map(lambda n: n / 1000)
TOKENS = st.integers(0, 10**7)


@given(CENTS, CENTS, CENTS, TOKENS, TOKENS, TOKENS)
def test_costs_are_exact_to_half_a_nano_dollar(
    input_usd: float, cached_usd: float, output_usd: float, fresh: int, cached: int, output: int
) -> None:
    price = Price(input_usd, output_usd, cached_usd)
    exact = sum(
        Fraction(str(usd)) / 10**6 * tokens
        for usd, tokens in ((input_usd, fresh), (cached_usd, cached), (output_usd, output))
    )
    assert abs(price.cost_nano_usd(fresh + cached, cached, output) - exact * 10**9) <= Fraction(1, 2)


def test_a_known_price() -> None:
    price = Price(0.15, 0.60, 0.075)
    assert price.cost_nano_usd(1000, 400, 500) == 600 * 150 + 400 * 75 + 500 * 600


def test_cached_tokens_cost_like_others_unless_they_have_a_price() -> None:
    assert Price(1.0, 2.0).cost_nano_usd(10, 10, 0) == Price(1.0, 2.0).cost_nano_usd(10, 0, 0)
    assert Price(1.0, 2.0, 0.0).cost_nano_usd(10, 10, 0) == 0


def test_more_cached_tokens_than_there_are_are_no_gift() -> None:
    assert Price(1.0, 0.0, 0.5).cost_nano_usd(10, 10**6, 0) == Price(1.0, 0.0, 0.5).cost_nano_usd(10, 10, 0)


@pytest.mark.parametrize("prices", [(-1.0, 0.0), (0.0, -1.0), (0.0, 0.0, -1.0), (float("nan"), 0.0), (2e6, 0.0)])
def test_impossible_prices_are_refused(prices: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="prices must be"):
        Price(*prices)


def test_the_backend_decides_then_the_model_else_it_is_free() -> None:
    table = PriceTable({"m": Price(1.0, 2.0)}, {"b": Price(3.0, 1.0)})
    assert table.price("m", "b") == Price(3.0, 1.0)
    assert table.price("m", "other") == Price(1.0, 2.0)
    assert table.price("other") is FREE
    assert FREE.is_free
    assert not Price(0.0, 1.0).is_free


def test_what_is_reserved_is_enough_for_every_backend() -> None:
    table = PriceTable({"m": Price(1.0, 2.0, 0.5)}, {"b": Price(3.0, 1.0)})
    highest = table.highest("m", ("a", "b"))
    for backend in ("a", "b"):
        for usage in ((100, 0, 10), (100, 100, 0), (0, 0, 100)):
            assert highest.cost_nano_usd(*usage) >= table.price("m", backend).cost_nano_usd(*usage)
