from collections import Counter
from random import Random

import pytest

from argosy.errors import ConfigError
from argosy.fleet.policies.routing.named import make_policy
from argosy.fleet.policies.routing.peak_ewma import PeakEwma
from argosy.fleet.policies.routing.pickers import BestOfSample, Softmax, best_of
from argosy.fleet.policies.routing.replica_state import LoadReport, ReplicaInfo, ReplicaState
from argosy.fleet.policies.routing.request import RoutingRequest
from argosy.fleet.policies.routing.router import Router


def ask(number: int = 0, prompt: int = 100, output: int = 0, **fields) -> RoutingRequest:
    return RoutingRequest(f"q{number}", prompt_tokens=prompt, expected_output_tokens=output, **fields)


def counts(replicas) -> list[int]:
    return [replica.booked.requests for replica in replicas]


class TestRoundRobin:
    def test_each_in_turn(self, pool, router):
        replicas, route = pool(3), router("round_robin")
        assert [route.pick(ask(i), replicas, 0.0).replica.replica_id for i in range(6)] == ["r0", "r1", "r2"] * 2

    def test_a_replica_that_comes_back_takes_its_turn_and_does_not_catch_up(self, pool, router):
        replicas, route = pool(3), router("round_robin")
        replicas[1].healthy = False
        for i in range(30):
            route.pick(ask(i), replicas, 0.0)
        replicas[1].healthy = True
        for i in range(9):
            route.pick(ask(i), replicas, 0.0)
        assert counts(replicas) == [18, 3, 18]

    def test_membership_that_flaps_skips_nobody(self, pool, router):
        """A position in a list would give r1 to the same half of the picks for ever."""
        replicas, route = pool(4), router("round_robin")
        for i in range(300):
            replicas[3].healthy = i % 2 == 0
            route.pick(ask(i), replicas, 0.0)
        assert max(counts(replicas)[:3]) - min(counts(replicas)[:3]) <= 2

    def test_weights_are_exact(self, pool, router):
        replicas, route = pool(weights=(5.0, 3.0, 2.0)), router("weighted_round_robin")
        for i in range(1000):
            route.pick(ask(i), replicas, 0.0)
        assert counts(replicas) == pytest.approx([500, 300, 200], abs=1)


class TestWeights:
    @pytest.mark.parametrize("weights", [(90.0, 10.0), (1.0, 3.0), (0.0, 100.0), (0.2, 0.2, 0.1)])
    def test_ten_thousand_requests_within_three_sigma(self, weights, pool, router):
        replicas, route = pool(weights=weights), router("weighted_random", seed=11)
        for i in range(10_000):
            route.pick(ask(i), replicas, 0.0)
        for replica, weight in zip(replicas, weights, strict=True):
            share = weight / sum(weights)
            assert abs(replica.booked.requests - 10_000 * share) <= 3 * (10_000 * share * (1 - share)) ** 0.5

    def test_ten_large_and_twenty_small_replicas_are_equally_busy(self, pool, router):
        """10 x 1000 and 20 x 600 QPS of capacity, 15 000 QPS: 68.18 % everywhere; unweighted 50 and 83.3 %."""
        weights = (1000.0,) * 10 + (600.0,) * 20
        for name, large, small in (("weighted_round_robin", 0.6818, 0.6818), ("round_robin", 0.5, 0.8333)):
            replicas, route = pool(weights=weights), router(name)
            for i in range(15_000):
                route.pick(ask(i), replicas, 0.0)
            used = [replica.booked.requests / replica.info.weight for replica in replicas]
            assert used[:10] == pytest.approx([large] * 10, abs=0.003)
            assert used[10:] == pytest.approx([small] * 20, abs=0.003)


