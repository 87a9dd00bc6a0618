import dataclasses

import pytest

from argosy.cost.device import Precision
from argosy.cost.step_time import Binding
from argosy.planner.offers import DeviceOffer, resolve
from argosy.planner.roofline import decode_step, plan_steps, pool_deployment
from argosy.planner.serving import plan_serving
from argosy.planner.serving_question import SearchSpace, ServingQuestion, Slo
from argosy.planner.traffic import Traffic


@pytest.fixture(scope="module")
def question():
    return ServingQuestion(
        "llama-3.1-8b",
        Traffic.of(4, 1000, 200),
        Slo(),
        (DeviceOffer("l40s", 4), DeviceOffer("h100-sxm", 4)),
        SearchSpace(tensor=(2,), pipeline=(1,), chunk_tokens=(512,), disaggregate=False),
    )


@pytest.fixture(scope="module")
def plan(question):
    return plan_serving(question).best


def test_steps_are_what_the_plan_runs(question, plan):
    decode, prefill = plan_steps(question, plan)
    running = max(1, round(plan.throughput.running))
    (count, width, past), *more = decode_step(question, plan, plan.pools[0]).groups
    assert abs(count - running) <= 1
    assert (width, past, more) == (1, 1100, [])
    assert decode.step == f"decode of {count} sequences at 1100 tokens"
    assert prefill.step == "prefill of 512 tokens"
    assert decode.device.name == prefill.device.name == plan.pools[0].device


def test_no_op_lies_above_the_roof(question, plan):
    for step in plan_steps(question, plan):
        for point in step.points:
            roof = point.bytes / step.device.memory_bandwidth.value
            if point.flops:
                roof = max(roof, point.flops / step.device.peak_flop_per_s(point.precision))
            assert point.seconds >= roof
            assert point.flop_per_s == pytest.approx(point.flops / point.seconds)


def test_shares_sum_to_one_and_ops_fall_by_time(question, plan):
    for step in plan_steps(question, plan):
        assert sum(point.share for point in step.points) == pytest.approx(1)
        assert [point.seconds for point in step.points] == sorted((point.seconds for point in step.points), reverse=True)


def test_decoding_reads_all_weights_and_is_bound_by_memory(question, plan):
    decode, prefill = plan_steps(question, plan)
    matrices = [point for point in decode.points if point.kind in ("gemm",)]
    held = pool_deployment(question, plan.pools[0], decode.device).precisions
    assert sum(point.bytes for point in matrices) > 7.5e9 / 2 * held.weights.bytes_per_element
    assert {point.binding for point in matrices if point.share > 0.05} == {Binding.MEMORY}
    assert max(point.intensity for point in prefill.points if point.bytes) > max(p.intensity for p in matrices)


@pytest.mark.parametrize(
    ("weights", "stored", "scales"),
    [("fp8", Precision.FP8, 0), ("int4 weight-only", Precision.INT4, 2 / 128), ("bf16", Precision.BF16, 0)],
)
def test_a_pool_is_rebuilt_from_its_labels(question, plan, weights, stored, scales):
    device = resolve(question.devices[1]).device
    pool = dataclasses.replace(plan.pools[0], weights=weights, kv="fp8", tensor=4)
    deployment = pool_deployment(question, pool, device)
    assert (deployment.precisions.weights, deployment.precisions.kv) == (stored, Precision.FP8)
    assert deployment.precisions.scale_bytes_per_element == scales
    assert deployment.plan.tensor == 4


def test_pools_show_only_what_they_run(question, plan):
    both = tuple(dataclasses.replace(plan.pools[0], role=role) for role in ("prefill", "decode"))
    steps = plan_steps(question, dataclasses.replace(plan, pools=both))
    assert [(step.pool, step.step.split()[0]) for step in steps] == [("prefill", "prefill"), ("decode", "decode")]
