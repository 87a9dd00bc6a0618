import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.cost.activations import ActivationConventions, Recompute, recompute_flops_ratio
from argosy.cost.catalogue import find_model
from argosy.cost.device import Precision
from argosy.cost.mfu import FlopConvention, model_flops_per_token
from argosy.cost.model_spec import DenseFfn, Gqa, Layer, ModelSpec
from argosy.cost.op import OpKind, Phase
from argosy.cost.parallel import ParallelPlan, Precisions
from argosy.cost.training_ops import total_flops, training_ops
from argosy.cost.training_plan import TrainingPlan
from argosy.cost.zero import ZeroStage
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


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT4, Precision.FP4])
def test_weights_that_cannot_be_trained_are_refused(precision):
    with pytest.raises(ConfigError, match="floating-point weights"):
        training_ops(SMALL, TrainingPlan(ParallelPlan(), 128), Precisions(weights=precision))


def test_plans_that_do_not_divide_the_model_are_refused():
    with pytest.raises(ConfigError, match="tensor parallelism 3"):
        training_ops(SMALL, TrainingPlan(ParallelPlan(tensor=3), 129))