class TestLeastLoad:
    def test_requests_in_flight_count_and_not_those_that_ended(self, pool, router):
        """Four streams that never end against ten short calls a second, one in flight at a time."""
        streaming, serving = pool(2)
        route, replicas = router("least_load"), [streaming, serving]
        streaming.healthy, serving.healthy = True, False
        for i in range(4):
            route.pick(ask(i), replicas, 0.0)
        streaming.healthy, serving.healthy = False, True
        for i in range(100):
            route.finish(route.pick(ask(i), replicas, i * 0.1), i * 0.1 + 0.09)
        route.pick(ask(), replicas, 10.0)
        streaming.healthy = True
        for load in ("requests", "tokens", "kv"):
            picks = router("least_load", load=load)
            assert picks.pick(ask(), replicas, 10.0).replica is serving

    @pytest.mark.parametrize(("load", "better"), [("requests", "few_long"), ("tokens", "many_short"), ("kv", "many_short")])
    def test_the_load_named_is_the_load_looked_at(self, load, better, router):
        few_long, many_short = (
            ReplicaState(ReplicaInfo(name, kv_capacity_tokens=10_000)) for name in ("few_long", "many_short")
        )
        few_long.take_report(LoadReport(0.0, 2, 0, 5000, 0.5))
        many_short.take_report(LoadReport(0.0, 5, 0, 300, 0.03))
        assert router("least_load", load=load).pick(ask(), [few_long, many_short], 0.0).replica.replica_id == better

    def test_load_is_weighed_by_capacity(self, router):
        small, large = (ReplicaState(ReplicaInfo(name, weight=weight)) for name, weight in (("s", 1.0), ("l", 10.0)))
        small.take_report(LoadReport(0.0, num_running=2, active_tokens=100))
        large.take_report(LoadReport(0.0, num_running=8, active_tokens=400))
        for name in ("least_load", "power_of_two"):
            for load in ("requests", "tokens"):
                assert router(name, load=load).pick(ask(), [small, large], 0.0).replica is large

    def test_an_unknown_load_is_refused(self):
        with pytest.raises(ConfigError, match="load must be one of requests, tokens, kv, got 'qps'"):
            make_policy("least_load", {"load": "qps"})

    def test_routers_with_the_same_stale_view_do_not_all_pick_the_same(self, pool, router):
        """Ten routers, equal reports, one pick each: ties are broken by each router's own stream."""
        picked = Counter()
        for seed in range(10):
            replicas = pool(8)
            for replica in replicas:
                replica.take_report(LoadReport(0.0, num_running=3))
            picked[router("least_load", seed).pick(ask(), replicas, 0.0).replica.replica_id] += 1
        assert max(picked.values()) <= 4


class TestTwoChoices:
    def test_less_loaded_of_two_wins(self, router, pool):
        for seed in range(50):
            light, heavy = pool(2)
            heavy.take_report(LoadReport(0.0, num_running=9))
            assert router("power_of_two", seed).pick(ask(), [heavy, light], 0.0).replica is light

    def test_the_best_of_many_is_not_always_taken(self, router, pool):
        """Only two are looked at, so that the least loaded of 10 gets about 2/10 of the picks."""
        hits = 0
        for seed in range(400):
            replicas = pool(10)
            for replica in replicas[1:]:
                replica.take_report(LoadReport(0.0, num_running=5))
            hits += router("power_of_two", seed).pick(ask(), replicas, 0.0).replica is replicas[0]
        assert hits / 400 == pytest.approx(0.2, abs=0.06)

    def test_large_replicas_are_probed_more_often(self, router, pool):
        drawn = Counter()
        for seed in range(600):
            replicas = pool(weights=(8.0, 1.0, 1.0))
            drawn[router("power_of_two", seed).pick(ask(), replicas, 0.0).replica.replica_id] += 1
        # Missing the large one takes both small ones: 2 x (0.1 x 1/9) = 0.022; if it is drawn, ties are split evenly.
        assert drawn["r0"] / 600 == pytest.approx(0.49, abs=0.07)

    def test_nothing_to_probe_is_refused(self):
        with pytest.raises(ConfigError, match="num_probed"):
            BestOfSample(0)


