"""Step time: the roofline, its parts, and that the vectorised model says the same as the walk."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.cost.catalogue import find_device, find_model
from argosy.cost.collectives import Topology
from argosy.cost.deployment import Deployment
from argosy.cost.device import Precision
from argosy.cost.efficiency import PERFECT, Constants, Efficiency
from argosy.cost.op import Collective, CollectiveKind, Op, OpKind, Phase, StepComposition
from argosy.cost.op_list import forward_ops
from argosy.cost.parallel import ParallelPlan, Precisions
from argosy.cost.step_time import Binding, energy_j, physical_bound_s, step_time
from argosy.cost.step_time_model import StepTimeModel
from argosy.errors import ConfigError

H100 = find_device("H100 SXM")
NODES = Topology.of(H100)
LLAMA = find_model("Llama-3.1-70B")
FP8 = Precisions(weights=Precision.FP8, compute=Precision.FP8)


def op(**changes):
    fields = {
        "name": "op",
        "kind": OpKind.GEMM,
        "phase": Phase.FORWARD,
        "layer": -1,
        "stage": 0,
        "flops": 0.0,
        "weight_bytes": 0.0,
        "kv_bytes": 0.0,
        "activation_bytes": 0.0,
        "precision": Precision.BF16,
        "rows": 0.0,
        "launches": 0,
        "collective": None,
        "repeats": 1,
    }
    return Op(**(fields | changes))


def test_ridge_point():
    assert H100.ridge_flop_per_byte(Precision.BF16) == pytest.approx(295.2, rel=0.005)


def test_an_op_takes_the_longer_of_arithmetic_and_memory():
    slow_math = step_time([op(flops=989e12, weight_bytes=1e9)], H100, NODES, PERFECT)
    slow_memory = step_time([op(flops=1e12, kv_bytes=3.35e12)], H100, NODES, PERFECT)
    assert (slow_math.latency_s, slow_math.binds) == (pytest.approx(1.0), Binding.COMPUTE)
    assert (slow_memory.latency_s, slow_memory.binds) == (pytest.approx(1.0), Binding.MEMORY)


def test_efficiencies_and_overheads():
    efficiencies = dict(PERFECT.efficiencies) | {OpKind.GEMM: Efficiency(0.5, 0.25, half_rows=64)}
    constants = Constants(efficiencies=efficiencies, launch_s=0.1, layer_s=0.01, step_s=5.0, sequence_s=1.0)
    time = step_time([op(flops=989e12, rows=64, launches=2, layer=0, repeats=3)], H100, NODES, constants, sequences=4)
    assert time.by_binding[Binding.COMPUTE] == pytest.approx(3 * 4.0)
    assert time.by_binding[Binding.OVERHEAD] == pytest.approx(3 * 0.2 + 3 * 0.01 + 5 + 4)
    assert time.latency_s == pytest.approx(sum(time.by_kind.values()))


def test_collectives_pay_their_link_and_their_overhead():
    reduce = op(kind=OpKind.COMMUNICATION, collective=Collective(CollectiveKind.ALL_REDUCE, 1e9, 8, "tensor"), repeats=2)
    time = step_time([reduce], H100, NODES, PERFECT.replace(collective_s=1e-3))
    alpha, beta = NODES.scale_up.latency.value, NODES.scale_up.bandwidth.value
    assert time.by_binding[Binding.NETWORK] == pytest.approx(2 * (14 * alpha + 14 / 8 * 1e9 / beta))
    assert time.by_binding[Binding.OVERHEAD] == pytest.approx(2e-3)


def test_overlap_hides_only_what_is_stated():
    ops = [
        op(flops=989e12),
        op(kind=OpKind.COMMUNICATION, collective=Collective(CollectiveKind.POINT_TO_POINT, 4.5e11, 2, "tensor")),
    ]
    link_s = 1.0 + NODES.scale_up.latency.value
    assert step_time(ops, H100, NODES, PERFECT).latency_s == pytest.approx(1.0 + link_s)
    half = step_time(ops, H100, NODES, PERFECT.replace(overlap_fraction=0.5))
    assert half.latency_s == pytest.approx(0.5 + link_s)
    assert half.latency_s == pytest.approx(sum(half.by_kind.values()))


def test_latency_sums_stages_and_the_slowest_sets_the_interval():
    time = step_time([op(flops=989e12), op(flops=3 * 989e12, stage=1)], H100, NODES, PERFECT)
    assert time.stage_s == pytest.approx((1.0, 3.0))
    assert (time.latency_s, time.interval_s) == (pytest.approx(4.0), pytest.approx(3.0))


def test_decode_of_one_request_is_bound_by_reading_the_weights():
    ops = forward_ops(LLAMA, ParallelPlan(), Precisions(), StepComposition(((1, 1, 1),), 1))
    time = step_time(ops, H100, NODES, PERFECT)
    read = 2 * (70.554e9 - 128256 * 8192)
    assert time.latency_s == pytest.approx(read / 3.35e12, rel=0.005)
    assert time.binds is Binding.MEMORY


def test_a_precision_the_device_lacks_is_refused():
    with pytest.raises(ConfigError, match="has no fp4 arithmetic"):
        step_time([op(flops=1.0, precision=Precision.FP4)], H100, NODES, PERFECT)


def test_no_ops_no_time():
    with pytest.raises(ConfigError, match="without ops"):
        step_time([], H100, NODES, PERFECT)


def test_energy_is_board_power_times_time():
    assert energy_j(2.0, H100, devices=8) == 2 * 8 * 700
    with pytest.raises(ConfigError, match="power of H100 SXM is not known"):
        energy_j(1.0, dataclasses.replace(H100, power=None))


MODELS_AND_PLANS = [
    ("Llama-3.1-70B", ParallelPlan(tensor=4, pipeline=3)),
    ("Llama-3.1-8B", ParallelPlan(tensor=2, context=2, sequence_parallel=True)),
    ("gpt-oss-20b", ParallelPlan.for_serving(tensor=2, data=2, expert=2)),
    ("DeepSeek-V3", ParallelPlan.for_serving(pipeline=2, data=8, expert=8)),
    ("DeepSeek-V3", ParallelPlan.for_serving(tensor=2, data=8, expert=16)),
    ("GLM-5", ParallelPlan(tensor=16)),
    ("Gemma-3-12B", ParallelPlan(tensor=2)),
    ("Qwen3.5-397B-A17B", ParallelPlan(tensor=2)),
]
groups = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 3000), st.integers(0, 20_000)), min_size=1, max_size=4)
constants = st.builds(
    lambda compute, memory, half_rows, overlap, overhead, link: Constants(
        efficiencies=dict.fromkeys(OpKind, Efficiency(compute, memory, half_rows)),
        link_efficiency=link,
        overlap_fraction=overlap,
        launch_s=overhead,
        layer_s=overhead / 2,
        step_s=overhead * 9,
        sequence_s=overhead / 3,
    ),
    st.floats(0.1, 1),
    st.floats(0.1, 1),
    st.floats(0, 500),
    st.floats(0, 1),
    st.floats(0, 1e-4),
    st.floats(0.1, 1),
)


@given(case=st.sampled_from(MODELS_AND_PLANS), groups=groups, constants=constants, logits=st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_vectorised_times_equal_the_walk_and_respect_physics(case, groups, constants, logits):
    name, plan = case
    deployment = Deployment(find_model(name), plan, FP8, expert_imbalance=0.2)
    model = StepTimeModel(deployment, H100, NODES, constants)
    tokens = sum(count * new for count, new, _ in groups)
    step = StepComposition(tuple(groups), int(logits * tokens))
    walked = model.walk(step)
    columns = np.array(groups, float)[:, :, None]
    times = model.times(columns[:, 0], columns[:, 1], columns[:, 2], step.logit_rows)
    assert times.latency_s[0] == pytest.approx(walked.latency_s, rel=1e-9)
    assert times.interval_s[0] == pytest.approx(walked.interval_s, rel=1e-9)
    assert times.stage_s[:, 0] == pytest.approx(walked.stage_s, rel=1e-9)
    for binding in Binding:
        assert times.by_binding[binding][0] == pytest.approx(
            walked.by_binding[binding], rel=1e-9, abs=1e-9 * walked.latency_s
        )
    assert walked.latency_s == pytest.approx(sum(walked.by_kind.values()), rel=1e-9)
    assert walked.latency_s >= physical_bound_s(model.ops(step), H100)
    assert model.step_s(step) == times.latency_s[0]


def test_many_steps_at_once_are_each_as_alone():
    model = StepTimeModel(Deployment(LLAMA, ParallelPlan(tensor=8)), H100, NODES, Constants())
    batch, context = np.array([1.0, 8, 64, 300]), np.array([100.0, 5000, 2000, 0])
    together = model.decode(batch, context).latency_s
    alone = [model.step_s(StepComposition(((int(b), 1, int(c)),), int(b))) for b, c in zip(batch, context, strict=True)]
    assert together == pytest.approx(alone, rel=1e-12)
    mixed = model.times([[1, 1], [64, 0]], [[512, 2048], [1, 0]], [[0, 0], [700, 0]], [65, 1])
    assert mixed.latency_s == pytest.approx(
        [model.step_s(StepComposition(((1, 512, 0), (64, 1, 700)), 65)), model.step_s(StepComposition(((1, 2048, 0),), 1))]
    )


@given(batch=st.integers(1, 500), context=st.integers(1, 30_000), case=st.sampled_from(MODELS_AND_PLANS))
@settings(max_examples=40, deadline=None)
def test_decoding_takes_longer_with_more_sequences_and_context(batch, context, case):
    model = StepTimeModel(Deployment(find_model(case[0]), case[1], FP8), H100, NODES, Constants())
    base, more, longer = model.decode([batch, batch + 1, batch], [context, context, context + 100]).latency_s
    assert more >= base * (1 - 1e-12)
    assert longer >= base * (1 - 1e-12)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_impossible_compositions(bad):
    model = StepTimeModel(Deployment(LLAMA, ParallelPlan(tensor=8)), H100, NODES, Constants())
    with pytest.raises(ConfigError, match="finite and not negative"):
        model.decode(bad, 100)
    with pytest.raises(ConfigError, match="at least one new token"):
        model.decode(0, 100)
