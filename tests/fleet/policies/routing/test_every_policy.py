"""What must hold whatever the policy."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.errors import ConfigError, NoReplicaAvailable
from argosy.fleet.policies.routing.named import POLICIES, make_policy
from argosy.fleet.policies.routing.policy import Question
from argosy.fleet.policies.routing.replica_state import LoadReport, ReplicaInfo, ReplicaState
from argosy.fleet.policies.routing.request import RoutingRequest, chain_root, token_block_hashes
from argosy.fleet.policies.routing.router import Router

NAMES = sorted(POLICIES)
NEEDED = {"prefix_precise": {"block_tokens": 16}, "nearest_region": {"round_trip_s": {"us": {"eu": 0.09}}}}
KEYED = {"consistent_hash", "session_affinity"}


def request(number: int, **fields) -> RoutingRequest:
    return RoutingRequest(f"q{number}", prompt_tokens=100, expected_output_tokens=50, **fields)


@pytest.mark.parametrize("name", NAMES)
def test_a_burst_spreads_over_equal_replicas(name, pool, router):
    replicas, route = pool(8), router(name)
    for number in range(100):
        route.pick(request(number), replicas, 0.0)
    counts = [replica.booked.requests for replica in replicas]
    assert sum(counts) == 100
    probing = {"random", "weighted_random"}
    sampling = {"power_of_two", "consistent_hash", "session_affinity", "least_latency"}
    limit = 25 if name in probing else 4 if name in sampling else 1
    assert max(counts) - min(counts) <= limit


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_prompt_is_routed(name, pool, router):
    replicas, route = pool(4), router(name)
    picked = Counter(route.pick(RoutingRequest(f"q{i}"), replicas, 0.0).replica.replica_id for i in range(40))
    assert set(picked) == {"r0", "r1", "r2", "r3"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("away", [{"healthy": False}, {"breaker_open": True}, {"draining": True}, "weight"])
def test_a_replica_that_takes_no_requests_gets_none(name, away, pool, router):
    replicas, route = pool(4), router(name)
    if away == "weight":
        replicas[1].info = replace(replicas[1].info, weight=0.0)
    else:
        for field, value in away.items():
            setattr(replicas[1], field, value)
    for number in range(60):
        route.pick(request(number, affinity_key=f"s{number}"), replicas, 0.0)
    assert replicas[1].booked.requests == 0
    assert all(replica.booked.requests for replica in replicas if replica is not replicas[1])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("keyed", [False, True])
def test_the_load_of_a_replica_that_is_away_changes_nothing(name, keyed, pool, router):
    def picks(load: int) -> list[str]:
        replicas, route = pool(5), router(name, seed=3)
        replicas[2].healthy = False
        replicas[2].take_report(LoadReport(0.0, num_running=load, active_tokens=load, kv_used_fraction=1.0))
        replicas[2].latency.observe(float(load + 1), 0.0)
        keys = (f"s{number % 7}" if keyed else "" for number in range(80))
        return [
            route.pick(request(number, affinity_key=key), replicas, 0.0).replica.replica_id
            for number, key in enumerate(keys)
        ]

    assert picks(0) == picks(10_000)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_stream_gives_the_same_decisions(name, pool, router):
    def picks(seed: int) -> list[str]:
        replicas, route = pool(6), router(name, seed)
        return [route.pick(request(number), replicas, number * 0.1).replica.replica_id for number in range(60)]

    assert picks(1) == picks(1)


@pytest.mark.parametrize("name", NAMES)
def test_no_replica_is_an_error_that_says_so(name, pool, router):
    with pytest.raises(NoReplicaAvailable, match="no replica is registered"):
        router(name).pick(request(0), [], 0.0)
    replicas = pool(2)
    for replica in replicas:
        replica.healthy = False
    with pytest.raises(NoReplicaAvailable, match="none of 2 replicas takes requests"):
        router(name).pick(request(0), replicas, 0.0)


@pytest.mark.parametrize("name", NAMES)
def test_one_replica_left_gets_everything(name, pool, router):
    replicas, route = pool(3), router(name)
    asks = request(0, tried=frozenset({"r0", "r2"}), affinity_key="s")
    assert {route.pick(asks, replicas, 0.0).replica.replica_id for _ in range(10)} == {"r1"}


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_refuses_a_setting_it_does_not_have(name):
    with pytest.raises(ConfigError, match=rf"{name!r} has no setting 'virtual_node'"):
        make_policy(name, {"virtual_node": 3})


def test_an_unknown_policy_is_named_with_the_nearest():
    with pytest.raises(ConfigError, match="'round_robbin' is unknown, did you mean 'round_robin'"):
        make_policy("round_robbin")


replica_infos = st.builds(
    lambda weight, price, region, adapters: {
        "weight": weight,
        "usd_per_hour": price,
        "region": region,
        "max_adapters": adapters,
    },
    st.floats(0.1, 10.0),
    st.floats(0.0, 10.0),
    st.sampled_from(["", "us", "eu"]),
    st.integers(0, 3),
)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    infos=st.lists(replica_infos, min_size=1, max_size=6),
    operations=st.lists(
        st.tuples(st.sampled_from(["pick", "first_token", "finish", "report", "toggle", "reap"]), st.integers(0, 10**6)),
        max_size=60,
    ),
    seed=st.integers(0, 3),
)
def test_books_balance_after_any_operations(name, infos, operations, seed):
    """Bookings equal the decisions alive, scores stay in [0, 1], and nothing is left when all have ended."""
    replicas = [ReplicaState(ReplicaInfo(f"r{i}", kv_capacity_tokens=1000, **info)) for i, info in enumerate(infos)]
    route = Router(make_policy(name, NEEDED.get(name, {})), Random(seed))
    alive = []
    for at, (what, number) in enumerate(operations):
        now_s = float(at)
        replica = replicas[number % len(replicas)]
        if what == "pick":
            token_ids = tuple(range(number % 3, number % 3 + number % 200))
            asks = RoutingRequest(
                f"q{at}",
                prompt_tokens=len(token_ids),
                expected_output_tokens=number % 50,
                prefix_blocks=token_block_hashes(token_ids, 16, chain_root("")),
                prefix_block_tokens=16,
                affinity_key=f"s{number % 5}" if number % 2 else "",
                adapter_id=f"a{number % 3}" if number % 5 == 0 else "",
                region="us" if number % 4 else "",
            )
            cached = {each.replica_id: number % 250 for each in replicas}
            for part in route.policy.scorers:
                scores = part.scorer.score(Question(asks, replicas, now_s, cached), replicas)
                assert len(scores) == len(replicas)
                assert all(0.0 <= score <= 1.0 for score in scores)
            if any(each.takes_requests for each in replicas):
                decision = route.pick(asks, replicas, now_s)
                assert decision.replica.takes_requests
                alive.append(decision)
        elif what == "report":
            replica.take_report(LoadReport(now_s, number % 7, number % 3, number % 500, (number % 11) / 10))
        elif what == "toggle":
            replica.healthy = not replica.healthy
        elif what == "reap":
            gone = route.reap(now_s, float(number % 40))
            alive = [decision for decision in alive if decision not in gone]
        elif alive:
            decision = alive[number % len(alive)]
            if what == "first_token":
                route.first_token(decision, now_s)
            else:
                route.finish(decision, now_s, latency_s=number % 10 / 10)
                alive.remove(decision)
        assert route.num_alive == len(alive)
        for each in replicas:
            here = [decision for decision in alive if decision.replica is each]
            assert each.booked.requests == len(here) <= each.num_requests
            assert each.booked.tokens == sum(decision.booked_tokens for decision in here) <= each.num_tokens
            assert each.booked.prefill_tokens == sum(decision.booked_prefill_tokens for decision in here)
            assert sum(each.booked_adapters.values()) == sum(bool(decision.request.adapter_id) for decision in here)
    for decision in alive:
        route.finish(decision, 1e3)
        route.finish(decision, 1e3)
    assert route.num_alive == 0
    assert all(
        (each.booked.requests, each.booked.tokens, each.booked.prefill_tokens, each.booked_adapters) == (0, 0, 0, {})
        for each in replicas
    )