class TestLatency:
    def test_a_peak_counts_at_once_and_fades_slowly(self):
        ewma = PeakEwma(decay_s=10.0)
        ewma.observe(0.1, 0.0)
        ewma.observe(2.0, 1.0)
        assert ewma.value_s == 2.0
        ewma.observe(0.1, 11.0)
        assert ewma.value_s == pytest.approx(0.1 + 1.9 * 0.36788, rel=1e-4)

    def test_warm_up_samples_are_left_out(self):
        ewma = PeakEwma(warm_up_samples=2)
        for latency_s in (30.0, 20.0):
            ewma.observe(latency_s, 0.0)
        assert ewma.value_s is None
        ewma.observe(0.5, 0.0)
        assert ewma.value_s == 0.5

    def test_the_faster_replica_is_preferred_until_it_has_more_to_do(self, pool, router):
        replicas, route = pool(2), router("least_latency")
        replicas[0].latency.observe(1.0, 0.0)
        replicas[1].latency.observe(0.25, 0.0)
        for i in range(10):
            route.pick(ask(i), replicas, 0.0)
        assert counts(replicas) == [2, 8]

    def test_a_replica_without_samples_is_tried_but_not_flooded(self, pool, router):
        replicas, route = pool(2), router("least_latency")
        replicas[0].latency.observe(0.5, 0.0)
        for i in range(10):
            route.pick(ask(i), replicas, 0.0)
        assert counts(replicas) == [5, 5]

    def test_latency_is_learnt_from_finished_requests_once(self, pool, router):
        replicas, route = pool(1), router("least_latency")
        decision = route.pick(ask(), replicas, 0.0)
        route.finish(decision, 3.0, latency_s=3.0)
        route.finish(decision, 4.0, latency_s=9.0)
        assert replicas[0].latency.value_s == 3.0
        failed = route.pick(ask(), replicas, 5.0)
        route.finish(failed, 6.0)
        assert replicas[0].latency.num_samples == 1


