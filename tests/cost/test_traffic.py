import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.cost.activations import Recompute
from argosy.cost.catalogue import find_model
from argosy.cost.model_spec import DenseFfn, Gqa, Layer, ModelSpec, MoeFfn
from argosy.cost.op import CollectiveKind, Op
from argosy.cost.parallel import ParallelPlan
from argosy.cost.pipeline_schedules import Schedule
from argosy.cost.traffic import (
    context_parallel_layer_bytes,
    data_parallel_bytes,
    expert_parallel_layer_bytes,
    pipeline_bytes,
    step_traffic,
    tensor_parallel_layer_bytes,
)
from argosy.cost.training_ops import TrainingOps, training_ops
from argosy.cost.training_plan import TrainingPlan
from argosy.cost.zero import Optimizer, ZeroStage, state_bytes
from argosy.errors import ConfigError

SMALL = ModelSpec("small", 1024, 256, ((8, Layer(Gqa(8, 4, 32), DenseFfn(512))),), False, 4096)
TIED = ModelSpec("tied", 1000, 256, ((8, Layer(Gqa(8, 4, 32), DenseFfn(512))),), True, 4096)


def test_replicas_of_eight_billion_parameters_over_eight_ranks():
    parameters = 8.030e9 * 2
    assert data_parallel_bytes(parameters, 8, ZeroStage.NONE) / 1e9 == pytest.approx(28.1, rel=0.005)
    assert data_parallel_bytes(parameters, 8, ZeroStage.PARAMETERS) / 1e9 == pytest.approx(42.2, rel=0.005)


def test_zero_1_and_2_send_what_plain_replicas_send():
    for stage in (ZeroStage.OPTIMIZER, ZeroStage.GRADIENTS):
        assert data_parallel_bytes(1e9, 8, stage) == data_parallel_bytes(1e9, 8, ZeroStage.NONE)


def test_tensor_parallelism_of_one_wide_layer():
    hidden_bytes = 2 * 4096 * 8192 * 2
    layer = tensor_parallel_layer_bytes(hidden_bytes, 8)
    assert layer / 1e6 == pytest.approx(939.5, rel=0.005)
    assert 80 * layer / 1e9 == pytest.approx(75.2, rel=0.005)
    assert 80 * layer / 600e9 == pytest.approx(0.125, rel=0.005)
    assert 80 * layer / 50e9 == pytest.approx(1.50, rel=0.005)


def test_sequence_parallelism_adds_only_the_second_gather_of_two_inputs():
    plain, sharded = tensor_parallel_layer_bytes(8e6, 8), tensor_parallel_layer_bytes(8e6, 8, sequence_parallel=True)
    assert sharded - plain == pytest.approx(2 * 7 / 8 * 8e6)


def test_full_recomputation_repeats_the_forward_half():
    assert tensor_parallel_layer_bytes(8e6, 8, recompute=Recompute.FULL) == 1.5 * tensor_parallel_layer_bytes(8e6, 8)
    assert expert_parallel_layer_bytes(8e6, 8, recompute=Recompute.FULL) == 1.5 * expert_parallel_layer_bytes(8e6, 8)
    assert context_parallel_layer_bytes(6e6, 2, recompute=Recompute.FULL) == 4 * 3e6
    assert context_parallel_layer_bytes(6e6, 2) == 3 * 3e6


def test_hybrid_sharding_sends_the_shard_between_groups_once():
    shards, groups = 8, 16
    expected = 3 * 7 / 8 * 1e9 + 2 * 15 / 16 * 1e9 / 8
    assert data_parallel_bytes(1e9, shards * groups, ZeroStage.PARAMETERS, shard_ranks=8) == pytest.approx(expected)
    assert data_parallel_bytes(1e9, 8, ZeroStage.PARAMETERS, shard_ranks=8) == data_parallel_bytes(
        1e9, 8, ZeroStage.PARAMETERS
    )


