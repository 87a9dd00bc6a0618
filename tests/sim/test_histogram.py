"""Percentiles stay within the stated error whatever the values, in memory that does not grow."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.errors import ConfigError
from argosy.sim.histogram import RELATIVE_ERROR, LogHistogram

VALUES = st.lists(st.tuples(st.one_of(st.just(0.0), st.floats(1e-9, 1e6)), st.integers(1, 50)), min_size=1, max_size=60)


def histogram_of(values: list[tuple[float, int]]) -> LogHistogram:
    histogram = LogHistogram()
    for value, times in values:
        histogram.add(value, times)
    return histogram


@given(VALUES, st.floats(0.0, 1.0))
def test_quantiles_keep_their_error(values, share):
    ranked = sorted(value for value, times in values for _ in range(times))
    exact = ranked[max(1, math.ceil(share * len(ranked))) - 1]
    assert histogram_of(values).quantile(share) == pytest.approx(exact, rel=RELATIVE_ERROR * 1.0001, abs=1e-12)


@given(VALUES, VALUES)
def test_merging_counts_everything_once(first, second):
    merged, both = histogram_of(first), histogram_of(first + second)
    merged.merge(histogram_of(second))
    assert [merged.quantile(share / 10) for share in range(11)] == [both.quantile(share / 10) for share in range(11)]
    assert (merged.count, merged.least, merged.greatest) == (both.count, both.least, both.greatest)
    assert merged.mean == pytest.approx(both.mean)


def test_buckets_are_few():
    histogram = LogHistogram()
    for exponent in range(-9000, 9000):
        histogram.add(10.0 ** (exponent / 1000))
    assert len(histogram._counts) < 4200


def test_no_values_have_no_quantiles():
    assert LogHistogram().quantile(0.5) is None
    assert LogHistogram().mean is None


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_impossible_shares_are_refused(share):
    with pytest.raises(ConfigError, match="from 0 to 1"):
        LogHistogram().quantile(share)
