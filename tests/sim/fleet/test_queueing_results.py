"""Results of queueing theory that routing must reproduce, with abstract servers behind the real router.

A server is first come, first served; its service times are drawn, not computed. Times are in mean service times.
"""

import heapq
import itertools
import math
from collections import Counter
from random import Random
from statistics import fmean, median

import pytest

from argosy.fleet.policies.routing.named import make_policy
from argosy.fleet.policies.routing.replica_state import ReplicaInfo, ReplicaState
from argosy.fleet.policies.routing.request import RoutingRequest
from argosy.fleet.policies.routing.router import Router

REQUEST = RoutingRequest("q", prompt_tokens=1)


def gamma(cv: float):
    """Service times with mean 1 and the given coefficient of variation."""
    shape = 1.0 / cv**2
    return lambda rng: rng.gammavariate(shape, 1.0 / shape)


def make_router(policy: str, servers: int, seed: int, **settings) -> tuple[Router, list[ReplicaState]]:
    return Router(make_policy(policy, settings), Random(seed)), [ReplicaState(ReplicaInfo(f"s{i}")) for i in range(servers)]


def longest_after_throwing(policy: str, balls: int, servers: int, seed: int) -> int:
    router, replicas = make_router(policy, servers, seed)
    for _ in range(balls):
        router.pick(REQUEST, replicas, 0.0)
    return max(replica.booked.requests for replica in replicas)


class Queues:
    """Poisson arrivals at `load` per server, routed by `policy`."""

    def __init__(self, policy: str, servers: int, load: float, service, seed: int = 1) -> None:
        self.router, self.replicas = make_router(policy, servers, seed)
        self.rate = servers * load
        self.service = service
        self.rng = Random(seed + 100)

    def run(self, arrivals: int, warm_up: int, every: int = 0):
        """Mean wait after the warm-up, and the longest queue seen at every so many arrivals."""
        now, numbers, departures = 0.0, itertools.count(), []
        free_at = dict.fromkeys(self.replicas, 0.0)
        waits, longest, lengths = [], [], Counter()
        for number in range(arrivals):
            now += self.rng.expovariate(self.rate)
            while departures and departures[0][0] <= now:
                self.router.finish(heapq.heappop(departures)[2], now)
            if number >= warm_up and every and number % every == 0:
                queues = [replica.booked.requests for replica in self.replicas]
                longest.append(max(queues))
                lengths.update(queues)
            decision = self.router.pick(REQUEST, self.replicas, now)
            begin = max(now, free_at[decision.replica])
            end = free_at[decision.replica] = begin + self.service(self.rng)
            heapq.heappush(departures, (end, next(numbers), decision))
            if number >= warm_up:
                waits.append(begin - now)
        return fmean(waits), longest, lengths


def mean_wait(policy: str, *, servers: int, load: float, cv: float, arrivals: int = 25_000) -> float:
    return Queues(policy, servers, load, gamma(cv)).run(arrivals, arrivals // 5)[0]


class TestThousandServers:
    def test_as_many_balls_as_bins(self):
        """Leading terms: ln R / ln ln R = 3.57 for one choice, ln ln R = 1.93 for two; what comes is a little above both."""
        one = [longest_after_throwing("random", 1000, 1000, seed) for seed in range(5)]
        two = [longest_after_throwing("power_of_two", 1000, 1000, seed) for seed in range(5)]
        assert math.log(1000) / math.log(math.log(1000)) == pytest.approx(3.574, abs=0.001)
        assert min(one) >= 4
        assert median(one) in (5, 6)
        assert set(two) == {3}

    def test_longest_queue_in_steady_state(self):
        """Servers a fifth busy: the longest of 1000 queues is 4 or 5 when placed at random and 2 with two choices.

        The share of queues with k or more is load^k for one choice, and load^(2^k - 1) for two (Mitzenmacher 2001).
        """
        one = Queues("random", 1000, 0.2, gamma(1.0)).run(5_000, 2_000, every=100)
        two = Queues("power_of_two", 1000, 0.2, gamma(1.0)).run(5_000, 2_000, every=100)
        assert median(one[1]) in (4, 5)
        assert median(two[1]) == 2
        for (_, _, lengths), share in ((one, lambda k: 0.2**k), (two, lambda k: 0.2 ** (2**k - 1))):
            total = sum(lengths.values())
            for k in (1, 2):
                at_least = sum(count for length, count in lengths.items() if length >= k) / total
                assert at_least == pytest.approx(share(k), rel=0.05 if k == 1 else 0.25)


def test_two_choices_at_seventy_percent_are_as_the_mean_field_says():
    """Mean time in the system: sum over i >= 1 of load^(2^i - 2) = 1.61, against 1 / (1 - load) = 3.33 at random."""
    expected = sum(0.7 ** (2**i - 2) for i in range(1, 8))
    assert expected == pytest.approx(1.61, abs=0.005)
    assert 1.0 + mean_wait("power_of_two", servers=100, load=0.7, cv=1.0) == pytest.approx(expected, rel=0.05)
    assert 1.0 + mean_wait("random", servers=100, load=0.7, cv=1.0, arrivals=40_000) == pytest.approx(1 / 0.3, rel=0.1)


class TestHundredServersAtHalfVariation:
    """100 servers, 80 % busy, service times with a coefficient of variation of 0.5."""

    def wait(self, policy: str, arrivals: int = 20_000) -> float:
        return mean_wait(policy, servers=100, load=0.8, cv=0.5, arrivals=arrivals)

    def test_random_placement_is_a_hundred_separate_queues(self):
        """Pollaczek-Khinchine: load / (1 - load) x (1 + CV^2) / 2 = 2.5."""
        assert self.wait("random", arrivals=60_000) == pytest.approx(2.5, rel=0.1)

    def test_order_of_the_policies(self):
        """So regular a service makes turns better than two choices, and looking at all queues leaves next to no wait.

        In turn, each server sees every hundredth arrival, nearly evenly spaced: less than 0.52 (Kingman's bound with a
        variation of arrivals of 1/100) and more than 0.27 (its correction after Kraemer and Langenbach-Belz).
        """
        least, turns, two = self.wait("least_load", 5_000), self.wait("round_robin"), self.wait("power_of_two")
        assert least < 0.02
        assert 0.25 < turns < 0.45
        assert turns < two
        assert two == pytest.approx(0.56, rel=0.15)


class TestVariableOutputs:
    """20 servers, 80 % busy, answers that vary as much as those of language models: CV 2."""

    def wait(self, policy: str) -> float:
        return mean_wait(policy, servers=20, load=0.8, cv=2.0, arrivals=40_000)

    def test_order_and_size(self):
        """Turns do not see that a long answer is ahead: load / (1 - load) x (1/20 + CV^2) / 2 = 8.1 (Kingman).

        Counting requests does: two choices wait a third of that, and the least of all a twentieth.
        """
        turns, two, least = self.wait("round_robin"), self.wait("power_of_two"), self.wait("least_load")
        assert turns == pytest.approx(8.1, rel=0.25)
        assert two / turns == pytest.approx(1 / 3, rel=0.3)
        assert least / turns == pytest.approx(1 / 20, rel=0.5)
