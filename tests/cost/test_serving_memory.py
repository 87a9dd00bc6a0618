import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.cost.catalogue import find_device, find_model
from argosy.cost.deployment import Deployment
from argosy.cost.device import Precision
from argosy.cost.model_arithmetic import parameter_count
from argosy.cost.model_spec import DenseFfn, Gqa, Layer, LinearAttention, ModelSpec
from argosy.cost.parallel import ParallelPlan, Precisions
from argosy.cost.quantity import GIB, Dimension, Grade, Quantity
from argosy.cost.serving_memory import MemoryConstants, serving_memory
from argosy.errors import ConfigError

H100 = find_device("H100 SXM")
H200 = find_device("H200 SXM")
LLAMA = find_model("Llama-3.1-70B")
NOTHING = Quantity(0.0, Dimension.BYTES, "test", Grade.DERIVED)
BARE = MemoryConstants(NOTHING, NOTHING, NOTHING, kv_fraction=1.0)
ROOMY = find_device("B300 SXM")


def memory(spec, plan=None, device=H100, precisions=None, **options):
    return serving_memory(Deployment(spec, plan or ParallelPlan(), precisions or Precisions()), device, **options)


def test_parts_and_what_is_left():
    (stage,) = memory(LLAMA, ParallelPlan(tensor=4)).stages
    assert stage.weight_bytes == pytest.approx(2 * parameter_count(LLAMA) / 4, rel=1e-3)
    assert (stage.communication_bytes, stage.runtime_bytes) == (392e6, 3.5e9)
    left = 80 * GIB - stage.weight_bytes - stage.activation_bytes - 392e6 - 3.5e9
    assert stage.usable_kv_bytes == pytest.approx(0.9 * left)
    assert stage.token_bytes == 320 * 1024 / 4


@pytest.mark.parametrize(("tensor", "buffers"), [(1, 0), (2, 342e6), (4, 392e6), (8, 392e6)])
def test_communication_buffers_by_group(tensor, buffers):
    assert memory(find_model("Llama-3.1-8B"), ParallelPlan(tensor=tensor)).stages[0].communication_bytes == buffers


def test_activations_grow_with_the_step_and_with_logits():
    def peak(tokens, sequences):
        plan = memory(LLAMA, ParallelPlan(tensor=4), step_tokens=tokens, step_sequences=sequences)
        return plan.stages[0].activation_bytes

    # The residual, and the gated projection with its normalised input and two outputs of 28672 / 4 columns.
    assert peak(1024, 1) == 1024 * (8192 + 8192 + 2 * 28672 / 4) * 2
    assert peak(8192, 1) == 8 * peak(1024, 1)
    assert peak(1024, 1024) > 1024 * 128256 * 4


def test_out_of_memory_says_by_how_much_and_why():
    plan = memory(LLAMA)
    assert plan.shortfall_bytes > 50 * GIB
    assert plan.admissible_concurrency(1) == 0
    with pytest.raises(
        ConfigError, match=r"out of memory by 56\.\d\d GiB on each device of stage 0: weights 131\.42.*0 sequences fit"
    ):
        plan.require(1, 16)


def test_what_is_admitted_fits_and_one_more_does_not():
    plan = memory(LLAMA, ParallelPlan(tensor=4))
    admitted = plan.admissible_concurrency(4096)
    plan.require(admitted, 4096)
    with pytest.raises(ConfigError, match=rf"out of memory by .* {admitted} sequences fit"):
        plan.require(admitted + 1, 4096)


def test_sliding_windows_cap_what_a_sequence_keeps():
    spec = find_model("gpt-oss-120b")
    (stage,) = memory(spec, device=H200).stages
    kib = stage.sequence_bytes(131072, 16) / 131072 / 1024
    assert kib == pytest.approx(36 + 36 * 128 / 131072, rel=1e-12)
    assert stage.token_bytes == 72 * 1024


