from dataclasses import dataclass
from random import Random

import pytest

from argosy.errors import ConfigError, NoReplicaAvailable
from argosy.fleet.policies.routing.filters import DEFAULT_FILTERS, BelowLoad
from argosy.fleet.policies.routing.pickers import HighestScore
from argosy.fleet.policies.routing.policy import RoutingPolicy, WeightedScorer
from argosy.fleet.policies.routing.replica_state import LoadReport, ReplicaInfo, ReplicaState
from argosy.fleet.policies.routing.request import RoutingRequest
from argosy.fleet.policies.routing.router import Router


@dataclass(frozen=True)
class Fixed:
    scores: dict[str, float]

    def score(self, question, candidates):
        return [self.scores[replica.replica_id] for replica in candidates]


def ask(request_id: str = "q", prompt: int = 100, output: int = 20, **fields) -> RoutingRequest:
    return RoutingRequest(request_id, prompt_tokens=prompt, expected_output_tokens=output, **fields)


def test_scores_count_by_their_weight(pool):
    parts = (
        WeightedScorer(Fixed({"r0": 1.0, "r1": 0.0}), 1.0),
        WeightedScorer(Fixed({"r0": 0.0, "r1": 0.6}), 2.0),
    )
    route = Router(RoutingPolicy("test", (), parts, HighestScore()), Random(0))
    assert route.pick(ask(), pool(2), 0.0).replica.replica_id == "r1"
    parts = (parts[0], WeightedScorer(parts[1].scorer, 1.5))
    route = Router(RoutingPolicy("test", (), parts, HighestScore()), Random(0))
    assert route.pick(ask(), pool(2), 0.0).replica.replica_id == "r0"


def test_a_negative_weight_is_refused():
    with pytest.raises(ConfigError, match="weight of a scorer"):
        Router(RoutingPolicy("test", (), (WeightedScorer(Fixed({}), -1.0),), HighestScore()), Random(0))


@pytest.mark.parametrize(
    ("fields", "fits", "by"),
    [
        ({"model": "b"}, "r1", "model"),
        ({"prompt": 500}, "r0", "context length"),
        ({"allowed_regions": frozenset({"eu"})}, "r1", "allowed regions"),
        ({"required_labels": frozenset({("gpu", "h100")})}, "r0", "labels"),
    ],
)
def test_each_filter_keeps_what_may_serve_and_is_named_when_none_may(fields, fits, by, router):
    def replicas() -> list[ReplicaState]:
        h100 = frozenset({("gpu", "h100")})
        first = ReplicaInfo("r0", models=frozenset({"a"}), max_model_len=501, region="us", labels=h100)
        second = ReplicaInfo("r1", models=frozenset({"a", "b"}), max_model_len=500, region="eu")
        return [ReplicaState(first), ReplicaState(second)]

    route = router("round_robin")
    assert {route.pick(ask(**fields), replicas(), 0.0).replica.replica_id for _ in range(4)} == {fits}
    others = [replica for replica in replicas() if replica.replica_id != fits]
    with pytest.raises(NoReplicaAvailable, match=f"by its {by}"):
        route.pick(ask(**fields), others, 0.0)
    assert {route.pick(ask(), replicas(), 0.0).replica.replica_id for _ in range(4)} == {"r0", "r1"}


def test_a_replica_that_failed_a_request_is_tried_again_only_if_there_is_no_other(pool, router):
    replicas, route = pool(2), router("least_load")
    again = ask(tried=frozenset({"r0"}))
    assert {route.pick(again, replicas, 0.0).replica.replica_id for _ in range(5)} == {"r1"}
    replicas[1].healthy = False
    assert route.pick(again, replicas, 0.0).replica.replica_id == "r0"


def test_a_load_limit_counts_what_is_booked(pool):
    route = Router(RoutingPolicy("test", (*DEFAULT_FILTERS, BelowLoad(2.0)), (), HighestScore()), Random(0))
    replicas = pool(weights=(1.0, 2.0))
    decisions = [route.pick(ask(f"q{i}"), replicas, 0.0) for i in range(6)]
    assert [replica.booked.requests for replica in replicas] == [2, 4]
    with pytest.raises(NoReplicaAvailable, match="by its load limit"):
        route.pick(ask("q6"), replicas, 0.0)
    route.finish(decisions[0], 1.0)
    assert route.pick(ask("q7"), replicas, 1.0).replica is decisions[0].replica


