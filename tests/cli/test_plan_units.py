import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.cli.plan_units import (
    DeviceChoice,
    LatencyTarget,
    parse_count,
    parse_degrees,
    parse_device,
    parse_rate,
    parse_seconds,
    parse_share,
    parse_target,
)
from argosy.errors import ConfigError

COUNTS = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20}
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86400, "w": 604800}
RATES = {"": 1, "/s": 1, "/min": 60, "/h": 3600, "/d": 86400}


@given(st.integers(1, 10**6), st.sampled_from(sorted(COUNTS)))
def test_a_count_is_its_number_times_its_unit(number, unit):
    assert parse_count(f"{number}{unit}") == number * COUNTS[unit]
    assert parse_count(f" {number:,} {unit.lower()} ") == number * COUNTS[unit]


@given(st.integers(1, 10**6), st.integers(0, 999), st.sampled_from(["k", "M", "B", "T"]))
def test_decimals_of_a_count_are_exact(whole, thousandths, unit):
    assert parse_count(f"{whole}.{thousandths:03d}{unit}") == whole * COUNTS[unit] + thousandths * COUNTS[unit] // 1000


@given(st.floats(1e-3, 1e6), st.sampled_from(sorted(TIMES)))
def test_a_time_is_its_number_times_its_unit(number, unit):
    assert parse_seconds(f"{number:.6f}{unit}") == pytest.approx(float(f"{number:.6f}") * TIMES[unit])


@given(st.integers(1, 10**6), st.sampled_from(sorted(RATES)))
def test_a_rate_is_per_second(number, per):
    assert parse_rate(f"{number}{per}") == pytest.approx(number / RATES[per])
    assert parse_rate(f"{number}k{per}") == pytest.approx(1000 * number / RATES[per])


@given(st.floats(0.1, 1e4), st.floats(0.1, 99.9))
def test_a_target_is_a_time_and_a_percentile(milliseconds, percentile):
    target = parse_target(f"{milliseconds:.3f}ms@p{percentile:.2f}")
    assert target.seconds == pytest.approx(float(f"{milliseconds:.3f}") / 1e3)
    assert target.percentile == float(f"{percentile:.2f}")


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused_but_never_fails(text):
    for parse in (parse_count, parse_seconds, parse_rate, parse_target, parse_share, parse_device, parse_degrees):
        with contextlib.suppress(ConfigError):
            parse(text)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (parse_count("2T"), 2 * 10**12),
        (parse_count("8k"), 8000),
        (parse_count("8Ki"), 8192),
        (parse_count("0.5k"), 500),
        (parse_seconds("45d"), 45 * 86400),
        (parse_target("2s@p95"), LatencyTarget(2.0, 95.0)),
        (parse_target("50ms"), LatencyTarget(0.05, 99.0)),
        (parse_share("60%"), 0.6),
        (parse_share("0.6"), 0.6),
        (parse_degrees("2,4, 8"), (2, 4, 8)),
        (parse_device("h100-sxm"), DeviceChoice("h100-sxm", None, None, None)),
        (parse_device("h100-sxm:16"), DeviceChoice("h100-sxm", 16, None, None)),
        (parse_device("h100-sxm:1k@2.5"), DeviceChoice("h100-sxm", 1000, 2.5, 2.5)),
        (parse_device("H100 SXM@$2.5-$4"), DeviceChoice("H100 SXM", None, 2.5, 4.0)),
    ],
)
def test_forms_that_people_write(value, expected):
    assert value == expected


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_count, "0", "at least 1"),
        (parse_count, "1.5", "whole number"),
        (parse_count, "-4", "is not a count"),
        (parse_count, "nan", "is not a count"),
        (parse_count, "4x", "is not a count"),
        (parse_count, "", "is not a count"),
        (parse_count, "9" * 5000, "is not a count"),
        (parse_seconds, "2", "is not a time"),
        (parse_seconds, "0s", "above 0"),
        (parse_seconds, "infs", "is not a time"),
        (parse_rate, "0/s", "above 0"),
        (parse_rate, "5/fortnight", "is not a rate"),
        (parse_rate, "-5", "is not a rate"),
        (parse_target, "2s@95", "is not a target"),
        (parse_target, "2s@p100", "below 100"),
        (parse_target, "2s@p0", "above 0"),
        (parse_share, "1.2", "between 0 and 1"),
        (parse_share, "120%", "between 0 and 1"),
        (parse_device, ":4", "names no device"),
        (parse_device, "h100:x", "is not a count"),
        (parse_device, "h100@free", "a price is dollars"),
        (parse_device, "h100@4-2", "must not be above"),
        (parse_degrees, "2,,4", "is not a count"),
    ],
)
def test_nonsense_is_refused_by_name(parse, text, message):
    with pytest.raises(ConfigError, match=message):
        parse(text)
