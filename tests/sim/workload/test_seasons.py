import itertools
import math
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.errors import ConfigError
from argosy.sim.workload import seasons
from argosy.sim.workload.seasons import Seasonal, Sinusoid, Steps

HOUR_S, DAY_S, WEEK_S = 3600, 86_400, 7 * 86_400
WORKDAYS = Steps(WEEK_S, ((0, 1.0), (5 * DAY_S, 0.4)))


def until(arrivals: Seasonal, end_s: float, seed: int = 5) -> np.ndarray:
    return np.array(list(itertools.takewhile(lambda time_s: time_s < end_s, arrivals.times(Random(seed)))))


def assert_counts(found: np.ndarray, wanted: np.ndarray) -> None:
    """Poisson counts: the sum of (found - wanted)² / wanted is chi-square, of mean n and variance 2 n."""
    chi_square = float(((found - wanted) ** 2 / wanted).sum())
    assert chi_square < len(wanted) + 4 * math.sqrt(2 * len(wanted))


def test_a_day_follows_its_table():
    rates = ((0, 0.05), (6 * HOUR_S, 0.15), (9 * HOUR_S, 0.3), (17 * HOUR_S, 0.2), (20 * HOUR_S, 0.1))
    times = until(Seasonal(1.0, (Steps(DAY_S, rates),)), 3 * DAY_S)
    found = np.histogram(times % DAY_S, [start for start, _ in rates] + [DAY_S])[0]
    hours = np.diff([start for start, _ in rates] + [DAY_S])
    assert_counts(found, 3 * hours * np.array([rate for _, rate in rates]))


def test_a_sinusoid_has_its_mean_and_its_peak():
    arrivals = Seasonal(0.5, (Sinusoid(DAY_S, 0.8, peak_s=15 * HOUR_S),))
    found = np.bincount((until(arrivals, 2 * DAY_S) % DAY_S / HOUR_S).astype(int), minlength=24)
    edges = (np.arange(25) - 15) * math.tau / 24
    # The integral of 1 + 0.8 cos over each hour.
    assert_counts(found, 2 * 0.5 * HOUR_S * (1 + 0.8 * np.diff(np.sin(edges)) * 24 / math.tau))


def test_seasons_multiply_and_can_begin_anywhere():
    arrivals = Seasonal(0.2, (Sinusoid(DAY_S, 0.5), WORKDAYS), start_s=4 * DAY_S)
    assert arrivals.rate_at(0) == pytest.approx(0.2 * 1.5)
    assert arrivals.rate_at(DAY_S / 2) == pytest.approx(0.2 * 0.5)
    assert arrivals.rate_at(DAY_S) == pytest.approx(0.2 * 1.5 * 0.4)
    assert arrivals.rate_at(3 * DAY_S) == pytest.approx(0.2 * 1.5)
    found = np.histogram(until(arrivals, 4 * DAY_S), np.arange(5) * DAY_S)[0]
    assert_counts(found, 0.2 * DAY_S * np.array([1, 0.4, 0.4, 1]))


def test_straight_lines_between_points_and_on_to_the_next_period():
    line = Steps(100, ((0, 1.0), (20, 3.0), (60, 0.0)), interpolate=True)
    assert [line.factor(t) for t in (0, 10, 20, 40, 60, 80, 100, 110)] == pytest.approx([1, 2, 3, 1.5, 0, 0.5, 1, 2])


@given(time_s=st.floats(0, 1e7))
def test_no_factor_is_above_the_highest(time_s: float):
    for season in (Sinusoid(500, 0.7, 3), WORKDAYS, Steps(70, ((0, 0.2), (30, 5.0)), interpolate=True)):
        assert 0 <= season.factor(time_s) <= season.highest * (1 + 1e-12)


def test_quiet_nights_are_passed_over():
    nights = Steps(DAY_S, ((0, 0.0), (12 * HOUR_S, 1.0)))
    times = until(Seasonal(0.01, (nights,)), 10 * DAY_S)
    assert (times % DAY_S >= 12 * HOUR_S).all()
    assert len(times) == pytest.approx(10 * 432, abs=4 * math.sqrt(4320))


def test_seasons_that_leave_no_time_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(seasons, "_PATIENCE", 1000)
    first, second = Steps(10, ((0, 1.0), (5, 0.0))), Steps(10, ((0, 0.0), (5, 1.0)))
    with pytest.raises(ConfigError, match="multiply to 0"):
        next(Seasonal(5.0, (first, second)).times(Random(0)))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Sinusoid(0, 0.5), "period_s"),
        (lambda: Sinusoid(10, 1.1), "amplitude"),
        (lambda: Sinusoid(10, math.nan), "amplitude"),
        (lambda: Sinusoid(10, 0.5, -1), "peak_s"),
        (lambda: Steps(0, ((0, 1.0),)), "period_s"),
        (lambda: Steps(10, ()), "begin with one at 0"),
        (lambda: Steps(10, ((1, 1.0),)), "begin with one at 0"),
        (lambda: Steps(10, ((0, 1.0), (5, 1.0), (5, 2.0))), "ascend"),
        (lambda: Steps(10, ((0, 1.0), (10, 1.0))), "ascend"),
        (lambda: Steps(10, ((0, 1.0), (math.nan, 1.0))), "ascend"),
        (lambda: Steps(10, ((0, 1.0), (5, -1.0))), r"points\[1\]"),
        (lambda: Steps(10, ((0, 0.0),)), "above 0"),
        (lambda: Seasonal(0, (WORKDAYS,)), "rate_per_s"),
        (lambda: Seasonal(1, ()), "seasons must not be empty"),
        (lambda: Seasonal(1, (WORKDAYS,), start_s=-1), "start_s"),
    ],
)
def test_impossible_ones_are_refused(make: Callable[[], object], words: str):
    with pytest.raises(ConfigError, match=words):
        make()