def test_blocks_are_those_of_the_stage_with_more_layers():
    spec = ModelSpec("33 layers", 1000, 512, ((33, Layer(Gqa(8, 2, 64), DenseFfn(2048))),), True, 4096)
    plan = memory(spec, ParallelPlan(pipeline=2), constants=BARE)
    first, last = plan.stages
    assert (first.token_bytes, last.token_bytes) == (17 * 512, 16 * 512)
    assert plan.kv_blocks == int(first.usable_kv_bytes / (16 * first.token_bytes))
    assert plan.admissible_concurrency(4096) == int(first.usable_kv_bytes / (4096 * first.token_bytes))


def test_a_sequence_holds_whole_blocks():
    (stage,) = memory(LLAMA, ParallelPlan(tensor=4)).stages
    assert stage.sequence_bytes(17, 16) == stage.sequence_bytes(32, 16) == 32 * stage.token_bytes


def test_attention_data_ranks_hold_caches_of_their_own():
    spec = find_model("DeepSeek-V3")
    precisions = Precisions(weights=Precision.FP8, kv=Precision.FP8)
    tensor = memory(spec, ParallelPlan.for_serving(tensor=8, expert=8), H200, precisions)
    data = memory(spec, ParallelPlan.for_serving(data=8, expert=8), H200, precisions)
    assert tensor.stages[0].token_bytes == data.stages[0].token_bytes
    assert data.admissible_concurrency(4096) > 5 * tensor.admissible_concurrency(4096)
    assert data.admissible_concurrency(4096) % 8 == 0


def test_recurrent_state_is_charged_per_sequence():
    linear = LinearAttention(heads=32, kv_heads=16, key_dim=128, value_dim=128, conv_width=4)
    spec = ModelSpec("linear", 1000, 2048, ((4, Layer(linear, DenseFfn(4096))),), True, 8192)
    (stage,) = memory(spec).stages
    assert stage.sequence_bytes(1, 16) == stage.sequence_bytes(8000, 16) == 4 * 4 * (32 * 128 * 128 + 3 * 8192)
    assert memory(spec).kv_blocks is None


def test_a_draft_model_taxes_weights_and_cache():
    draft = Deployment(find_model("Llama-2-7B"), ParallelPlan(tensor=1), Precisions())
    alone, both = memory(LLAMA, ParallelPlan(tensor=4)), memory(LLAMA, ParallelPlan(tensor=4), draft=draft)
    (stage,) = both.stages
    assert stage.draft_weight_bytes == 2 * parameter_count(draft.spec) == pytest.approx(14e9, rel=0.05)
    assert stage.token_bytes == alone.stages[0].token_bytes + 512 * 1024
    assert both.admissible_concurrency(2048) < alone.admissible_concurrency(2048) / 5


def test_a_draft_with_another_pipeline_is_refused():
    draft = Deployment(find_model("Llama-2-7B"), ParallelPlan(pipeline=4), Precisions())
    with pytest.raises(ConfigError, match="pipeline degree must be 1 or 2"):
        memory(LLAMA, ParallelPlan(pipeline=2), draft=draft)


@given(
    tokens=st.integers(1, 100_000),
    more=st.integers(1, 5000),
    model=st.sampled_from(["Llama-3.1-8B", "gpt-oss-20b", "GLM-5"]),
)
@settings(max_examples=30, deadline=None)
def test_longer_sequences_never_admit_more(tokens, more, model):
    plan = memory(find_model(model), ParallelPlan(tensor=8), ROOMY)
    assert plan.admissible_concurrency(tokens + more) <= plan.admissible_concurrency(tokens)


@pytest.mark.parametrize("options", [{"step_tokens": 0}, {"step_sequences": 0}])
def test_steps_of_nothing_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        memory(LLAMA, **options)


def test_constants_out_of_range():
    with pytest.raises(ConfigError, match="kv_fraction"):
        MemoryConstants(kv_fraction=1.1)
    with pytest.raises(ConfigError, match="block_tokens"):
        MemoryConstants(block_tokens=0)