def test_a_booking_is_taken_off_the_replica_it_was_put_on(pool, router):
    """A replica that restarts under its old name starts with nothing, and what ends late does not make it negative."""
    route, old = router("least_load"), pool(1)
    decision = route.pick(ask(), old, 0.0)
    fresh = pool(1)
    route.finish(decision, 1.0)
    assert (old[0].booked.requests, fresh[0].booked.requests) == (0, 0)


def test_first_token_ends_the_prefill_only(pool, router):
    replicas, route = pool(1), router("least_load")
    decision = route.pick(ask(), replicas, 0.0)
    booked = replicas[0].booked
    assert (booked.requests, booked.tokens, booked.prefill_tokens) == (1, 120, 100)
    route.first_token(decision, 1.0)
    route.first_token(decision, 1.0)
    assert (booked.requests, booked.tokens, booked.prefill_tokens) == (1, 120, 0)
    route.finish(decision, 2.0)
    route.first_token(decision, 2.0)
    assert (booked.requests, booked.tokens, booked.prefill_tokens) == (0, 0, 0)


def test_a_long_stream_is_load_as_long_as_it_lives(pool, router):
    """Six minutes of stream with signs of life are not reaped, silence is; age is not looked at."""
    replicas, route = pool(1), router("least_load")
    streaming, silent = route.pick(ask("a"), replicas, 0.0), route.pick(ask("b"), replicas, 0.0)
    for second in range(10, 361, 10):
        route.keep_alive(streaming, float(second))
    assert route.reap(360.0, 60.0) == [silent]
    assert replicas[0].booked.requests == 1
    route.finish(silent, 361.0)
    assert replicas[0].booked.requests == 1
    assert route.reap(420.0, 60.0) == []
    assert route.reap(420.5, 60.0) == [streaming]


def test_nothing_is_remembered_of_ended_requests(pool, router):
    route, replicas = router("prefix_aware", blocks_per_replica=50), pool(2)
    for number in range(2000):
        asks = RoutingRequest(
            f"q{number}", prompt_tokens=32, prefix_blocks=(number, -number), prefix_block_tokens=16, adapter_id=f"a{number}"
        )
        route.finish(route.pick(asks, replicas, 0.0), 0.0)
    assert route.num_alive == 0
    assert route.policy.prefix_matcher.num_blocks <= 100
    assert all(not replica.booked_adapters for replica in replicas)


class TestReports:
    def test_bookings_since_a_report_are_added_to_it(self, pool, router):
        route, (replica,) = router("least_load"), pool(1)
        first = route.pick(ask("a"), [replica], 0.0)
        replica.take_report(LoadReport(1.0, num_running=3, num_waiting=2, active_tokens=500, kv_used_fraction=0.05))
        assert (replica.num_requests, replica.num_tokens, replica.kv_fraction) == (5, 500, 0.05)
        route.pick(ask("b"), [replica], 1.0)
        assert (replica.num_requests, replica.num_tokens) == (6, 620)
        assert replica.kv_fraction == pytest.approx(0.05 + 120 / 10_000)
        route.finish(first, 2.0)
        assert (replica.num_requests, replica.num_tokens) == (5, 500)

    def test_load_is_never_below_what_is_booked(self, pool, router):
        route, (replica,) = router("least_load"), pool(1)
        for number in range(4):
            route.pick(ask(f"q{number}"), [replica], 0.0)
        replica.take_report(LoadReport(0.1))
        assert (replica.num_requests, replica.num_tokens) == (4, 480)
        assert replica.kv_fraction == pytest.approx(480 / 10_000)

    def test_a_forgotten_report_counts_no_more(self, pool):
        (replica,) = pool(1)
        replica.take_report(LoadReport(0.0, num_running=9, active_tokens=9, kv_used_fraction=0.9))
        replica.take_report(None)
        assert (replica.num_requests, replica.num_tokens, replica.kv_fraction) == (0, 0, 0.0)

    def test_kv_use_that_nobody_knows_is_an_error(self, router):
        replicas = [ReplicaState(ReplicaInfo(f"r{i}")) for i in range(2)]
        with pytest.raises(ConfigError, match="KV use of replica 'r0' is unknown"):
            router("least_load", load="kv").pick(ask(), replicas, 0.0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"replica_id": ""}, "needs an id"),
        ({"replica_id": "a", "weight": -1.0}, "weight of replica 'a'"),
        ({"replica_id": "a", "weight": float("nan")}, "weight of replica 'a'"),
        ({"replica_id": "a", "kv_capacity_tokens": 0}, "kv_capacity_tokens of replica 'a'"),
    ],
)
def test_impossible_replicas_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        ReplicaInfo(**fields)
