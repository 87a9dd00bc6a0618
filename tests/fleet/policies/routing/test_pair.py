import pytest

from argosy.errors import NoReplicaAvailable
from argosy.fleet.policies.routing.pair import PairRouter
from argosy.fleet.policies.routing.request import RoutingRequest

ASK = RoutingRequest("q", prompt_tokens=1000, expected_output_tokens=200)


def booked(replica) -> tuple[int, int, int]:
    return replica.booked.requests, replica.booked.tokens, replica.booked.prefill_tokens


@pytest.fixture
def pair(router):
    return PairRouter(router("least_work"), router("least_load", load="tokens"))


def test_each_leg_is_booked_for_what_it_does(pair, pool):
    (computes,), (decodes,) = pool(1), pool(1)
    decision = pair.pick(ASK, [computes], [decodes], 0.0)
    assert (booked(computes), booked(decodes)) == ((1, 1000, 1000), (1, 1200, 1000))
    pair.prefilled(decision, 1.0, latency_s=1.0)
    assert (booked(computes), booked(decodes)) == ((0, 0, 0), (1, 1200, 0))
    assert computes.latency.value_s == 1.0
    pair.finish(decision, 9.0)
    pair.finish(decision, 9.0)
    assert (booked(computes), booked(decodes)) == ((0, 0, 0), (0, 0, 0))


def test_a_pair_whose_prefill_fails_leaves_no_decode_slot_behind(pair, pool):
    (computes,), (decodes,) = pool(1), pool(1)
    pair.finish(pair.pick(ASK, [computes], [decodes], 0.0), 0.5)
    assert (booked(computes), booked(decodes)) == ((0, 0, 0), (0, 0, 0))


@pytest.mark.parametrize("away", ["prefill", "decode"])
def test_a_pair_is_picked_whole_or_not_at_all(pair, pool, away):
    (computes,), (decodes,) = pool(1), pool(1)
    (computes if away == "prefill" else decodes).breaker_open = True
    with pytest.raises(NoReplicaAvailable):
        pair.pick(ASK, [computes], [decodes], 0.0)
    assert (booked(computes), booked(decodes)) == ((0, 0, 0), (0, 0, 0))


def test_pairs_spread_over_both_pools(pair, pool):
    compute, decode = pool(3), pool(4)
    for _ in range(24):
        pair.pick(ASK, compute, decode, 0.0)
    assert [replica.booked.requests for replica in compute] == [8] * 3
    assert [replica.booked.requests for replica in decode] == [6] * 4
