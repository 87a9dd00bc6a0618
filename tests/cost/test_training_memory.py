import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.cost.activations import ActivationConventions, Recompute, classic_layer_bytes, classic_output_bytes
from argosy.cost.catalogue import find_model
from argosy.cost.model_arithmetic import parameter_count
from argosy.cost.model_spec import DenseFfn, Gqa, Layer, ModelSpec, MoeFfn
from argosy.cost.parallel import ParallelPlan
from argosy.cost.pipeline_schedules import Schedule
from argosy.cost.training_memory import peak_device_bytes, training_memory
from argosy.cost.training_plan import Offload, TrainingPlan
from argosy.cost.training_sharding import layer_device_parameters, stage_device_parameters
from argosy.cost.zero import ZeroStage
from argosy.errors import ConfigError

LLAMA_70B = find_model("Llama-3.1-70B")
SMALL = ModelSpec("small", 1024, 256, ((8, Layer(Gqa(8, 4, 32), DenseFfn(512))),), False, 4096)
MOE = ModelSpec("moe", 1024, 256, ((4, Layer(Gqa(8, 4, 32), MoeFfn(16, 4, 128, shared_size=128))),), False, 4096)


def gpt(layers: int, hidden: int, heads: int, vocab: int) -> ModelSpec:
    layer = Layer(Gqa(heads, heads, hidden // heads), DenseFfn(4 * hidden, gated=False))
    return ModelSpec("gpt", vocab, hidden, ((layers, layer),), True, 2048)


def test_published_first_stage_of_the_175_billion_model():
    """Korthikanti et al. 2022, section 4.2.3: the first stage keeps L layers of one micro-batch, more when interleaved."""
    layers, hidden, heads = 96, 12288, 96
    plan = TrainingPlan(
        ParallelPlan(tensor=8, pipeline=8, sequence_parallel=True, interleave=3),
        sequence=2048,
        micro_batches=64,
        schedule=Schedule.INTERLEAVED,
        conventions=ActivationConventions(fused_attention=False, dropout=True),
    )
    stage = training_memory(gpt(layers, hidden, heads, 51200), plan)[0]
    one = classic_layer_bytes(2048, 1, hidden, heads, tensor=8, sequence_parallel=True)
    embedding_masks = 2048 * hidden / 8 * 8 * (1 + 7 / (8 * 3))
    assert stage.activation_bytes == pytest.approx(layers * one * (1 + 7 / (8 * 3)) + embedding_masks)


def test_last_stage_holds_one_micro_batch_and_the_logits():
    plan = TrainingPlan(
        ParallelPlan(tensor=8, pipeline=8, sequence_parallel=True),
        sequence=2048,
        micro_batches=64,
        conventions=ActivationConventions(fused_attention=False, dropout=True),
    )
    last = training_memory(gpt(96, 12288, 96, 51200), plan)[-1]
    layers = 12 * classic_layer_bytes(2048, 1, 12288, 96, tensor=8, sequence_parallel=True)
    assert last.activation_bytes == pytest.approx(layers + classic_output_bytes(2048, 1, 12288, 51200, tensor=8))


def test_whole_model_on_one_device_is_sixteen_bytes_per_parameter():
    stage = training_memory(LLAMA_70B, TrainingPlan(ParallelPlan(), 8192))[0]
    parameters = parameter_count(LLAMA_70B)
    assert stage.parameter_bytes + stage.gradient_bytes + stage.optimizer_bytes == 16 * parameters


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from([SMALL, MOE]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
    st.sampled_from([2, 4, 8]),
    st.sampled_from([Recompute.NONE, Recompute.SELECTIVE]),
)
def test_memory_falls_with_the_zero_stage_and_grows_with_the_micro_batch(spec, tensor, pipeline, data, recompute):
    def of(zero: ZeroStage, micro_batch: int = 1) -> float:
        plan = TrainingPlan(
            ParallelPlan(tensor=tensor, pipeline=pipeline, data=data),
            128,
            micro_batch=micro_batch,
            micro_batches=4,
            zero=zero,
            recompute=recompute,
        )
        stages = training_memory(spec, plan)
        return max(s.parameter_bytes + s.gradient_bytes + s.optimizer_bytes + s.activation_bytes for s in stages)

    totals = [of(zero) for zero in ZeroStage]
    assert totals == sorted(totals, reverse=True)
    assert of(ZeroStage.PARAMETERS, 2) > of(ZeroStage.PARAMETERS)


def test_full_recomputation_trades_kept_activations_for_one_layers_workspace():
    plans = {r: TrainingPlan(ParallelPlan(), 4096, recompute=r) for r in (Recompute.NONE, Recompute.FULL)}
    none, full = (training_memory(LLAMA_70B, plan)[0] for plan in plans.values())
    per_layer_input = 4096 * 8192 * 2
    assert none.workspace_bytes == 0
    layer = (none.activation_bytes - full.activation_bytes) / 80 + per_layer_input
    assert full.workspace_bytes == pytest.approx(layer - per_layer_input)
    assert full.total_bytes < none.total_bytes


def test_gpipe_holds_every_micro_batch_and_1f1b_as_many_as_stages():
    def first(schedule: Schedule, micro_batches: int) -> float:
        plan = TrainingPlan(ParallelPlan(pipeline=4), 128, micro_batches=micro_batches, schedule=schedule)
        return training_memory(SMALL, plan)[0].activation_bytes

    def last(schedule: Schedule, micro_batches: int) -> float:
        plan = TrainingPlan(ParallelPlan(pipeline=4), 128, micro_batches=micro_batches, schedule=schedule)
        return training_memory(SMALL, plan)[-1].activation_bytes

    assert last(Schedule.GPIPE, 16) == 16 * last(Schedule.ONE_F_ONE_B, 16)
    assert first(Schedule.GPIPE, 16) == 4 * first(Schedule.GPIPE, 4)
    assert first(Schedule.ONE_F_ONE_B, 16) == first(Schedule.ONE_F_ONE_B, 4) == first(Schedule.GPIPE, 4)


def test_accumulation_without_a_pipeline_holds_one_micro_batch():
    once, often = (training_memory(SMALL, TrainingPlan(ParallelPlan(), 128, micro_batches=m))[0] for m in (1, 16))
    assert once == often


def test_gathered_layers_need_buffers_only_where_something_is_sharded():
    def buffers(zero: ZeroStage, data: int) -> float:
        return training_memory(SMALL, TrainingPlan(ParallelPlan(data=data), 128, zero=zero))[0].buffer_bytes

    layer = layer_device_parameters(next(SMALL.each_layer()), 256, ParallelPlan()).total
    assert buffers(ZeroStage.PARAMETERS, 8) == layer * (2 * 2 + 2)
    assert buffers(ZeroStage.GRADIENTS, 8) == layer * 2
    assert buffers(ZeroStage.OPTIMIZER, 8) == 0
    assert buffers(ZeroStage.PARAMETERS, 1) == 0


def test_what_is_offloaded_moves_from_device_to_host():
    plan = TrainingPlan(ParallelPlan(data=4), 128, zero=ZeroStage.OPTIMIZER)
    moved = TrainingPlan(
        ParallelPlan(data=4), 128, zero=ZeroStage.OPTIMIZER, offload=Offload(optimizer=True, checkpoints=True)
    )
    here, there = training_memory(SMALL, plan)[0], training_memory(SMALL, moved)[0]
    assert there.optimizer_bytes == there.activation_bytes == 0
    assert there.host_bytes == here.optimizer_bytes + here.activation_bytes
    assert here.total_bytes == there.total_bytes + there.host_bytes
    everything = Offload(optimizer=True, gradients=True, parameters=True, checkpoints=True)
    bare = training_memory(SMALL, TrainingPlan(ParallelPlan(), 128, offload=everything, reserved_bytes=7.0))[0]
    assert bare.total_bytes == 7.0
    assert bare.host_bytes == training_memory(SMALL, TrainingPlan(ParallelPlan(), 128))[0].total_bytes


def test_experts_are_sharded_over_the_ranks_that_hold_the_same_ones():
    plan = TrainingPlan(ParallelPlan(data=8, expert=4), 128, zero=ZeroStage.OPTIMIZER)
    assert plan.expert_state_ranks == 2
    held = stage_device_parameters(MOE, plan)[0]
    stage = training_memory(MOE, plan)[0]
    assert stage.optimizer_bytes == 12 * (held.dense / 8 + held.experts / 2)
    hybrid = TrainingPlan(ParallelPlan(data=8, expert=4), 128, zero=ZeroStage.OPTIMIZER, shard_ranks=4)
    assert training_memory(MOE, hybrid)[0].optimizer_bytes == 12 * (held.dense / 4 + held.experts / 2)


def test_the_fullest_device_decides():
    plan = TrainingPlan(ParallelPlan(pipeline=4), 128, micro_batches=8)
    assert peak_device_bytes(SMALL, plan) == max(stage.total_bytes for stage in training_memory(SMALL, plan))


@pytest.mark.parametrize(
    "name", ["gpt-oss-120b", "DeepSeek-V3", "GLM-5", "Qwen3.5-397B-A17B", "Llama-4-Maverick", "Gemma-3-27B", "Qwen2.5-7B"]
)
def test_models_of_every_kind_have_their_state_and_activations_counted(name):
    spec = find_model(name)
    stage = training_memory(spec, TrainingPlan(ParallelPlan(), 2048))[0]
    assert stage.parameter_bytes == 2 * parameter_count(spec)
    inputs = spec.num_layers * 2048 * spec.hidden_size * 2
    assert 5 * inputs < stage.activation_bytes < 100 * inputs


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: training_memory(SMALL, TrainingPlan(ParallelPlan(tensor=3), 129)), "tensor parallelism 3"),
        (
            lambda: training_memory(SMALL, TrainingPlan(ParallelPlan(pipeline=16), 128, micro_batches=16)),
            "16 pipeline stages",
        ),
        (lambda: training_memory(MOE, TrainingPlan(ParallelPlan(data=3, expert=3), 128)), "expert parallelism 3"),
    ],
)
def test_nonsense_is_refused_by_name(call, field):
    with pytest.raises(ConfigError, match=field):
        call()
