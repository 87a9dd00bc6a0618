from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.cost.activations import ActivationConventions, Recompute, recompute_flops_ratio
from argosy.cost.catalogue import find_model
from argosy.cost.device import Precision
from argosy.cost.mfu import FlopConvention, model_flops_per_token
from argosy.cost.model_arithmetic import parameter_count
from argosy.cost.model_spec import DenseFfn, Gqa, Layer, ModelSpec
from argosy.cost.op import Op, OpKind, Phase
from argosy.cost.parallel import ParallelPlan, Precisions
from argosy.cost.pipeline_schedules import Schedule
from argosy.cost.training_ops import total_flops, training_ops
from argosy.cost.training_plan import TrainingPlan
from argosy.cost.zero import StateBytes, ZeroStage
from argosy.errors import ConfigError

SMALL = ModelSpec("small", 1024, 256, ((8, Layer(Gqa(8, 4, 32), DenseFfn(512))),), False, 4096)
LLAMA = find_model("Llama-3.1-8B")
STORED_SCORES = ActivationConventions(fused_attention=False)


def test_backward_is_twice_the_forward_products():
    ops = training_ops(LLAMA, TrainingPlan(ParallelPlan(), 4096, conventions=STORED_SCORES))
    forward = total_flops(ops.forward)
    assert total_flops(ops.backward_input) + total_flops(ops.backward_weight) == pytest.approx(2 * forward)
    assert ops.hardware_flops == ops.model_flops == pytest.approx(3 * forward)


def test_model_flops_agree_with_the_causal_convention():
    ops = training_ops(LLAMA, TrainingPlan(ParallelPlan(), 4096))
    per_token = model_flops_per_token(LLAMA, 4096, FlopConvention.CAUSAL_ATTENTION)
    assert ops.model_flops / 4096 == pytest.approx(per_token, rel=1e-3)


@pytest.mark.parametrize("recompute", Recompute)
def test_recomputation_adds_what_the_closed_form_says(recompute):
    gpt = ModelSpec("gpt", 8, 4096, ((4, Layer(Gqa(32, 32, 128), DenseFfn(16384, gated=False))),), False, 8192)
    ops = training_ops(gpt, TrainingPlan(ParallelPlan(), 4096, recompute=recompute, conventions=STORED_SCORES))
    # The closed form counts every token with every token; the op list half of that, so a sequence half as long.
    assert ops.hardware_flops / ops.model_flops - 1 == pytest.approx(
        recompute_flops_ratio(recompute, sequence=2048, hidden=4096), rel=2e-3
    )


def test_fused_attention_makes_its_scores_again_and_selective_adds_nothing_to_that():
    plans = [TrainingPlan(ParallelPlan(), 4096, recompute=r) for r in (Recompute.NONE, Recompute.SELECTIVE)]
    none, selective = (training_ops(LLAMA, plan) for plan in plans)
    attention = sum(op.flops * op.repeats for op in none.forward if op.kind is OpKind.ATTENTION)
    assert total_flops(none.recompute) == pytest.approx(attention / 2)
    assert none.recompute == selective.recompute


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.sampled_from(Recompute))
def test_devices_share_the_flops_between_them(tensor, pipeline, context, recompute):
    def flops(parallel: ParallelPlan) -> float:
        plan = TrainingPlan(parallel, 128, recompute=recompute, micro_batches=pipeline)
        return training_ops(SMALL, plan).hardware_flops

    sharded = flops(ParallelPlan(tensor=tensor, pipeline=pipeline, context=context))
    assert sharded * tensor * context == pytest.approx(flops(ParallelPlan()))


def test_phases_are_what_they_are_called():
    ops = training_ops(SMALL, TrainingPlan(ParallelPlan(data=4, tensor=2), 128, zero=ZeroStage.PARAMETERS))
    assert {op.phase for op in ops.forward} == {Phase.FORWARD}
    assert {op.phase for op in (*ops.backward_input, *ops.backward_weight, *ops.recompute)} == {Phase.BACKWARD}
    assert {op.phase for op in ops.step} == {Phase.OPTIMIZER}
    assert not any("sample" in op.name or "logits" in op.name for op in ops.forward)


def test_the_optimizer_moves_its_shard_of_the_state():
    def moved(zero: ZeroStage) -> float:
        step = training_ops(SMALL, TrainingPlan(ParallelPlan(data=4), 128, zero=zero)).step
        return sum(op.activation_bytes for op in step if op.name == "optimizer")

    assert moved(ZeroStage.OPTIMIZER) == pytest.approx(moved(ZeroStage.NONE) / 4)


