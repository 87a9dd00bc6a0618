import dataclasses

import numpy as np
import pytest

from argosy.cost.catalogue import find_model
from argosy.cost.disaggregation import disaggregated
from argosy.cost.serving_time import ClosedLoop
from argosy.planner.disaggregated_search import pool_pairs
from argosy.planner.explain_disaggregation import explain_disaggregation
from argosy.planner.offers import resolve
from argosy.planner.serving import plan_serving
from argosy.planner.serving_question import SearchSpace, Slo
from argosy.planner.serving_search import search
from argosy.planner.traffic import Traffic

SPACE = SearchSpace(tensor=(1, 2), pipeline=(1,), chunk_tokens=(512, 4096))


@pytest.fixture
def long_prompts(ask):
    """Many prompt tokens and a tight TPOT, where prompts beside decoding hurt most."""
    return ask(traffic=Traffic.of(30, 6000, 200), slo=Slo.of(3000, 12), space=SPACE)


def pairs_of(question):
    spec = find_model(question.model)
    found = search(question, spec, None, tuple(resolve(offer) for offer in question.devices))
    return pool_pairs(found.grids, question, spec)


def test_pools_carry_the_traffic_within_the_targets(long_prompts):
    pairs = pairs_of(long_prompts)
    assert pairs
    for pair in pairs:
        assert pair.prefill.utilisation < 1
        assert pair.prefill.worker.engine.deployment.precisions.kv is pair.decode.engine.deployment.precisions.kv
        assert pair.decode.batch <= pair.decode.admissible
        assert pair.transfer_s > 0
    costs = [pair.usd_per_h for pair in pairs]
    assert costs == sorted(costs)


def test_two_pools_win_where_prompts_disturb_decoding(long_prompts):
    best = plan_serving(long_prompts).best
    assert [pool.role for pool in best.pools] == ["prefill", "decode"]
    one = plan_serving(dataclasses.replace(long_prompts, space=dataclasses.replace(SPACE, disaggregate=False))).best
    assert one is None or best.cost.per_h.middle < one.cost.per_h.middle
    explanation = explain_disaggregation(long_prompts)
    assert explanation.verdict.startswith("two pools")


def test_one_pool_wins_for_light_traffic(ask):
    question = ask(traffic=Traffic.of(0.5, 500, 200), space=SPACE)
    assert len(plan_serving(question).best.pools) == 1
    assert explain_disaggregation(question).verdict.startswith("one pool")


def test_the_open_pools_agree_with_closed_ones_of_the_same_concurrency(long_prompts):
    """A closed loop with as many clients as are in flight on average has about the same rate and TPOT."""
    pair = pairs_of(dataclasses.replace(long_prompts, slo=Slo()))[0]
    traffic = long_prompts.traffic
    request_s = pair.ttft_mean_s + pair.tpot_mean_s * (traffic.output.mean - 1)
    load = ClosedLoop(traffic.prompt.tokens, traffic.output.tokens, round(traffic.requests_per_s * request_s))
    closed = disaggregated(
        pair.prefill.worker.engine.model,
        pair.prefill.replicas,
        pair.decode.engine.model,
        pair.decode.replicas,
        load,
        chunk_tokens=pair.prefill.worker.chunk,
        transfer_s=pair.transfer_s,
    )
    assert closed.requests_per_s == pytest.approx(traffic.requests_per_s, rel=0.1)
    assert closed.tpot_s == pytest.approx(pair.tpot_mean_s, rel=0.1)


def test_outputs_of_one_token_have_no_decode_pool(ask):
    assert pairs_of(ask(traffic=Traffic.of(5, 1000, 1), slo=Slo(), space=SPACE)) == []


def test_limits_hold_for_both_pools_together(long_prompts):
    for limit in (3, 8):
        for pair in pairs_of(dataclasses.replace(long_prompts, max_devices=limit, slo=Slo.of(30000, 30))):
            assert pair.devices <= limit


def test_prefill_tail_falls(long_prompts):
    pair = pairs_of(long_prompts)[0]
    tails = [pair.prefill.ttft_tail(seconds, pair.transfer_s, ((1.0, 1.0),)) for seconds in np.linspace(0, 5, 20)]
    assert tails == sorted(tails, reverse=True)
