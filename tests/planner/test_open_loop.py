import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.planner.curve import Curve, state_grid
from argosy.planner.open_loop import OpenLoop, Variability, open_loop

EXPONENTIAL = Variability(1.0, 1.0, 1.0, ((1.0, 1.0),), ((1.0, 100.0),))


def curve(states: np.ndarray, rate: np.ndarray, *, tpot: np.ndarray | None = None, occupancy: float = 0.0) -> Curve:
    widths = np.diff(states, prepend=0.0)
    between = np.interp(states - (widths - 1) / 2, states, rate)
    none = np.zeros((1, len(states)))
    tpots = none if tpot is None else tpot[None]
    return Curve(states, widths, rate[None], between[None], tpots, none, none, none, none + occupancy, 1)


def many_servers(servers: int, load: float, variability: Variability = EXPONENTIAL) -> OpenLoop:
    """Each of `servers` finishes one request a second."""
    states = state_grid(servers, ())
    return open_loop(curve(states, states), np.array([load * servers]), np.array([len(states) - 1]), variability)


def erlang_c(servers: int, offered: float) -> float:
    terms = [math.exp(n * math.log(offered) - math.lgamma(n + 1)) for n in range(servers + 1)]
    waiting = terms[-1] * servers / (servers - offered)
    return waiting / (sum(terms[:-1]) + waiting)


@pytest.mark.parametrize("servers", [1, 4, 16, 64])
@pytest.mark.parametrize("load", [0.3, 0.7, 0.95])
def test_equal_servers_wait_as_erlang_says(servers: int, load: float):
    loop = many_servers(servers, load)
    expected = erlang_c(servers, load * servers)
    if expected > 1e-6:
        assert loop.wait_probability.item() == pytest.approx(expected, rel=0.02)
        assert loop.wait_s.item() == pytest.approx(1 / (servers * (1 - load)), rel=1e-6)
    assert loop.running.item() == pytest.approx(load * servers, rel=0.01)


def test_states_apart_lose_little_of_the_distribution():
    """400 servers have states a tenth of their number; the mean running is still what Little's law says."""
    states = state_grid(400, ())
    assert len(states) < 100
    assert many_servers(400, 0.9).running.item() == pytest.approx(360, rel=0.01)


def test_constant_service_about_halves_the_wait():
    constant = Variability(1.0, 0.0, 0.0, ((1.0, 1.0),), ((1.0, 100.0),))
    waits = [
        float((loop.wait_probability * loop.wait_s).item())
        for loop in (many_servers(1, 0.9), many_servers(1, 0.9, constant))
    ]
    assert waits[1] / waits[0] == pytest.approx(0.5, rel=0.15)


def test_prompts_queue_for_step_budget_as_an_m_d_1_queue():
    """0.1 s of the budget each at 5/s: utilisation 1/2, mean wait ρS/(2(1-ρ)) = 50 ms."""
    states = state_grid(64, ())
    fixed = Variability(1.0, 0.0, 0.0, ((1.0, 1.0),), ((1.0, 100.0),))
    loop = open_loop(curve(states, states, occupancy=0.1), np.array([5.0]), np.array([len(states) - 1]), fixed)
    assert loop.queue_wait_s.item() == pytest.approx(0.05, rel=1e-6)


def test_more_than_capacity_is_unstable_not_averaged():
    loop = many_servers(8, 2.0)
    assert not loop.stable.item()
    assert loop.ttft_tail(1e9).item() == 1
    assert loop.ttft_quantile(0.5) == math.inf


def test_prompts_that_fill_every_step_are_unstable_too():
    states = state_grid(64, ())
    loop = open_loop(curve(states, states, occupancy=0.25), np.array([5.0]), np.array([len(states) - 1]), EXPONENTIAL)
    assert not loop.stable.item()


@settings(max_examples=40, deadline=None)
@given(st.floats(0.05, 0.97), st.integers(1, 200), st.floats(0.2, 3), st.floats(0.5, 0.999))
def test_tails_fall_and_quantiles_invert_them(load: float, servers: int, arrivals: float, share: float):
    loop = many_servers(servers, load, Variability(arrivals, 1.0, 0.5, ((0.5, 0.5), (0.5, 1.5)), ((1.0, 50.0),)))
    tails = [loop.ttft_tail(seconds).item() for seconds in (0.0, 0.01, 0.1, 1.0, 10.0)]
    assert tails == sorted(tails, reverse=True)
    seconds = loop.ttft_quantile(share)
    assert loop.ttft_tail(seconds * 1.001 + 1e-9).item() <= 1 - share + 1e-9


@settings(max_examples=30, deadline=None)
@given(st.floats(0.1, 0.9), st.floats(1.0, 4.0))
def test_bursts_spread_the_population(load: float, arrivals: float):
    calm, bursty = (many_servers(64, load, Variability(c, 1.0, 0.0, ((1.0, 1.0),), ((1.0, 9.0),))) for c in (1.0, arrivals))
    assert bursty.population_quantile(0.99).item() >= calm.population_quantile(0.99).item()


def test_population_quantile_of_one_server_is_geometric():
    loop = many_servers(1, 0.8)
    assert loop.population_quantile(0.99).item() == pytest.approx(math.log(0.01) / math.log(0.8), abs=1)


def test_tpot_tail_weighs_states_by_the_sequences_in_them():
    """Two servers at load 1/2: states 1 and 2 (and beyond) hold 1/3 and 2/3 of the running sequences."""
    states = np.array([1.0, 2.0])
    loop = open_loop(curve(states, states, tpot=np.array([0.01, 0.02])), np.array([1.0]), np.array([1]), EXPONENTIAL)
    assert loop.tpot_tail(0.015).item() == pytest.approx(2 / 3, rel=1e-6)
    assert loop.tpot_s.item() == pytest.approx(0.01 / 3 + 0.02 * 2 / 3, rel=1e-6)
    assert loop.tpot_quantile(0.9) == pytest.approx(0.02, rel=1e-3)


def test_one_entry_alone_says_what_the_grid_says():
    states = state_grid(32, (8, 16))
    batches = np.searchsorted(states, [8.0, 32.0])
    loop = open_loop(curve(states, states), np.array([3.0, 6.0]), batches, EXPONENTIAL)
    alone = loop.at((0, 1, 0))
    assert alone.ttft_tail(0.2).item() == pytest.approx(loop.ttft_tail(0.2)[0, 1, 0])
    assert alone.tpot_tail(0.2).item() == pytest.approx(loop.tpot_tail(0.2)[0, 1, 0])
    assert alone.population_quantile(0.9).item() == loop.population_quantile(0.9)[0, 1, 0]


def test_random_splitting_brings_bursts_nearer_to_poisson():
    states = state_grid(64, ())
    bursty = Variability(9.0, 1.0, 0.0, ((1.0, 1.0),), ((1.0, 9.0),))
    loop = open_loop(
        curve(states, states), np.array([40.0, 40.0]), np.array([len(states) - 1]), bursty, replicas=np.array([1, 1000])
    )
    poisson = many_servers(64, 40 / 64)
    peaks = loop.population_quantile(0.99)[0, :, 0]
    assert peaks[0] > peaks[1]
    assert peaks[1] == pytest.approx(poisson.population_quantile(0.99).item(), abs=1)
