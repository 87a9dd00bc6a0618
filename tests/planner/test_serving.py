import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from argosy.cost.catalogue import find_device, find_model
from argosy.cost.deployment import Deployment
from argosy.cost.device import Precision
from argosy.cost.formats import WeightFormat, precisions_for
from argosy.cost.parallel import ParallelPlan
from argosy.cost.quantity import Grade
from argosy.cost.serving_memory import serving_memory
from argosy.errors import ConfigError
from argosy.planner.engines import request_tokens
from argosy.planner.offers import DeviceOffer, resolve
from argosy.planner.serving import plan_serving
from argosy.planner.serving_question import DraftModel, SearchSpace, ServingQuestion, Slo, Target
from argosy.planner.serving_search import candidates_of, search
from argosy.planner.traffic import Traffic

FEW = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def least_usd(question: ServingQuestion) -> float:
    found = search(question, find_model(question.model), None, tuple(resolve(offer) for offer in question.devices))
    candidates = candidates_of(found.grids, question)
    return candidates[0].usd_per_h if candidates else math.inf


def limited(question: ServingQuestion, count: int) -> ServingQuestion:
    return dataclasses.replace(question, devices=(dataclasses.replace(question.devices[0], count=count),))


def test_plans_are_ranked_and_keep_what_was_asked(ask):
    answer = plan_serving(ask())
    assert answer.infeasible is None
    costs = [plan.cost.per_h.middle for plan in answer.plans]
    assert costs == sorted(costs)
    full = [plan.cost.per_million_tokens_at_full_batch.middle for plan in answer.by_tokens_price]
    assert full == pytest.approx(sorted(full))
    tpots = [plan.latency.tpot_mean_s for plan in answer.by_latency]
    assert tpots == sorted(tpots)
    for plan in (*answer.plans, *answer.by_tokens_price, *answer.by_latency):
        for percentile in (*plan.latency.ttft, *plan.latency.tpot):
            assert percentile.target_s is None or percentile.seconds <= percentile.target_s * (1 + 1e-6)
        assert plan.throughput.utilisation < 1


def test_no_plan_holds_more_than_memory_admits(ask):
    question = ask(traffic=Traffic.of(30, 3000, 400, output_cv=1.0), slo=Slo())
    answer = plan_serving(question)
    spec, device = find_model("Llama-3.1-8B"), find_device("H100 SXM")
    for plan in (*answer.plans, *answer.by_tokens_price, *answer.by_latency):
        (pool,) = plan.pools
        formats = {"bf16": WeightFormat.BASE}
        precisions = precisions_for(device, formats.get(pool.weights) or WeightFormat(pool.weights), Precision(pool.kv))
        deployment = Deployment(
            spec, ParallelPlan.for_serving(pool.tensor, pool.pipeline, pool.data, pool.expert), precisions
        )
        memory = serving_memory(
            deployment, device, step_tokens=pool.chunk_tokens, step_sequences=min(512, pool.chunk_tokens)
        )
        memory.require(pool.max_batch, request_tokens(question.traffic))
        assert plan.kv_cliff.admissible == memory.admissible_concurrency(request_tokens(question.traffic))
        (breakdown,) = plan.memory
        parts = (
            breakdown.weight_bytes,
            breakdown.draft_weight_bytes,
            breakdown.activation_bytes,
            breakdown.communication_bytes,
            breakdown.runtime_bytes,
            breakdown.kv_bytes,
            breakdown.free_bytes,
        )
        assert sum(parts) == pytest.approx(breakdown.total_bytes)
        assert breakdown.free_bytes >= 0


def test_dollars_follow_from_devices_and_tokens(ask):
    plan = plan_serving(ask()).best
    assert (plan.cost.per_h.low, plan.cost.per_h.high) == (3.0 * plan.devices, 5.0 * plan.devices)
    tokens_per_h = 8 * 200 * 3600
    assert plan.cost.per_million_tokens.low == pytest.approx(plan.cost.per_h.low / tokens_per_h * 1e6)
    assert plan.energy.watts == find_device("H100 SXM").power.value * plan.devices
    assert plan.energy.joules_per_output_token == pytest.approx(plan.energy.watts / 1600)


def test_next_best_says_why_it_is_worse_in_figures(ask):
    first, second, *_ = plan_serving(ask()).plans
    assert first.worse_because == ""
    assert any(character.isdigit() for character in second.worse_because)


def test_links_count_in_a_grade_only_where_something_crosses_them(ask):
    space = SearchSpace(tensor=(1, 2), pipeline=(1,), chunk_tokens=(512,), disaggregate=False)
    plans = plan_serving(ask(space=space, constants=None, devices=(DeviceOffer("H100 SXM"),), top=20)).plans
    order = list(Grade)
    alone, linked = ([p for p in plans if (p.pools[0].tensor > 1) is wide] for wide in (False, True))
    assert alone
    assert linked
    assert order.index(alone[0].grades["latency"]) < order.index(linked[0].grades["latency"])