class TestAffinityOfOtherKinds:
    def test_an_adapter_goes_where_it_lies_or_is_about_to(self, pool, router):
        replicas, route = pool(4, max_adapters=1), router("least_work")
        replicas[2].adapters = frozenset({"a"})
        assert route.pick(ask(adapter_id="a"), replicas, 0.0).replica is replicas[2]
        first = route.pick(ask(adapter_id="b"), replicas, 0.0)
        assert first.replica is not replicas[2]
        second = route.pick(ask(adapter_id="b"), replicas, 0.0)
        assert second.replica is first.replica
        for decision in (first, second):
            route.finish(decision, 1.0)
        assert not first.replica.holds_adapter("b")

    def test_a_popular_adapter_spreads_once_waiting_costs_more_than_loading(self, pool, router):
        replicas, route = pool(4, max_adapters=1), router("least_work", adapter_load_tokens=1000.0, held_token_cost=0.0)
        picked = [route.pick(ask(i, adapter_id="a"), replicas, 0.0).replica for i in range(12)]
        assert len(set(picked[:10])) == 1
        assert picked[10] is not picked[0]

    def test_a_replica_with_room_for_an_adapter_goes_before_one_that_must_drop_one(self, pool, router):
        for seed in range(10):
            full, roomy = replicas = pool(2, max_adapters=1)
            full.adapters = frozenset({"x"})
            route = router("least_work", seed, adapter_load_tokens=100.0)
            assert route.pick(ask(adapter_id="a", prompt=90), replicas, 0.0).replica is roomy
            assert route.pick(ask(prompt=90), replicas, 0.0).replica is full

    def test_tokens_held_are_work_at_their_price(self, pool, router):
        """0.05 x 2000 tokens held against 60 and 140 prompt tokens still to compute."""
        for pending, better in ((60, "computing"), (140, "holding")):
            holding, computing = replicas = [ReplicaState(ReplicaInfo(name)) for name in ("holding", "computing")]
            holding.take_report(LoadReport(0.0, active_tokens=2000))
            computing.booked.prefill_tokens = pending
            assert router("least_work", held_token_cost=0.05).pick(ask(), replicas, 0.0).replica.replica_id == better

    def test_the_cheaper_replica_until_it_is_the_busier_one(self, router):
        cheap, dear = (
            ReplicaState(ReplicaInfo(name, usd_per_hour=price)) for name, price in (("cheap", 2.5), ("dear", 4.0))
        )
        route = router("cost_aware")
        picked = [route.pick(ask(i), [dear, cheap], 0.0).replica.replica_id for i in range(20)]
        assert picked[0] == "cheap"
        assert 10 < picked.count("cheap") < 20
        cheap.take_report(LoadReport(0.0, num_running=1000))
        assert route.pick(ask(), [dear, cheap], 0.0).replica is dear

    def test_price_is_per_capacity(self, router):
        small, large = (
            ReplicaState(ReplicaInfo(name, weight=weight, usd_per_hour=price))
            for name, weight, price in (("small", 1.0, 3.0), ("large", 4.0, 8.0))
        )
        assert router("cost_aware").pick(ask(), [small, large], 0.0).replica is large

    def test_the_nearest_region_in_either_direction_of_the_table(self, router):
        trips = {"us": {"eu": 0.09, "asia": 0.15}}
        near, far = (ReplicaState(ReplicaInfo(region, region=region)) for region in ("us", "asia"))
        route = router("nearest_region", round_trip_s=trips)
        assert route.pick(ask(region="us"), [far, near], 0.0).replica is near
        assert route.pick(ask(region="asia"), [far, near], 0.0).replica is far
        eu, us = (ReplicaState(ReplicaInfo(region, region=region)) for region in ("eu", "us"))
        assert route.pick(ask(region="asia"), [eu, us], 0.0).replica is eu
        far_unknown = router("nearest_region", round_trip_s=trips, unknown_s=0.5)
        assert far_unknown.pick(ask(region="asia"), [eu, us], 0.0).replica is us
        assert far_unknown.pick(ask(region="eu"), [us, far], 0.0).replica is us


def test_softmax_prefers_the_better_and_never_only_it(pool):
    replicas = pool(2)

    def share(temperature: float) -> float:
        picker, rng = Softmax(temperature), Random(5)
        return sum(picker.pick(None, replicas, lambda some: [1.0, 0.8], rng) is replicas[0] for _ in range(2000)) / 2000

    assert share(0.2) == pytest.approx(0.731, abs=0.03)
    assert share(0.02) > 0.99
    with pytest.raises(ConfigError, match="temperature"):
        Softmax(0.0)


def test_a_policy_with_weights_and_load_routes_by_both(pool):
    replicas = pool(weights=(3.0, 1.0))
    route = Router(make_policy("least_load"), Random(0))
    for i in range(40):
        route.pick(ask(i), replicas, 0.0)
    assert counts(replicas) == [30, 10]


def test_equal_scores_go_to_fewest_requests_then_the_one_picked_longest_ago_then_any(pool):
    replicas = pool(4)
    for replica, last, load in zip(replicas, (3, 1, 2, 0), (1, 1, 1, 2), strict=True):
        replica.last_picked = last
        replica.take_report(LoadReport(0.0, num_running=load))
    equal = [0.5] * 4
    assert {best_of(replicas, equal, Random(seed)) for seed in range(20)} == {replicas[1]}
    replicas[2].last_picked = 1
    assert {best_of(replicas, equal, Random(seed)) for seed in range(40)} == {replicas[1], replicas[2]}
    assert best_of(replicas, [0.5, 0.5, 0.5, 0.6], Random(0)) is replicas[3]
