import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.cost.routing_shares import (
    longest_queue_choices,
    longest_queue_random,
    longest_queue_two_choices_order,
    max_min_shares,
    weighted_routing,
)
from argosy.errors import ConfigError

DEMANDS = st.lists(st.floats(0, 1e6), min_size=1, max_size=12)


def test_weights_equal_to_capacity_load_everybody_alike():
    shares = weighted_routing([1000.0] * 10 + [600.0] * 20, 15_000)
    large, small = shares[0], shares[-1]
    assert 100 * large.share == pytest.approx(4.545, rel=0.005)
    assert 100 * small.share == pytest.approx(2.727, rel=0.005)
    assert (large.rate_per_s, small.rate_per_s) == pytest.approx((681.8, 409.1), rel=0.005)
    assert all(100 * share.utilisation == pytest.approx(68.18, rel=0.005) for share in shares)


def test_equal_weights_load_small_replicas_most():
    shares = weighted_routing([1000.0] * 10 + [600.0] * 20, 15_000, weights=[1.0] * 30)
    assert 100 * shares[0].utilisation == pytest.approx(50)
    assert 100 * shares[-1].utilisation == pytest.approx(83.3, rel=0.005)


@given(st.lists(st.floats(0.1, 1e4), min_size=1, max_size=20), st.floats(0, 1e6))
def test_routing_conserves_traffic(capacities, offered):
    shares = weighted_routing(capacities, offered)
    assert math.fsum(share.share for share in shares) == pytest.approx(1)
    assert math.fsum(share.rate_per_s for share in shares) == pytest.approx(offered)
    assert max(s.utilisation for s in shares) == pytest.approx(min(s.utilisation for s in shares))


def test_longest_queue_of_a_thousand_replicas():
    assert longest_queue_random(1000) == pytest.approx(3.57, rel=0.005)
    assert longest_queue_two_choices_order(1000) == pytest.approx(1.93, rel=0.005)
    assert longest_queue_choices(1000, 4) == pytest.approx(longest_queue_choices(1000, 2) / 2)


def test_two_choices_are_far_better_in_a_simulation_too():
    def longest(choices: int) -> float:
        rng, total = Random(5), 0
        for _ in range(5):
            queues = [0] * 1000
            for _ in range(1000):
                queues[min(rng.sample(range(1000), choices), key=queues.__getitem__)] += 1
            total += max(queues)
        return total / 5

    assert longest(2) < longest_queue_random(1000) < longest(1)


def test_max_min_shares_of_three_tenants():
    assert max_min_shares([30e3, 20e3, 80e3], 100e3) == (30e3, 20e3, 50e3)


def test_weights_split_what_is_left():
    assert max_min_shares([100.0, 100.0], 90.0, weights=[2.0, 1.0]) == pytest.approx((60, 30))
    assert max_min_shares([10.0, 100.0, 100.0], 100.0, weights=[1.0, 2.0, 1.0]) == pytest.approx((10, 60, 30))
    assert max_min_shares([], 5.0) == ()


@given(DEMANDS, st.floats(0, 1e6), st.randoms(use_true_random=False))
def test_max_min_is_efficient_bounded_and_fair(demands, capacity, rng):
    weights = [rng.uniform(0.1, 10) for _ in demands]
    shares = max_min_shares(demands, capacity, weights=weights)
    assert all(0 <= share <= demand for share, demand in zip(shares, demands, strict=True))
    assert math.fsum(shares) == pytest.approx(min(capacity, math.fsum(demands)), rel=1e-6, abs=1e-6)
    # Whoever wants more has at least as much per weight as anybody else.
    levels = [share / weight for share, weight in zip(shares, weights, strict=True)]
    for share, demand, level in zip(shares, demands, levels, strict=True):
        if share < demand * (1 - 1e-9) - 1e-6:
            assert level >= max(levels) * (1 - 1e-6) - 1e-6


@given(DEMANDS, st.floats(1, 1e6))
def test_order_of_tenants_does_not_matter(demands, capacity):
    forward, backward = max_min_shares(demands, capacity), max_min_shares(demands[::-1], capacity)
    assert forward == pytest.approx(backward[::-1])


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: weighted_routing([], 1), "at least one replica"),
        (lambda: weighted_routing([0.0], 1), "capacity_per_s"),
        (lambda: weighted_routing([1.0], -1), "offered_per_s"),
        (lambda: weighted_routing([1.0], 1, weights=[1.0, 2.0]), "2 weights for 1"),
        (lambda: weighted_routing([1.0], 1, weights=[math.nan]), "weight"),
        (lambda: max_min_shares([-1.0], 1), "demand"),
        (lambda: max_min_shares([1.0], math.inf), "capacity"),
        (lambda: max_min_shares([1.0], 1, weights=[0.0]), "weight"),
        (lambda: max_min_shares([1.0], 1, weights=[]), "0 weights for 1"),
        (lambda: longest_queue_random(15), "replicas"),
        (lambda: longest_queue_two_choices_order(2), "replicas"),
        (lambda: longest_queue_choices(1000, 1), "choices"),
    ],
)
def test_nonsense_is_refused_by_name(call, field):
    with pytest.raises(ConfigError, match=field):
        call()
