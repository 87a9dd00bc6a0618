"""Windows keep every sum while their number stays bounded; growing queues are told from long ones."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.sim.stability import judge
from argosy.sim.time_series import TimeSeries


@given(st.lists(st.integers(0, 3000), max_size=200), st.integers(2, 9))
def test_sums_survive_joining(times, most):
    series = TimeSeries(0.5, most)
    for time_s in times:
        window = series.at(time_s + 0.25)
        window.arrivals += 1
        window.busy_s += 0.125
    assert len(series.windows) <= most
    assert sum(window.arrivals for window in series.windows) == len(times)
    assert sum(window.busy_s for window in series.windows) == 0.125 * len(times)
    bounds = [index * series.width_s for index in range(len(series.windows) + 1)]
    for begin_s, end_s, window in zip(bounds, bounds[1:], series.windows, strict=False):
        assert window.arrivals == sum(begin_s <= time_s + 0.25 < end_s for time_s in times)


def queue(load: float, *, customers: int, seed: int) -> TimeSeries:
    """M/M/1 at a service rate of 1/s: each arrival's window counts who is there."""
    rng, series, now_s, free_s, ends = Random(seed), TimeSeries(10.0), 0.0, 0.0, []
    for _ in range(customers):
        now_s += rng.expovariate(load)
        ends = [end_s for end_s in ends if end_s > now_s]
        window = series.at(now_s)
        window.arrivals += 1
        window.in_system += len(ends)
        free_s = max(free_s, now_s) + rng.expovariate(1.0)
        ends.append(free_s)
    return series


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("load", "unstable"), [(0.5, False), (0.8, False), (1.3, True), (2.0, True)])
def test_overload_is_told_from_a_queue(load, unstable, seed):
    series = queue(load, customers=2000, seed=seed)
    verdict = judge(series.windows, series.width_s)
    assert verdict.is_unstable is unstable
    if unstable:
        # The backlog grows by what arrives beyond the service rate; 4 sigma of 2000 services is 0.1.
        assert verdict.growth_per_s == pytest.approx(load - 1.0, abs=0.25)
        assert "unstable: the queue grows by" in str(verdict)
    else:
        assert str(verdict).startswith("stable")


def test_too_few_arrivals_say_nothing():
    series = queue(2.0, customers=20, seed=0)
    verdict = judge(series.windows, series.width_s)
    assert (verdict.is_unstable, verdict.in_system) == (False, ())
    assert "too few" in str(verdict)
    assert not judge([], 1.0).is_unstable
