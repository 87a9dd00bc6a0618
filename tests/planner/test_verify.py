"""Plans in the simulator: what is compared, with what traffic, and that a plan that cannot hold is seen."""

import dataclasses
import json

import pytest

from argosy.cost.catalogue import find_model
from argosy.cost.device import Precision
from argosy.cost.formats import WeightFormat
from argosy.errors import ConfigError
from argosy.planner.lengths import Lengths
from argosy.planner.offers import DeviceOffer, resolve
from argosy.planner.serving import plan_serving
from argosy.planner.serving_question import DraftModel, SearchSpace, Slo
from argosy.planner.traffic import PrefixReuse, Traffic
from argosy.planner.verify import verify_plans
from argosy.planner.verify_fleet import plan_blueprint
from argosy.planner.verify_traffic import TraceTraffic, planned_workload
from argosy.sim.random_streams import RandomStreams
from argosy.sim.workload.build import build_source

SPACE = SearchSpace(
    tensor=(1,), pipeline=(1,), chunk_tokens=(2048,), weights=(WeightFormat.BASE,), kv=(Precision.BF16,), disaggregate=False
)


def figures(verification):
    return {figure.name: figure for figure in verification.figures}


@pytest.fixture
def first(ask):
    """(question, answer with its best plan alone) of a small question with changes."""

    def make(**changes):
        question = ask(**{"space": SPACE, "top": 1, **changes})
        answer = plan_serving(question)
        assert answer.best is not None
        return question, answer

    return make


def test_predictions_hold_at_moderate_load(first):
    question, answer = first()
    (verified,) = verify_plans(question, answer, num_requests=800)
    compared = figures(verified)
    assert set(compared) == {
        *("TTFT mean", "TTFT p50", "TTFT p99", "TPOT mean", "TPOT p50", "TPOT p99", "requests", "output tokens")
    }
    assert abs(compared["TPOT mean"].difference) < 0.05
    assert abs(compared["TTFT mean"].difference) < 0.25
    assert abs(compared["requests"].difference) < 0.1
    assert verified.is_stable
    assert verified.keeps_service_level
    assert [(target.name, target.is_kept) for target in verified.targets] == [("TTFT", True), ("TPOT", True)]
    assert verified.requests >= 700
    told = json.loads(json.dumps(verified.to_json()))
    assert told["keeps_service_level"] is True
    assert told["figures"][0]["difference"] == compared["TTFT mean"].difference
    assert told["targets"][0]["is_kept"] is True


def test_a_plan_that_is_too_small_is_seen(first):
    question, answer = first(traffic=Traffic.of(150, 1000, 200), slo=Slo.of(ttft_ms=1000, tpot_ms=50))
    plan = answer.best
    (pool,) = plan.pools
    assert pool.replicas > 2
    small = dataclasses.replace(plan, pools=(dataclasses.replace(pool, replicas=1),))
    (verified,) = verify_plans(question, dataclasses.replace(answer, plans=(small,)), num_requests=3000)
    assert not verified.is_stable
    assert not verified.keeps_service_level
    assert not verified.targets[0].is_kept
    assert verified.stability.startswith("unstable")


def test_large_fleets_are_simulated_in_part_with_their_part_of_the_traffic(first):
    question, answer = first(traffic=Traffic.of(150, 1000, 200))
    assert answer.best.pools[0].replicas > 4
    (verified,) = verify_plans(question, answer, num_requests=600)
    assert verified.replicas == 4
    assert figures(verified)["requests"].simulated == pytest.approx(150, rel=0.15)