def test_zero_3_gathers_each_layer_twice_and_scatters_once():
    ops = training_ops(SMALL, TrainingPlan(ParallelPlan(data=4), 128, zero=ZeroStage.PARAMETERS))

    def count(group, text: str) -> int:
        return sum(op.repeats for op in group if text in op.name)

    assert count(ops.forward, "parameters all-gather") == 9  # 8 layers, and what lies outside
    assert count(ops.backward_input, "parameters all-gather") == 9
    assert count(ops.backward_weight, "gradients reduce-scatter") == 9
    assert count(ops.step, "all-gather") == count(ops.step, "all-reduce") == 0


def by_name(ops: Iterable[Op], name: str) -> Op:
    return next(op for op in ops if op.name == name)


def test_bytes_of_backward_ops_counted_by_hand():
    ops = training_ops(SMALL, TrainingPlan(ParallelPlan(), 128, micro_batch=2))
    up, rows = by_name(ops.forward, "ffn up"), 2 * 128
    elements = 256 * 2 * 512
    assert up.weight_bytes == 2 * elements
    assert by_name(ops.backward_input, "ffn up dgrad").bytes == up.bytes
    weight = by_name(ops.backward_weight, "ffn up wgrad")
    assert weight.weight_bytes == 2 * 2 * elements  # 16-bit gradients, read and written
    assert weight.activation_bytes == up.activation_bytes == rows * (256 + 2 * 512) * 2
    # A gated activation reads gate and up and a gradient, and writes two gradients.
    assert by_name(ops.backward_input, "ffn activation dgrad").activation_bytes == pytest.approx(rows * 5 * 512 * 2)
    assert by_name(ops.backward_input, "attention norm dgrad").bytes == by_name(ops.forward, "attention norm").bytes
    attention = by_name(ops.forward, "attention")
    backward = by_name(ops.backward_input, "attention dgrad")
    assert (backward.kv_bytes, backward.activation_bytes) == (2 * attention.kv_bytes, 2 * attention.activation_bytes)
    table = by_name(ops.forward, "embedding")
    assert by_name(ops.backward_weight, "embedding wgrad").weight_bytes == 2 * table.weight_bytes


def test_bytes_and_flops_of_the_optimizer_counted_by_hand():
    plan = TrainingPlan(ParallelPlan(), 128, state=StateBytes(2, 4, 12))
    optimizer = by_name(training_ops(SMALL, plan).step, "optimizer")
    assert optimizer.activation_bytes == parameter_count(SMALL) * (4 + 2 * 12 + 2)
    assert optimizer.flops == parameter_count(SMALL) * 16


def test_groups_of_hybrid_sharding_lie_as_far_apart_as_they_are_large():
    parallel = ParallelPlan(tensor=2, data=8)
    plan = TrainingPlan(parallel, 128, zero=ZeroStage.PARAMETERS, shard_ranks=4)
    ops = training_ops(SMALL, plan)
    gather = next(op.collective for op in ops.forward if "parameters all-gather" in op.name)
    replicas = next(op.collective for op in ops.step if op.collective is not None)
    assert (gather.ranks, gather.stride) == (4, 2)
    assert (replicas.ranks, replicas.stride) == (2, 8)


def test_the_v_computes_the_head_on_the_first_stage():
    def stages(schedule: Schedule, interleave: int) -> tuple[int, int, int]:
        plan = TrainingPlan(ParallelPlan(pipeline=2, interleave=interleave), 128, micro_batches=4, schedule=schedule)
        forward = training_ops(SMALL, plan).forward
        return tuple(by_name(forward, name).stage for name in ("embedding", "head", "cross entropy"))

    assert stages(Schedule.ONE_F_ONE_B, 1) == (0, 1, 1)
    assert stages(Schedule.ZB_V, 2) == (0, 0, 0)


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT4, Precision.FP4])
def test_weights_that_cannot_be_trained_are_refused(precision):
    with pytest.raises(ConfigError, match="floating-point weights"):
        training_ops(SMALL, TrainingPlan(ParallelPlan(), 128), Precisions(weights=precision))


def test_plans_that_do_not_divide_the_model_are_refused():
    with pytest.raises(ConfigError, match="tensor parallelism 3"):
        training_ops(SMALL, TrainingPlan(ParallelPlan(tensor=3), 129))
