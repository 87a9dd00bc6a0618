import itertools
import math
from collections.abc import Callable
from random import Random
from statistics import fmean, pstdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.errors import ConfigError
from argosy.sim.workload.arrivals import Arrivals, Constant, Gamma, OnOff, Poisson

PROCESSES = st.sampled_from([Constant(3), Poisson(3), Gamma(3, 0.3), Gamma(3, 4), OnOff(20, 0, 1, 5), OnOff(20, 1, 1, 5)])


def until(arrivals: Arrivals, end_s: float, seed: int = 5) -> np.ndarray:
    return np.array(list(itertools.takewhile(lambda time_s: time_s < end_s, arrivals.times(Random(seed)))))


@given(arrivals=PROCESSES, seed=st.integers(0, 1 << 64))
def test_times_never_fall_and_a_seed_repeats_them(arrivals: Arrivals, seed: int):
    times = list(itertools.islice(arrivals.times(Random(seed)), 200))
    assert times == sorted(times)
    assert times[0] >= 0
    assert times == list(itertools.islice(arrivals.times(Random(seed)), 200))


def test_constant_arrivals_do_not_drift():
    times = list(itertools.islice(Constant(10).times(Random(0)), 10_000_00))
    assert times[:3] == [0.1, 0.2, 0.3]
    assert times[-1] == 100_000.0


@pytest.mark.parametrize("arrivals", [Poisson(20), Gamma(20, 1.0)])
def test_poisson_counts_have_equal_mean_and_variance(arrivals: Arrivals):
    end_s = 2000
    counts = np.bincount(until(arrivals, end_s).astype(int), minlength=end_s)
    # The total is Poisson(40 000); variance over mean of n counts has a deviation of sqrt(2 / n).
    assert counts.sum() == pytest.approx(20 * end_s, abs=4 * math.sqrt(20 * end_s))
    assert counts.var() / counts.mean() == pytest.approx(1, abs=4 * math.sqrt(2 / end_s))


@pytest.mark.parametrize("cv", [0.25, 0.5, 1.0, 2.0, 3.5])
def test_gamma_gaps_have_the_rate_and_the_cv(cv: float):
    gaps = np.diff(list(itertools.islice(Gamma(8, cv).times(Random(6)), 40_001)))
    assert fmean(gaps) == pytest.approx(1 / 8, rel=4 * cv / math.sqrt(len(gaps)))
    # The delta method for a gamma of shape 1/cv² gives the sample cv a deviation of cv sqrt((1 + cv²) / (2 n)).
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=4 * math.sqrt((1 + cv**2) / 2 / len(gaps)))
    # Gaps are independent: their autocorrelation has a deviation of 1 / sqrt(n).
    centred = gaps - gaps.mean()
    assert abs(float(centred[1:] @ centred[:-1]) / float(centred @ centred)) < 4 / math.sqrt(len(gaps))


BURSTS_END_S = 40_000


@pytest.fixture(scope="module")
def counts() -> np.ndarray:
    """Arrivals in each second of bursts of 4 s at 50/s between 12 s at 2/s."""
    bursts = OnOff(on_rate_per_s=50, off_rate_per_s=2, mean_on_s=4, mean_off_s=12)
    return np.bincount(until(bursts, BURSTS_END_S).astype(int), minlength=BURSTS_END_S)


class TestBursts:
    def test_mean_rate_weighs_states_by_their_time(self, counts: np.ndarray):
        mean = (50 * 4 + 2 * 12) / 16
        # Counts in long windows have the variance-to-mean ratio of the next test, about 31.
        deviation = math.sqrt(mean * BURSTS_END_S * 32)
        assert counts.sum() == pytest.approx(mean * BURSTS_END_S, abs=4 * deviation)

    def test_dispersion_is_the_cookbooks(self, counts: np.ndarray):
        r_on, r_off = 1 / 4, 1 / 12
        limit = 1 + 2 * (50 - 2) ** 2 * r_on * r_off / ((r_on + r_off) ** 2 * (50 * r_off + 2 * r_on))
        # Of windows of t seconds: 1 + (limit - 1) (1 - (1 - exp(-rt)) / (rt)).
        rt = (r_on + r_off) * 200
        wanted = 1 + (limit - 1) * (1 - (1 - math.exp(-rt)) / rt)
        windows = counts.reshape(-1, 200).sum(axis=1)
        # 200 windows, nearly normal: a relative deviation of sqrt(2 / 200) = 0.1.
        assert windows.var() / windows.mean() == pytest.approx(wanted, rel=0.4)
        assert wanted > 25

    def test_counts_stay_correlated_for_as_long_as_a_burst(self, counts: np.ndarray):
        r, share = 1 / 4 + 1 / 12, 4 / 16
        variance_of_rate = (50 - 2) ** 2 * share * (1 - share)
        mean = 50 * share + 2 * (1 - share)
        # The rate's autocovariance is variance x exp(-r lag), integrated over two windows of a second.
        own = variance_of_rate * 2 * (r - 1 + math.exp(-r)) / r**2 + mean
        centred = counts - counts.mean()
        for lag in (1, 3, 6):
            wanted = variance_of_rate * ((1 - math.exp(-r)) / r) ** 2 * math.exp(-r * (lag - 1)) / own
            found = float(centred[lag:] @ centred[:-lag]) / float(centred @ centred)
            # Bartlett: a deviation of at most sqrt((1 + 2 sum of squared correlations) / n) = 0.01.
            assert found == pytest.approx(wanted, abs=0.04)

    def test_nothing_comes_between_bursts_if_the_rate_there_is_zero(self):
        times = until(OnOff(100, 0, 1, 9), 20_000)
        # Of some 2000 cycles of 10 s, those whose quiet time is longer than a second: a share of exp(-1/9).
        assert (np.diff(times) > 1).sum() == pytest.approx(2000 * math.exp(-1 / 9), abs=4 * math.sqrt(2000))

    def test_it_starts_in_either_state_with_its_share_of_time(self):
        arrivals = OnOff(1e6, 0, 1, 3)
        on = sum(next(arrivals.times(Random(seed))) < 1e-4 for seed in range(2000))
        # Binomial(2000, 1/4): mean 500, deviation 19.
        assert on == pytest.approx(500, abs=4 * 19)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Constant(0), "rate_per_s"),
        (lambda: Poisson(-1), "rate_per_s"),
        (lambda: Poisson(math.nan), "rate_per_s"),
        (lambda: Gamma(0, 1), "rate_per_s"),
        (lambda: Gamma(1, 0), "cv"),
        (lambda: OnOff(0, 0, 1, 1), "on_rate_per_s"),
        (lambda: OnOff(1, -1, 1, 1), "off_rate_per_s"),
        (lambda: OnOff(1, 0, 0, 1), "mean_on_s"),
        (lambda: OnOff(1, 0, 1, 0), "mean_off_s"),
        (lambda: OnOff(2, 2, 1, 1), "off_rate_per_s must be below on_rate_per_s"),
    ],
)
def test_impossible_ones_are_refused(make: Callable[[], object], words: str):
    with pytest.raises(ConfigError, match=words):
        make()
