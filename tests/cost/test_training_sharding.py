import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.cost.catalogue import find_model
from argosy.cost.model_arithmetic import parameter_count
from argosy.cost.model_spec import DenseFfn, Gqa, Layer, ModelSpec, MoeFfn
from argosy.cost.parallel import ParallelPlan
from argosy.cost.pipeline_schedules import Schedule
from argosy.cost.training_plan import TrainingPlan
from argosy.cost.training_sharding import layer_device_parameters, stage_device_parameters

LLAMA_70B = find_model("Llama-3.1-70B")
SMALL = ModelSpec("small", 1024, 256, ((8, Layer(Gqa(8, 4, 32), DenseFfn(512))),), False, 4096)
MOE = ModelSpec("moe", 1024, 256, ((4, Layer(Gqa(8, 4, 32), MoeFfn(16, 4, 128, shared_size=128))),), False, 4096)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([SMALL, MOE]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
)
def test_shards_of_all_devices_hold_every_parameter(spec, tensor, pipeline, data, expert):
    if spec is SMALL:
        expert = 1
    if (tensor * data) % expert:
        return
    plan = TrainingPlan(ParallelPlan(tensor=tensor, pipeline=pipeline, data=data, expert=expert), 128)
    stages = stage_device_parameters(spec, plan)
    norms = sum(count * layer.norms for count, layer in spec.layers) * spec.hidden_size + spec.hidden_size
    routers = sum(
        count * spec.hidden_size * layer.ffn.experts for count, layer in spec.layers if hasattr(layer.ffn, "top_k")
    )
    replicated = (tensor - 1) * (norms + routers)
    shared = 0
    if plan.parallel.expert_group > tensor:
        shared = (tensor - 1) * sum(n * 3 * 256 * layer.ffn.shared_size for n, layer in spec.layers)
    dense = tensor * sum(stage.dense for stage in stages)
    experts = plan.parallel.expert_group * sum(stage.experts for stage in stages)
    assert dense + experts == parameter_count(spec) + replicated + shared


def test_kv_heads_beyond_their_number_are_replicated():
    layer = next(LLAMA_70B.each_layer())
    eight, sixteen = (layer_device_parameters(layer, 8192, ParallelPlan(tensor=t)).dense for t in (8, 16))
    kv = 2 * 8192 * 128  # one KV head on every device, at 8 as at 16
    norms = 2 * 8192
    assert eight - kv - norms == 2 * (sixteen - kv - norms)


def test_a_tied_embedding_on_two_stages_is_held_twice():
    tied = find_model("Llama-3.2-1B")
    together = stage_device_parameters(tied, TrainingPlan(ParallelPlan(), 128))
    apart = stage_device_parameters(tied, TrainingPlan(ParallelPlan(pipeline=2), 128))
    table = tied.vocab_size * tied.hidden_size
    assert sum(stage.total for stage in apart) - sum(stage.total for stage in together) == table
    v = TrainingPlan(ParallelPlan(pipeline=2, interleave=2), 128, schedule=Schedule.ZB_V)
    assert sum(s.total for s in stage_device_parameters(tied, v)) == parameter_count(tied)


def test_learned_positions_lie_with_the_embedding():
    learned = dataclasses.replace(SMALL, learned_positions=512)
    plan = TrainingPlan(ParallelPlan(pipeline=2), 128)
    (first, second), (plain, _) = stage_device_parameters(learned, plan), stage_device_parameters(SMALL, plan)
    assert first.dense - plain.dense == 512 * 256
    assert first.dense + second.dense == parameter_count(learned)


def test_the_v_puts_embedding_and_head_on_the_first_stage():
    plan = TrainingPlan(ParallelPlan(pipeline=2, interleave=2), 128, micro_batches=4, schedule=Schedule.ZB_V)
    first, second = stage_device_parameters(SMALL, plan)
    assert first.dense - second.dense == 2 * 1024 * 256 + 256