def test_equal_seeds_give_equal_figures(first):
    question, answer = first()
    runs = [next(verify_plans(question, answer, num_requests=100, seed=seed)) for seed in (0, 0, 1)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_separate_pools(first):
    space = dataclasses.replace(SPACE, disaggregate=True)
    question, answer = first(space=space, top=20, traffic=Traffic.of(20, 2000, 100), slo=Slo.of(ttft_ms=2000, tpot_ms=15))
    pairs = [plan for plan in answer.plans if len(plan.pools) == 2]
    assert pairs, "the question has a disaggregated plan"
    (verified,) = verify_plans(question, dataclasses.replace(answer, plans=(pairs[0],)), num_requests=400)
    compared = figures(verified)
    assert verified.replicas == sum(pool.replicas for pool in pairs[0].pools)
    assert verified.failed == 0
    assert abs(compared["TPOT mean"].difference) < 0.1
    assert abs(compared["TTFT mean"].difference) < 0.3


def test_speculation_and_shared_prefixes(first):
    question, answer = first(
        traffic=Traffic.of(4, 1000, 200, prefix_share=0.5),
        draft=DraftModel("Llama-3.2-1B", 0.8, (3,)),
        space=dataclasses.replace(SPACE, prefix_caching=(True,)),
        top=4,
    )
    plan = next(plan for plan in answer.plans if plan.speculation is not None and plan.prefix_caching)
    (verified,) = verify_plans(question, dataclasses.replace(answer, plans=(plan,)), num_requests=400)
    compared = figures(verified)
    assert compared["cached prompt share"].simulated == pytest.approx(0.5, abs=0.03)
    assert abs(compared["TPOT mean"].difference) < 0.1


def test_a_replica_is_the_plans(first):
    question, answer = first(space=dataclasses.replace(SPACE, weights=(WeightFormat.FP8,), kv=(Precision.FP8,)))
    plan = answer.best
    (pool,) = plan.pools
    blueprint = plan_blueprint(
        question, plan, pool, tuple(map(resolve, question.devices)), (find_model("Llama-3.1-8B"), None)
    )
    assert blueprint.scheduler.max_num_seqs == pool.max_batch
    assert blueprint.scheduler.max_num_batched_tokens == pool.chunk_tokens
    assert blueprint.scheduler.kv_dtype == "fp8"
    precisions = blueprint.pricer.model.deployment.precisions
    assert (precisions.weights, precisions.kv) == (Precision.FP8, Precision.FP8)
    assert blueprint.pricer.model.constants == question.constants
    assert blueprint.cost.usd_per_device_hour == 4.0


def drawn(traffic: Traffic, count: int):
    return list(build_source(planned_workload(traffic, 10.0, count), RandomStreams(0), None))


def mean(values):
    values = list(values)
    return sum(values) / len(values)


@pytest.mark.parametrize(
    "lengths",
    [
        Lengths.fixed(300),
        Lengths.lognormal(300.0, 0.8),
        Lengths.empirical([100] * 80 + [1100] * 20),
    ],
)
def test_drawn_lengths_have_the_mean_and_spread_of_the_traffic(lengths):
    traffic = Traffic(10.0, lengths, Lengths.fixed(5))
    tokens = [request.num_prompt_tokens for request in drawn(traffic, 4000)]
    assert mean(tokens) == pytest.approx(lengths.mean, rel=0.05)
    spread = mean((value - mean(tokens)) ** 2 for value in tokens) ** 0.5 / mean(tokens)
    assert spread == pytest.approx(lengths.cv, rel=0.15, abs=1e-9)


def test_a_shared_prefix_is_one_text_and_leaves_the_mean_alone():
    traffic = Traffic(10.0, Lengths.lognormal(400.0, 0.5), Lengths.fixed(5), PrefixReuse(0.5, 200.0))
    requests = drawn(traffic, 2000)
    assert {(request.segments[0].content_id, request.segments[0].num_tokens) for request in requests} == {
        (requests[0].segments[0].content_id, 200)
    }
    assert mean(request.num_prompt_tokens for request in requests) == pytest.approx(400, rel=0.07)


@pytest.mark.parametrize("burstiness", [0.0, 1.0, 4.0])
def test_arrivals_are_as_bursty_as_the_traffic(burstiness):
    traffic = Traffic(10.0, Lengths.fixed(5), Lengths.fixed(5), burstiness=burstiness)
    times = [request.arrival_s for request in drawn(traffic, 20_000)]
    counts = [0] * (int(times[-1]) // 20)
    for at_s in times:
        if at_s < 20 * len(counts):
            counts[int(at_s / 20)] += 1
    dispersion = mean((count - mean(counts)) ** 2 for count in counts) / mean(counts)
    assert mean(counts) == pytest.approx(200, rel=0.05)
    assert dispersion == pytest.approx(burstiness, rel=0.3, abs=0.01)


def test_a_trace_is_sent_as_it_is(first, tmp_path):
    rows = [f"2023-11-16 18:{second // 60:02}:{second % 60:02}.0,{400 + 20 * (second % 7)},50" for second in range(200)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    trace = TraceTraffic.of(path)
    assert (trace.requests_per_s, trace.duration_s) == (1.0, 199.0)
    question, answer = first(traffic=Traffic.of(2, 460, 50))
    (verified,) = verify_plans(question, answer, trace=trace)
    assert verified.duration_s == pytest.approx(100, abs=2), "at twice the rate"
    assert 170 <= verified.requests <= 200
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", rows[0]]) + "\n")
    with pytest.raises(ConfigError, match="at least two requests at different times"):
        TraceTraffic.of(path)


def test_nothing_to_measure_is_refused(first):
    question, answer = first()
    with pytest.raises(ConfigError, match="num_requests must be a whole number of at least 1"):
        list(verify_plans(question, answer, num_requests=0))


def test_progress_names_the_plan(first):
    question, answer = first(top=2, space=dataclasses.replace(SPACE, tensor=(1, 2)))
    numbers = []
    list(verify_plans(question, answer, num_requests=50, report=lambda number, progress: numbers.append(number)))
    assert sorted(set(numbers)) == [0, 1]
    assert numbers == sorted(numbers)


def test_the_command_shows_both(capsys):
    from argosy.cli.main import run

    arguments = (
        "plan serve llama-3.1-8b --qps 5 --input-tokens 500 --output-tokens 50 --tensor 1 --pipeline 1 --weights bf16"
    )
    arguments += " --kv bf16 --chunk-tokens 2k --no-disaggregate --device l40s:8@1-2 --ttft 2s@p95 --top 1 --verify"
    assert run(arguments.split()) == 0
    out = capsys.readouterr().out
    assert "In the simulator, under the production scheduler" in out
    assert "PREDICTED  SIMULATED  DIFFERENCE" in out
    assert "stable; TTFT within 2 s: 100 % of requests" in out
    assert run([*arguments.split(), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["verified"][0]["keeps_service_level"] is True


def test_custom_devices_and_offers(first):
    device = resolve(DeviceOffer("L40S")).device
    question, answer = first(
        devices=(DeviceOffer(device, low_usd_per_h=1.0, high_usd_per_h=1.0),), traffic=Traffic.of(1, 500, 50)
    )
    (verified,) = verify_plans(question, answer, num_requests=100)
    assert "L40S" in verified.plan