def test_step_times_are_those_fitted_for_the_engine_on_the_device(ask):
    fitted = ask(constants=None)
    assert fitted.constants_on("H100 SXM").grade is Grade.FITTED
    assert ask(constants=None, engine="sglang").constants_on("H100 SXM") != fitted.constants_on("H100 SXM")
    assert plan_serving(fitted).best.latency != plan_serving(ask()).best.latency
    with pytest.raises(ConfigError, match="unknown serving engine 'vlm'; known near it: vllm"):
        ask(engine="vlm")


def test_grades_are_no_better_than_prices_and_constants(ask):
    question = ask(devices=(DeviceOffer("H100 SXM"),))
    plan = plan_serving(question).best
    order = list(Grade)
    assert order.index(plan.grades["latency"]) >= order.index(question.constants_on("H100 SXM").grade)
    assert order.index(plan.grades["price per token"]) >= order.index(plan.grades["latency"])
    assert set(plan.grades) == {"memory", "latency", "throughput", "price per hour", "price per token", "energy"}


def test_answers_are_plain_json(ask):
    data = json.loads(json.dumps(plan_serving(ask()).to_json()))
    assert data["model"] == "Llama-3.1-8B"
    assert data["plans"][0]["pools"][0]["tensor"] >= 1
    assert data["infeasible"] is None
    assert data["pareto"]


@FEW
@given(st.integers(1, 6), st.floats(2, 40))
def test_more_devices_never_cost_more(ask, count: int, rate: float):
    question = ask(traffic=Traffic.of(rate, 1000, 200))
    assert least_usd(limited(question, count + 2)) <= least_usd(limited(question, count))


@FEW
@given(st.floats(8, 60), st.floats(1.0, 3.0), st.floats(100, 2000), st.floats(1.0, 3.0))
def test_a_tighter_target_is_never_cheaper(ask, tpot_ms: float, looser: float, ttft_ms: float, later: float):
    tight = least_usd(limited(ask(slo=Slo.of(ttft_ms, tpot_ms)), 16))
    assert least_usd(limited(ask(slo=Slo.of(ttft_ms, tpot_ms * looser)), 16)) <= tight
    assert least_usd(limited(ask(slo=Slo.of(ttft_ms * later, tpot_ms)), 16)) <= tight


@FEW
@given(st.floats(1, 50), st.floats(1.2, 3))
def test_more_traffic_is_never_cheaper(ask, rate: float, factor: float):
    little, much = (ask(traffic=Traffic.of(r, 1000, 200)) for r in (rate, rate * factor))
    assert least_usd(little) <= least_usd(much) * (1 + 1e-9)


@FEW
@given(st.sampled_from(["prompt", "output"]), st.floats(1.3, 3))
def test_longer_requests_are_never_cheaper(ask, which: str, factor: float):
    short = Traffic.of(20, 1000, 200)
    long = Traffic.of(20, round(1000 * factor), 200) if which == "prompt" else Traffic.of(20, 1000, round(200 * factor))
    assert least_usd(ask(traffic=short)) <= least_usd(ask(traffic=long)) * (1 + 1e-9)


def test_a_wider_search_is_never_dearer(ask):
    narrow = ask(space=SearchSpace(tensor=(1,), pipeline=(1,), weights=(WeightFormat.BASE,), disaggregate=False))
    assert least_usd(ask()) <= least_usd(narrow)


def test_a_shared_prefix_saves_work(ask):
    plain, shared = (ask(traffic=Traffic.of(40, 4000, 50, prefix_share=share)) for share in (0.0, 0.9))
    assert least_usd(shared) < least_usd(plain)
    best = plan_serving(shared).best
    assert best.prefix_caching
    assert best.cached_prompt_share == pytest.approx(0.9)


def test_an_accepting_draft_brings_a_tpot_in_reach(ask):
    slo = Slo.of(1000, 3.9)
    space = SearchSpace(tensor=(1,), pipeline=(1,), weights=(WeightFormat.BASE,), chunk_tokens=(2048,), disaggregate=False)
    traffic = Traffic.of(0.2, 500, 200)
    without = ask(slo=slo, space=space, traffic=traffic)
    assert plan_serving(without).best is None
    drafted = dataclasses.replace(without, draft=DraftModel("Llama-3.2-1B", 0.9, (4,)))
    plan = plan_serving(drafted).best
    assert plan.speculation.drafts == 4
    assert plan.memory[0].draft_weight_bytes == pytest.approx(1.236e9 * 2, rel=0.01)
    assert 0 < plan.speculation.kv_share < 1


def test_two_prices_pick_the_cheaper_device(ask):
    dear, cheap = (
        DeviceOffer(name, low_usd_per_h=usd, high_usd_per_h=usd)
        for name, usd in (("H100 SXM", 100.0), ("A100 SXM 80GB", 1.0))
    )
    assert plan_serving(ask(devices=(dear, cheap))).best.pools[0].device == "A100 SXM 80GB"


