"""Units, prefixes and provenance."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.cost.quantity import GB, GIB, Dimension, Grade, Quantity, parse_quantity, worst_grade
from argosy.errors import ConfigError


def parse(text: str) -> Quantity:
    return parse_quantity(text, source="a data sheet", grade=Grade.PRIMARY, as_of="2026-01-01")


@pytest.mark.parametrize(
    ("text", "value", "dimension"),
    [
        ("80 GiB", 80 * 2**30, Dimension.BYTES),
        ("80 GB", 80e9, Dimension.BYTES),
        ("275,040 MiB", 275_040 * 2**20, Dimension.BYTES),
        ("275_040 MiB", 275_040 * 2**20, Dimension.BYTES),
        ("1 PiB", 2.0**50, Dimension.BYTES),
        ("3.35 TB/s", 3.35e12, Dimension.BYTES_PER_S),
        ("3350GB/s", 3.35e12, Dimension.BYTES_PER_S),
        ("400 Gb/s", 50e9, Dimension.BYTES_PER_S),
        ("989 TFLOP/s", 989e12, Dimension.FLOP_PER_S),
        ("130 TOP/s", 130e12, Dimension.FLOP_PER_S),
        ("1979 TFLOP/s sparse", 1979e12, Dimension.SPARSE_FLOP_PER_S),
        ("14 PFLOP/s", 14e15, Dimension.FLOP_PER_S),
        ("700 W", 700.0, Dimension.WATTS),
        ("7 us", 7e-6, Dimension.SECONDS),
        ("7 µs", 7e-6, Dimension.SECONDS),
        ("30 ms", 0.03, Dimension.SECONDS),
        ("100 ns", 1e-7, Dimension.SECONDS),
        ("5 s", 5.0, Dimension.SECONDS),
        ("4.02 $/h", 4.02, Dimension.USD_PER_HOUR),
        ("0.45", 0.45, Dimension.RATIO),
        ("1e-3", 1e-3, Dimension.RATIO),
    ],
)
def test_known_forms(text: str, value: float, dimension: Dimension) -> None:
    quantity = parse(text)
    assert quantity.value == pytest.approx(value, rel=1e-15)
    assert quantity.dimension is dimension
    assert (quantity.source, quantity.grade, quantity.as_of) == ("a data sheet", Grade.PRIMARY, "2026-01-01")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GB",
        "-1 GB",
        "nan GB",
        "inf GB",
        "80 gb",
        "80 GBs",
        "80 GB GB",
        "1 GiFLOP/s",
        "1 GiW",
        "1 Ms",
        "1 mB",
        "1 uW",
        "1 mW",
        "5 K",
        "3 k$/h",
        "3 K$/h",
        "1 GB sparse",
        "1 W sparse",
        "1.2.3 GB",
        "1 TFLOPS",
        "eighty GiB",
        "80 GiB/",
    ],
)
def test_what_is_not_a_quantity_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert repr(text) in caught.value.message
    assert "\n" not in caught.value.message


def test_decimal_and_binary_prefixes_are_never_mixed() -> None:
    """80 GB for 80 GiB and GB/s x 1024^3 are off by 7.4 %, TFLOP/s x 2^40 by 10 %: what catalogues get wrong."""
    assert parse("80 GiB").value / parse("80 GB").value == pytest.approx(1.0737, rel=1e-4)
    assert parse("3350 GB/s").value == 3350 * 10**9 != 3350 * 1024**3
    assert parse("989 TFLOP/s").value == 989 * 10**12 != 989 * 2**40
    assert (GB, GIB) == (10**9, 2**30)


@given(st.floats(min_value=1e-6, max_value=1e6), st.sampled_from(["", "K", "M", "G", "T", "P"]))
def test_decimal_prefixes_are_a_thousand_apart(number: float, prefix: str) -> None:
    expected = number * 1000.0 ** ["", "K", "M", "G", "T", "P"].index(prefix)
    for unit in ("B", "B/s", "FLOP/s"):
        assert parse(f"{number!r} {prefix}{unit}").value == pytest.approx(expected, rel=1e-12)


@given(st.integers(min_value=0, max_value=10**9), st.sampled_from(["Ki", "Mi", "Gi", "Ti", "Pi"]))
def test_binary_prefixes_are_1024_apart_and_exact(number: int, prefix: str) -> None:
    assert parse(f"{number} {prefix}B").value == number * 1024 ** (["Ki", "Mi", "Gi", "Ti", "Pi"].index(prefix) + 1)


@given(st.integers(min_value=1, max_value=10**6))
def test_bits_are_an_eighth_of_bytes(number: int) -> None:
    assert parse(f"{number} Gb/s").value * 8 == parse(f"{number} GB/s").value


@given(st.text(max_size=20))
def test_any_text_is_a_quantity_or_one_line(text: str) -> None:
    try:
        value, message = parse(text).value, ""
    except ConfigError as error:
        value, message = 0.0, error.message
    assert "\n" not in message
    assert 0 <= value < math.inf


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_values_no_catalogue_may_hold(value: float) -> None:
    with pytest.raises(ConfigError, match="finite and not negative"):
        Quantity(value, Dimension.BYTES, "source", Grade.PRIMARY)


def test_a_value_without_source_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a source"):
        Quantity(1.0, Dimension.BYTES, "", Grade.PRIMARY)


def test_a_huge_exponent_is_not_infinite() -> None:
    with pytest.raises(ConfigError):
        parse("1e999 GB")


def test_a_figure_is_worth_its_worst_input_and_derived_at_best() -> None:
    assert worst_grade([Grade.PRIMARY, Grade.MEMORY, Grade.MEASURED]) is Grade.MEMORY
    assert worst_grade([Grade.PRIMARY, Grade.MEASURED]) is Grade.DERIVED
    assert worst_grade([]) is Grade.DERIVED
