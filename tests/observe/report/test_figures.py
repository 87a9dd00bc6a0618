import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.observe.report.figures import UNKNOWN, count, gib, seconds, share, si, significant, usd, usd_range


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0123456, "0.0123"),
        (1.2, "1.2"),
        (1.0, "1"),
        (12345.0, "12,300"),
        (0.9996, "1"),
        (-2.5, "-2.5"),
        (math.inf, UNKNOWN),
    ],
)
def test_three_digits_without_exponent(value, text):
    assert significant(value) == text


@given(st.floats(1e-9, 1e15))
def test_a_figure_is_within_half_a_percent_of_its_value(value):
    assert float(significant(value).replace(",", "")) == pytest.approx(value, rel=0.0051)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (si(989e12, "FLOP/s"), "989 TFLOP/s"),
        (si(3.35e12, "B/s"), "3.35 TB/s"),
        (si(999.96e9, "B"), "1 TB"),
        (si(12, "W"), "12 W"),
        (si(None, "W"), UNKNOWN),
        (count(70.6e9), "70.6 B"),
        (count(15e12), "15 T"),
        (count(512), "512"),
        (gib(80 * 2**30), "80 GiB"),
        (gib(None), UNKNOWN),
    ],
)
def test_prefixes_are_powers_of_1000_and_gib_of_1024(text, expected):
    assert text == expected


@pytest.mark.parametrize(
    ("value_s", "text"),
    [
        (0.0234, "23.4 ms"),
        (1.2, "1.2 s"),
        (90, "90 s"),
        (150, "2.5 min"),
        (3 * 86400, "3 d"),
        (36 * 3600, "36 h"),
        (0.0000025, "2.5 µs"),
        (2e-9, "0.002 µs"),
        (0, "0 s"),
        (0.99999, "1 s"),
        (None, UNKNOWN),
    ],
)
def test_a_time_has_the_unit_that_fits(value_s, text):
    assert seconds(value_s) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (usd(0.00123), "$0.0012"),
        (usd(0.35), "$0.35"),
        (usd(12.3), "$12.30"),
        (usd(1234.5), "$1,234"),
        (usd(None), UNKNOWN),
        (usd_range(3.98, 7.6), "$3.98–7.60"),
        (usd_range(2, 2.001), "$2.00"),
        (share(0.874), "87 %"),
        (share(0.004), "0.4 %"),
        (share(0), "0 %"),
        (share(2e-16), "0 %"),
        (share(1e-5), "<0.1 %"),
        (usd(169_001), "$169k"),
        (usd(999_999), "$1M"),
        (usd(3_100_000), "$3.1M"),
    ],
)
def test_dollars_and_shares(text, expected):
    assert text == expected