def test_outputs_of_one_token_have_no_tpot(ask):
    plan = plan_serving(ask(traffic=Traffic.of(5, 1000, 1), slo=Slo.of(ttft_ms=500))).best
    assert plan.latency.tpot_mean_s is None
    assert plan.latency.tpot == ()
    with pytest.raises(ConfigError, match="tpot is undefined"):
        ask(traffic=Traffic.of(5, 1000, 1), slo=Slo.of(tpot_ms=50))


def test_experts_are_spread_and_attention_is_replicated(ask):
    question = ask(
        model="Qwen3-30B-A3B",
        space=SearchSpace(tensor=(1,), pipeline=(1,), data=(4,), expert=(4,), chunk_tokens=(2048,), disaggregate=False),
    )
    (pool,) = plan_serving(question).best.pools
    assert (pool.tensor, pool.data, pool.expert, pool.devices_per_replica) == (1, 4, 4, 4)


def test_the_pareto_front_trades_price_for_speed(ask):
    front = plan_serving(ask()).pareto
    tpots = [point.tpot_s for point in front]
    prices = [point.usd_per_million_tokens.middle for point in front]
    assert len(front) > 3
    assert tpots == sorted(tpots)
    assert prices == sorted(prices, reverse=True)


def test_utilisation_is_of_the_rate_at_which_queues_grow(ask):
    question = ask()
    plan = plan_serving(question).best
    beyond = plan.throughput.capacity_requests_per_s * 1.05
    pool = plan.pools[0]
    space = SearchSpace(
        tensor=(pool.tensor,),
        pipeline=(pool.pipeline,),
        max_batch=(pool.max_batch,),
        chunk_tokens=(pool.chunk_tokens,),
        weights=(WeightFormat.BASE,) if pool.weights == "bf16" else (WeightFormat(pool.weights),),
        kv=(Precision(pool.kv),),
        disaggregate=False,
    )
    traffic = dataclasses.replace(question.traffic, requests_per_s=beyond)
    more = limited(dataclasses.replace(question, space=space, traffic=traffic, slo=Slo()), pool.devices)
    assert plan_serving(more).best is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "Llama-9-900B"}, "Llama"),
        ({"model": ""}, "model"),
        ({"model": "absent.json"}, "absent.json"),
        ({"devices": ()}, "devices"),
        ({"devices": (DeviceOffer("H1000"),)}, "H1000"),
        ({"max_usd_per_h": -1.0}, "max_usd_per_h"),
        ({"max_usd_per_h": math.nan}, "max_usd_per_h"),
        ({"max_devices": 0}, "max_devices"),
        ({"top": 0}, "top"),
        ({"expert_imbalance": math.nan}, "expert_imbalance"),
        ({"space": SearchSpace(tensor=(3,))}, "tensor parallelism 3 does not divide 32"),
        ({"space": SearchSpace(pipeline=(64,))}, "32 layers cannot be split into 64"),
        ({"space": SearchSpace(expert=(8,))}, "no experts"),
        ({"space": SearchSpace(weights=(WeightFormat.FP4,))}, "no fp4"),
        ({"traffic": Traffic.of(1, 200_000, 10)}, "131072 positions"),
        ({"draft": DraftModel("nobody", 0.5)}, "nobody"),
    ],
)
def test_nonsense_is_one_clear_line(ask, change, words: str):
    with pytest.raises(ConfigError, match=words) as caught:
        plan_serving(ask(**change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SearchSpace(tensor=(0,)), "tensor"),
        (lambda: SearchSpace(tensor=()), "tensor"),
        (lambda: SearchSpace(chunk_tokens=(-5,)), "chunk_tokens"),
        (lambda: SearchSpace(max_batch=(1.5,)), "max_batch"),
        (lambda: SearchSpace(weights=()), "weights"),
        (lambda: Slo.of(ttft_ms=-1), "ttft"),
        (lambda: Slo.of(tpot_ms=math.nan), "tpot"),
        (lambda: Slo((Target(1.0, 100.0),)), "ttft percentile"),
        (lambda: DraftModel("x", 1.5), "acceptance"),
        (lambda: DraftModel("x", 0.5, (0,)), "drafts"),
        (DeviceOffer, "names either"),
        (lambda: DeviceOffer("H100 SXM", count=0), "count"),
        (lambda: DeviceOffer("H100 SXM", low_usd_per_h=1.0), "high_usd_per_h"),
    ],
)
def test_impossible_settings_are_refused_where_they_are_made(make, words: str):
    with pytest.raises(ConfigError, match=words):
        make()


def test_figures_are_finite(ask):
    def walk(value: object) -> None:
        if isinstance(value, dict):
            for item in value.values():
                walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)
        elif isinstance(value, float):
            assert np.isfinite(value)

    walk(plan_serving(ask(traffic=Traffic.of(0.01, 10, 2))).to_json())