def test_accumulation_costs_only_the_stages_that_reduce_each_micro_batch():
    once = {stage: data_parallel_bytes(1e9, 8, stage) for stage in ZeroStage}
    four = {stage: data_parallel_bytes(1e9, 8, stage, micro_batches=4) for stage in ZeroStage}
    assert four[ZeroStage.NONE] == once[ZeroStage.NONE]
    assert four[ZeroStage.OPTIMIZER] == once[ZeroStage.OPTIMIZER]
    assert four[ZeroStage.GRADIENTS] == pytest.approx(once[ZeroStage.GRADIENTS] * 5 / 2)
    assert four[ZeroStage.PARAMETERS] == pytest.approx(4 * once[ZeroStage.PARAMETERS])
    kept = data_parallel_bytes(1e9, 8, ZeroStage.PARAMETERS, reshard_after_forward=False)
    assert kept == pytest.approx(once[ZeroStage.PARAMETERS] * 2 / 3)


def sent_bytes(op: Op) -> float:
    """What one device sends: written out here, independent of the code under test."""
    assert op.collective is not None
    ranks = op.collective.ranks
    part = (ranks - 1) / ranks
    factor = {
        CollectiveKind.ALL_REDUCE: 2 * part,
        CollectiveKind.ALL_GATHER: part,
        CollectiveKind.REDUCE_SCATTER: part,
        CollectiveKind.ALL_TO_ALL: part,
        CollectiveKind.POINT_TO_POINT: 1.0,
    }[op.collective.kind]
    return factor * op.collective.payload_bytes * op.repeats


def walked(ops: TrainingOps, micro_batches: int, stage: int) -> dict[str, float]:
    """Bytes by axis that one device of `stage` sends in a step, from the op list."""
    totals: dict[str, float] = {}
    per_micro_batch = (*ops.forward, *ops.recompute, *ops.backward_input, *ops.backward_weight)
    for group, times in ((per_micro_batch, micro_batches), (ops.step, 1)):
        for op in group:
            if op.collective is not None and op.stage == stage:
                axis = "data" if op.collective.axis == "replicas" else op.collective.axis
                totals[axis] = totals.get(axis, 0.0) + times * sent_bytes(op)
    return totals


