import math
from collections import Counter
from dataclasses import replace

import pytest

from argosy.errors import ConfigError
from argosy.fleet.policies.routing.named import make_policy
from argosy.fleet.policies.routing.request import RoutingRequest

KEYS = [f"conversation-{number}" for number in range(4000)]


def keyed(key: str) -> RoutingRequest:
    return RoutingRequest(key, affinity_key=key)


def owners(route, replicas) -> dict[str, str]:
    """Who gets each key when nothing else is in flight."""
    owner_of = {}
    for key in KEYS:
        decision = route.pick(keyed(key), replicas, 0.0)
        route.finish(decision, 0.0)
        owner_of[key] = decision.replica.replica_id
    return owner_of


@pytest.mark.parametrize("name", ["consistent_hash", "session_affinity"])
def test_a_key_stays_where_it_is_in_every_process_and_order(name, pool, router):
    first = owners(router(name, seed=1), pool(5))
    assert owners(router(name, seed=2), list(reversed(pool(5)))) == first
    assert [first[key] for key in KEYS[:6]] == ["r2", "r4", "r1", "r3", "r3", "r1"]


def test_only_the_keys_of_a_member_that_leaves_move(pool, router):
    route, replicas = router("consistent_hash"), pool(8)
    before = owners(route, replicas)
    after = owners(route, [replica for replica in replicas if replica.replica_id != "r3"])
    moved = [key for key in KEYS if before[key] != after[key]]
    assert moved
    assert {before[key] for key in moved} == {"r3"}
    assert len(moved) / len(KEYS) <= 1 / 8 + 0.04
    takers = Counter(after[key] for key in moved)
    assert len(takers) == 7, "they spread over all that are left"
    assert owners(route, replicas) == before


def test_a_member_that_is_away_keeps_its_place_and_its_keys_walk_on(pool, router):
    """They go where they would if it had left, not all to the first healthy replica."""
    route, replicas = router("consistent_hash"), pool(8)
    gone = owners(route, [replica for replica in replicas if replica.replica_id != "r3"])
    for field in ("breaker_open", "draining"):
        setattr(replicas[3], field, True)
        assert owners(route, replicas) == gone
        setattr(replicas[3], field, False)


def test_a_member_that_joins_takes_its_share(pool, router):
    route = router("consistent_hash")
    before, after = owners(route, pool(7)), owners(route, pool(8))
    moved = [key for key in KEYS if before[key] != after[key]]
    assert {after[key] for key in moved} == {"r7"}
    assert len(moved) / len(KEYS) == pytest.approx(1 / 8, abs=0.04)


def test_more_virtual_nodes_spread_the_keys_more_evenly(pool, router):
    def largest_share(virtual_nodes: int) -> float:
        counts = Counter(owners(router("session_affinity", virtual_nodes=virtual_nodes), pool(8)).values())
        return max(counts.values()) * 8 / len(KEYS)

    assert largest_share(1) > 1.6
    assert largest_share(400) < 1.2


def test_shares_follow_weights_and_a_changed_weight_is_noticed(pool, router):
    replicas, route = pool(weights=(1.0, 3.0)), router("session_affinity", virtual_nodes=400)
    assert Counter(owners(route, replicas).values())["r1"] / len(KEYS) == pytest.approx(0.75, abs=0.04)
    replicas[1].info = replace(replicas[1].info, weight=1.0)
    assert Counter(owners(route, replicas).values())["r1"] / len(KEYS) == pytest.approx(0.5, abs=0.04)


def test_a_replica_replaced_by_another_of_its_name_is_the_one_that_gets_requests(pool, router):
    route, old, fresh = router("session_affinity"), pool(2), pool(2)
    route.pick(keyed("a"), old, 0.0)
    assert route.pick(keyed("a"), fresh, 0.0).replica in fresh


def test_requests_without_a_key_do_not_share_one_position(pool, router):
    for name in ("consistent_hash", "session_affinity"):
        replicas, route = pool(4), router(name)
        for number in range(64):
            route.pick(RoutingRequest(f"q{number}"), replicas, 0.0)
        assert min(replica.booked.requests for replica in replicas) >= 13


@pytest.mark.parametrize("bound", [1.1, 1.25, 2.0])
def test_no_replica_goes_over_its_bound(bound, pool, router):
    """All at once, half of them of one key: after each, load <= ceil(c m w / W)."""
    replicas, route = pool(weights=(1.0, 1.0, 2.0, 4.0)), router("consistent_hash", load_bound=bound)
    for number in range(1, 401):
        key = "popular" if number % 2 else KEYS[number]
        picked = route.pick(keyed(key), replicas, 0.0).replica
        assert picked.booked.requests <= math.ceil(bound * number * picked.info.weight / 8.0)
    load = [replica.booked.requests / replica.info.weight for replica in replicas]
    assert max(load) <= bound * 400 / 8 + 1


def test_max_over_mean_is_within_the_default_bound(pool, router):
    replicas, route = pool(10), router("consistent_hash")
    for key in KEYS:
        route.pick(keyed(key), replicas, 0.0)
    assert max(replica.booked.requests for replica in replicas) <= math.ceil(1.25 * len(KEYS) / 10)


def test_affinity_without_a_bound_holds_under_any_load(pool, router):
    replicas, route = pool(4), router("session_affinity")
    assert len({route.pick(keyed("popular"), replicas, 0.0).replica.replica_id for _ in range(100)}) == 1


def test_a_key_comes_back_when_its_owner_has_room_again(pool, router):
    replicas, route = pool(4), router("consistent_hash")
    home = route.pick(keyed("popular"), replicas, 0.0)
    away = route.pick(keyed("popular"), replicas, 0.0)
    assert away.replica is not home.replica
    route.finish(home, 1.0)
    route.finish(away, 1.0)
    assert route.pick(keyed("popular"), replicas, 1.0).replica is home.replica


def test_chi_square_of_uniform_keys(pool, router):
    """With 1000 points each the shares themselves vary by 3 %, which the statistic sees beside the sampling noise."""
    counts = Counter(owners(router("session_affinity", virtual_nodes=1000), pool(10)).values())
    mean = len(KEYS) / 10
    assert sum((count - mean) ** 2 / mean for count in counts.values()) < 27.9 + 9 * mean * 0.03**2 * 4


@pytest.mark.parametrize(
    ("settings", "message"), [({"virtual_nodes": 0}, "virtual_nodes"), ({"load_bound": 1.0}, "load_bound")]
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        make_policy("consistent_hash", settings)


def test_tiny_weights_still_have_a_point(pool, router):
    route, replicas = router("session_affinity"), pool(weights=(0.001, 0.001))
    for key in KEYS[:50]:
        route.pick(keyed(key), replicas, 0.0)
    assert sum(replica.booked.requests for replica in replicas) == 50
