import math
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.errors import ConfigError
from argosy.fleet.policies.routing.policy import Question
from argosy.fleet.policies.routing.replica_state import ReplicaInfo, ReplicaState
from argosy.fleet.policies.routing.request import RoutingRequest
from argosy.fleet.policies.traffic_split import Arm, ConversationPicker, TrafficSplit

NUM = 10_000


def split(*weights: float, salt: str = "") -> TrafficSplit:
    return TrafficSplit(tuple(Arm(f"v{number}", weight) for number, weight in enumerate(weights)), salt)


def assert_shares(counts: Counter, weights: tuple[float, ...]) -> None:
    total = sum(weights)
    for number, weight in enumerate(weights):
        share = weight / total
        sigma = math.sqrt(NUM * share * (1.0 - share))
        assert abs(counts[f"v{number}"] - NUM * share) <= 3.0 * sigma, (number, counts)


@pytest.mark.parametrize("weights", [(90, 10), (1, 3), (0, 100), (100, 0), (0.2, 0.3, 0.1), (5, 0, 5), (1, 1, 1, 1, 1)])
def test_shares_are_the_weights_within_three_sigma_and_exactly_none_for_zero(weights):
    for key in ("session-{}", ""):
        rng = Random(5)
        assert_shares(Counter(split(*weights).arm_of(key.format(n), rng) for n in range(NUM)), weights)


def test_a_conversation_stays_whatever_is_drawn_meanwhile():
    one = split(50, 50)
    assert {one.arm_of("c1", Random(seed)) for seed in range(100)} == {one.arm_of("c1", Random(0))}


def test_when_a_canary_grows_conversations_move_only_to_it():
    keys, rng = [f"s{n}" for n in range(2000)], Random(0)
    before = [split(90, 10).arm_of(key, rng) for key in keys]
    after = [split(70, 30).arm_of(key, rng) for key in keys]
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {("v0", "v1")}
    assert 0.15 < len(moved) / len(keys) < 0.27


def test_rolled_back_and_tried_again_only_the_arms_that_are_named_get_traffic():
    keys, rng = [f"s{n}" for n in range(500)], Random(0)
    first = {TrafficSplit((Arm("v1", 90), Arm("v2", 10))).arm_of(key, rng) for key in keys}
    back = {TrafficSplit((Arm("v1", 100), Arm("v2", 0))).arm_of(key, rng) for key in keys}
    again = {TrafficSplit((Arm("v1", 90), Arm("v2", 0), Arm("v3", 10))).arm_of(key, rng) for key in keys}
    assert (first, back, again) == ({"v1", "v2"}, {"v1"}, {"v1", "v3"})


def test_another_salt_takes_other_conversations():
    keys = [f"s{n}" for n in range(2000)]
    one = {key for key in keys if split(90, 10, salt="a").arm_of(key, Random(0)) == "v1"}
    two = {key for key in keys if split(90, 10, salt="b").arm_of(key, Random(0)) == "v1"}
    assert len(one & two) < 0.5 * len(one)


@given(st.text(max_size=20), st.lists(st.floats(0.0, 1e6), min_size=1, max_size=6).filter(lambda ws: max(ws) > 0.0))
def test_no_key_ever_goes_to_an_arm_of_weight_zero(key, weights):
    arm = split(*weights).arm_of(key, Random(1))
    assert weights[int(arm[1:])] > 0.0


@pytest.mark.parametrize("weights", [(), (0, 0), (-1, 2), (math.nan, 1), (math.inf, 1)])
def test_impossible_splits_are_refused(weights):
    with pytest.raises(ConfigError):
        split(*weights)
    with pytest.raises(ConfigError, match="different names"):
        TrafficSplit((Arm("a", 1), Arm("a", 1)))


def pick(key: str, candidates: list[ReplicaState], rng: Random) -> str:
    question = Question(RoutingRequest("r", affinity_key=key), candidates, 0.0, {})
    return ConversationPicker("m").pick(question, candidates, lambda some: [0.0] * len(some), rng).replica_id


def test_conversations_spread_by_weight_move_off_a_replica_that_is_away_and_come_back():
    replicas = [ReplicaState(ReplicaInfo("a", weight=3.0)), ReplicaState(ReplicaInfo("b")), ReplicaState(ReplicaInfo("c"))]
    keys = [f"c{n}" for n in range(3000)]
    home = {key: pick(key, replicas, Random(0)) for key in keys}
    assert 0.55 < Counter(home.values())["a"] / len(keys) < 0.65
    without = {key: pick(key, replicas[:2], Random(0)) for key in keys}
    assert all(without[key] == home[key] for key in keys if home[key] != "c")
    assert {pick(key, replicas, Random(0)) == home[key] for key in keys} == {True}
    assert len({pick("", replicas, Random(seed)) for seed in range(50)}) == 3