@settings(max_examples=80, deadline=None)
@given(
    model=st.sampled_from([SMALL, TIED]),
    tensor=st.sampled_from([1, 2, 4]),
    data=st.sampled_from([1, 2, 4]),
    context=st.sampled_from([1, 2]),
    layout=st.sampled_from(
        [
            (1, Schedule.ONE_F_ONE_B, 1),
            (2, Schedule.GPIPE, 1),
            (2, Schedule.INTERLEAVED, 2),
            (2, Schedule.ZB_V, 2),
            (4, Schedule.ZB_H1, 1),
        ]
    ),
    sequence_parallel=st.booleans(),
    recompute=st.sampled_from(Recompute),
    zero=st.sampled_from(ZeroStage),
    hybrid=st.booleans(),
    rounds=st.integers(1, 2),
)
def test_the_op_list_sends_what_the_closed_forms_say(
    model, tensor, data, context, layout, sequence_parallel, recompute, zero, hybrid, rounds
):
    pipeline, schedule, interleave = layout
    plan = TrainingPlan(
        ParallelPlan(
            tensor=tensor,
            pipeline=pipeline,
            data=data,
            context=context,
            sequence_parallel=sequence_parallel,
            interleave=interleave,
        ),
        sequence=128,
        micro_batch=2,
        micro_batches=rounds * pipeline,
        schedule=schedule,
        recompute=recompute,
        zero=zero,
        shard_ranks=max(1, data * context // 2) if hybrid and zero else None,
        state=state_bytes(Optimizer.ADAM, fp32_gradients=hybrid),
    )
    ops = training_ops(model, plan)
    for stated in step_traffic(model, plan):
        got = walked(ops, plan.micro_batches, stated.stage)
        assert got.get("tensor", 0.0) == pytest.approx(stated.tensor_bytes)
        assert got.get("context", 0.0) == pytest.approx(stated.context_bytes)
        assert got.get("data", 0.0) + (got.get("pipeline", 0.0) - stated.pipeline_bytes) == pytest.approx(stated.data_bytes)


def test_experts_dispatch_no_more_than_one_copy_per_expert_visited():
    layer = Layer(Gqa(8, 4, 32), MoeFfn(16, 4, 128))
    moe = ModelSpec("moe", 1024, 256, ((4, layer),), False, 4096)
    plan = TrainingPlan(ParallelPlan(data=8, expert=8), sequence=128)
    stated = step_traffic(moe, plan)[0].expert_bytes
    assert stated == pytest.approx(4 * 4 * 7 / 8 * 128 * 4 * 256 * 2)
    walked_bytes = walked(training_ops(moe, plan), 1, 0)["expert"]
    # The op list sends a token once to each device that holds one of its experts.
    assert walked_bytes == pytest.approx(stated * 8 * (1 - (7 / 8) ** 4) / 4)


@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.FULL])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_experts_over_data_ranks_need_tensor_collectives_for_attention_alone(recompute, sequence_parallel):
    layer = Layer(Gqa(8, 4, 32), MoeFfn(16, 4, 128))
    moe = ModelSpec("moe", 1024, 256, ((4, layer),), False, 4096)
    parallel = ParallelPlan(tensor=2, data=4, expert=8, sequence_parallel=sequence_parallel)
    plan = TrainingPlan(parallel, sequence=128, recompute=recompute)
    stated = step_traffic(moe, plan)[0].tensor_bytes
    assert walked(training_ops(moe, plan), 1, 0)["tensor"] == pytest.approx(stated)


def test_ends_of_a_pipeline_send_one_way_only():
    plan = TrainingPlan(ParallelPlan(pipeline=4), sequence=128, micro_batches=8)
    sent = [stage.pipeline_bytes for stage in step_traffic(SMALL, plan)]
    boundary = 128 * 256 * 2 * 8
    assert sent == [boundary, 2 * boundary, 2 * boundary, boundary]
    assert pipeline_bytes(128 * 256 * 2, 2, 8) == 2 * boundary


def test_a_large_model_sends_most_over_the_tensor_axis():
    plan = TrainingPlan(
        ParallelPlan(tensor=8, pipeline=4, data=2, sequence_parallel=True), 8192, micro_batches=16, zero=ZeroStage.OPTIMIZER
    )
    stage = step_traffic(find_model("Llama-3.1-70B"), plan)[1]
    assert stage.tensor_bytes > 10 * stage.data_bytes > 10 * stage.pipeline_bytes
    assert stage.total_bytes == pytest.approx(
        stage.data_bytes + stage.tensor_bytes + stage.pipeline_bytes + stage.context_bytes + stage.expert_bytes
    )


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: data_parallel_bytes(-1, 8, ZeroStage.NONE), "parameter_bytes"),
        (lambda: data_parallel_bytes(1, 0, ZeroStage.NONE), "ranks"),
        (lambda: data_parallel_bytes(1, 8, ZeroStage.PARAMETERS, shard_ranks=3), "shard_ranks 3"),
        (lambda: tensor_parallel_layer_bytes(math.nan, 8), "hidden_bytes"),
        (lambda: tensor_parallel_layer_bytes(1, 0), "tensor"),
        (lambda: context_parallel_layer_bytes(-1, 2), "kv_bytes"),
        (lambda: expert_parallel_layer_bytes(1, -2), "expert"),
        (lambda: pipeline_bytes(1, 1, 0), "micro_batches"),
    ],
)
def test_nonsense_is_refused_by_name(call, field):
    with pytest.raises(ConfigError, match=field):
        call()
