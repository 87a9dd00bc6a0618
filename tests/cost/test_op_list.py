"""The op list: what it sums to, how it is split over devices, and what it refuses."""

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from argosy.cost.catalogue import all_models, find_model
from argosy.cost.deployment import Deployment
from argosy.cost.device import Precision
from argosy.cost.model_arithmetic import kv_bytes_per_token, parameter_count
from argosy.cost.model_spec import DenseFfn, Gqa, Layer, LinearAttention, Mla, ModelSpec, MoeFfn
from argosy.cost.op import CollectiveKind, OpKind, StepComposition
from argosy.cost.op_list import forward_ops, forward_templates, held_weight_bytes, step_of_data_rank
from argosy.cost.op_template import MlaForm, causal_pairs, mla_form, tokens_read
from argosy.cost.parallel import ParallelPlan, Precisions
from argosy.errors import ConfigError

LLAMA = find_model("Llama-3.1-70B")
DEEPSEEK = find_model("DeepSeek-V3")
MIXTRAL = find_model("Mixtral-8x7B")
BF16 = Precisions()
DECODE = StepComposition(((64, 1, 1000),), 64)
PREFILL = StepComposition(((1, 2048, 0),), 1)


def total(ops, field, *, kind=None, name=None):
    return sum(
        op.repeats * getattr(op, field) for op in ops if kind in (None, op.kind) and (name is None or op.name == name)
    )


def named(ops, name):
    (op,) = [op for op in ops if op.name == name]
    return op


def collectives(ops, kind):
    return [op for op in ops if op.collective is not None and op.collective.kind is kind]


@pytest.mark.parametrize("spec", [model.spec for model in all_models()], ids=lambda spec: spec.name)
def test_weights_held_by_one_device_are_the_parameters_exactly(spec):
    templates = forward_templates(Deployment(spec, ParallelPlan()))
    assert held_weight_bytes(templates, 0) == 2 * parameter_count(spec)


@pytest.mark.parametrize("spec", [model.spec for model in all_models()], ids=lambda spec: spec.name)
@pytest.mark.parametrize("tensor", [2, 4])
def test_weights_held_by_all_devices_cover_the_parameters(spec, tensor):
    try:
        plan = ParallelPlan(tensor=tensor, pipeline=2)
        templates = forward_templates(Deployment(spec, plan))
    except ConfigError as error:
        assert "divide" in str(error)  # noqa: PT017
        return
    held = tensor * sum(held_weight_bytes(templates, stage) for stage in range(2))
    assert held >= 2 * parameter_count(spec)


def test_a_decode_step_of_a_dense_model_reads_every_weight_but_the_embedding_once():
    ops = forward_ops(LLAMA, ParallelPlan(), BF16, DECODE)
    table = LLAMA.vocab_size * LLAMA.hidden_size
    rows = 64 * LLAMA.hidden_size
    assert total(ops, "weight_bytes") == 2 * (parameter_count(LLAMA) - table + rows)


@pytest.mark.parametrize("step", [DECODE, PREFILL, StepComposition(((1, 512, 100), (8, 1, 700)), 8)])
def test_matrix_flops_are_two_per_parameter_and_token(step):
    ops = forward_ops(LLAMA, ParallelPlan(), BF16, step)
    head = LLAMA.vocab_size * LLAMA.hidden_size
    norms = (2 * LLAMA.num_layers + 1) * LLAMA.hidden_size
    matrices = parameter_count(LLAMA) - 2 * head - norms
    assert total(ops, "flops", kind=OpKind.GEMM) == 2 * (matrices * step.tokens + head * step.logit_rows)


def test_attention_flops_are_scores_and_values_over_the_causal_triangle():
    attention = total(forward_ops(LLAMA, ParallelPlan(), BF16, PREFILL), "flops", kind=OpKind.ATTENTION)
    assert attention == 80 * 4 * 8192 * (2048 * 2049 // 2)


def test_decode_reads_the_cache_and_writes_one_token():
    ops = forward_ops(LLAMA, ParallelPlan(), Precisions(kv=Precision.FP8), DECODE)
    token = kv_bytes_per_token(LLAMA, Precision.FP8)
    assert total(ops, "kv_bytes", name="attention") == 64 * 1001 * token
    assert total(ops, "kv_bytes", name="rope and kv write") == 64 * token


@given(new=st.integers(1, 40), past=st.integers(0, 60), limit=st.one_of(st.none(), st.integers(1, 50)))
def test_pairs_and_tokens_read_are_those_of_token_by_token_attention(new, past, limit):
    seen = [range(max(0, past + j - (limit or math.inf)) if limit else 0, past + j) for j in range(1, new + 1)]
    assert causal_pairs(new, past, limit) == sum(len(tokens) for tokens in seen)
    assert tokens_read(new, past, limit) == len(set().union(*seen))


def test_sliding_windows_read_their_window_only():
    spec = find_model("gpt-oss-120b")
    ops = forward_ops(spec, ParallelPlan(), BF16, StepComposition(((1, 1, 131071),), 1))
    kib = total(ops, "kv_bytes", name="attention") / 131072 / 1024
    assert kib == pytest.approx(36 + 36 * 128 / 131072, rel=1e-12)


def test_kv_heads_are_replicated_beyond_their_number():
    per_device = [
        total(forward_ops(LLAMA, ParallelPlan(tensor=tensor), BF16, DECODE), "kv_bytes", name="attention")
        for tensor in (4, 8, 16)
    ]
    assert per_device[0] == 2 * per_device[1]
    assert per_device[1] == per_device[2]


def test_the_latent_is_cached_whole_on_every_tensor_rank():
    one, eight = (total(forward_ops(DEEPSEEK, ParallelPlan(tensor=tensor), BF16, DECODE), "kv_bytes") for tensor in (1, 8))
    assert one == eight == 61 * 64 * (1001 + 1) * 576 * 2


class TestLatentAttention:
    mla = next(layer.attention for layer in DEEPSEEK.each_layer())

    def test_decoding_is_absorbed_and_a_prompt_is_expanded(self):
        assert mla_form(self.mla, 1, 4096) is MlaForm.ABSORBED
        assert mla_form(self.mla, 4096, 0) is MlaForm.EXPANDED

    def test_absorbed_flops(self):
        ops = forward_ops(DEEPSEEK, ParallelPlan(), BF16, DECODE)
        assert named_total(ops, "latent attention") == 61 * 2 * 128 * (576 + 512) * 64 * 1001
        assert named_total(ops, "absorb into query") == 61 * 2 * 128 * 128 * 512 * 64
        assert not [op for op in ops if op.name.startswith("expand")]

    def test_expanded_flops_include_the_context_made_again(self):
        ops = forward_ops(DEEPSEEK, ParallelPlan(tensor=4), BF16, StepComposition(((2, 2048, 1024),), 2))
        assert named_total(ops, "expand keys and values") == 61 * 2 * 512 * 32 * 256 * 2 * 3072
        pairs = 2048 * 1024 + 2048 * 2049 // 2
        assert named_total(ops, "expanded attention") == 61 * 2 * 32 * (192 + 128) * 2 * pairs

    @given(new=st.integers(1, 4096), past=st.integers(0, 8192))
    @settings(max_examples=60)
    def test_the_form_with_fewer_operations_is_taken(self, new, past):
        mla, pairs = self.mla, causal_pairs(new, past, None)
        up = mla.kv_lora * (mla.nope_dim + mla.v_dim)
        costs = {
            MlaForm.ABSORBED: new * up + pairs * (2 * mla.kv_lora + mla.rope_dim),
            MlaForm.EXPANDED: (past + new) * up + pairs * (mla.nope_dim + mla.rope_dim + mla.v_dim),
        }
        assert costs[mla_form(mla, new, past)] == min(costs.values())

    def test_sparse_attention_gathers_its_top_tokens_and_scores_all(self):
        spec = find_model("GLM-5")
        index = next(layer.attention for layer in spec.each_layer()).index
        ops = forward_ops(spec, ParallelPlan(), BF16, StepComposition(((1, 1, 99_999),), 1))
        assert named_total(ops, "latent attention", "kv_bytes") == spec.num_layers * index.top_k * 576 * 2
        assert named_total(ops, "index scores") == spec.num_layers * 2 * index.heads * index.dim * 100_000


def named_total(ops, name, field="flops"):
    return total(ops, field, name=name)


def test_linear_attention_keeps_a_state_whatever_the_context():
    linear = LinearAttention(heads=32, kv_heads=16, key_dim=128, value_dim=128, conv_width=4)
    spec = ModelSpec("linear", 1000, 2048, ((4, Layer(linear, DenseFfn(4096))),), True, 8192)
    near, far = (
        total(forward_ops(spec, ParallelPlan(), BF16, StepComposition(((8, 1, past),), 8)), "kv_bytes") for past in (1, 8000)
    )
    state = 32 * 128 * 128 + 3 * (2 * 16 * 128 + 32 * 128)
    assert near == far == 4 * 8 * 2 * 4 * state


class TestExperts:
    def test_bytes_are_of_the_distinct_experts_touched(self):
        for tokens in (1, 4, 64):
            ops = forward_ops(MIXTRAL, ParallelPlan(), BF16, StepComposition(((tokens, 1, 10),), tokens))
            touched = 8 * (1 - (1 - 2 / 8) ** tokens)
            expert = 3 * 4096 * 14336 * 2
            assert total(ops, "weight_bytes", kind=OpKind.GROUPED_GEMM) == pytest.approx(32 * touched * expert)

    def test_flops_are_of_the_experts_visited(self):
        ops = forward_ops(MIXTRAL, ParallelPlan(), BF16, PREFILL)
        assert total(ops, "flops", kind=OpKind.GROUPED_GEMM) == pytest.approx(32 * 2 * 2048 * 2 * 3 * 4096 * 14336)

    @pytest.mark.parametrize(
        "plan", [ParallelPlan(tensor=8), ParallelPlan.for_serving(8, expert=8), ParallelPlan(tensor=8, expert=2)]
    )
    def test_a_group_of_eight_has_an_eighth_of_the_work(self, plan):
        whole = total(forward_ops(MIXTRAL, ParallelPlan(), BF16, PREFILL), "flops", kind=OpKind.GROUPED_GEMM)
        share = total(forward_ops(MIXTRAL, plan, BF16, PREFILL), "flops", kind=OpKind.GROUPED_GEMM)
        assert share == pytest.approx(whole / 8)

    def test_attention_data_ranks_bring_their_tokens_to_the_same_experts(self):
        plan = ParallelPlan.for_serving(data=8, expert=8)
        one = total(forward_ops(DEEPSEEK, ParallelPlan(), BF16, PREFILL), "flops", kind=OpKind.GROUPED_GEMM)
        rank = total(forward_ops(DEEPSEEK, plan, BF16, PREFILL), "flops", kind=OpKind.GROUPED_GEMM)
        assert rank == pytest.approx(one)

    @pytest.mark.parametrize(("imbalance", "utilisation"), [(0.2, 0.8333), (0.5, 0.6667)])
    def test_the_busiest_rank_sets_the_pace(self, imbalance, utilisation):
        plan = ParallelPlan.for_serving(8, expert=8)
        even = forward_ops(DEEPSEEK, plan, BF16, PREFILL)
        skewed = forward_ops(DEEPSEEK, plan, BF16, PREFILL, expert_imbalance=imbalance)
        ratio = total(even, "flops", kind=OpKind.GROUPED_GEMM) / total(skewed, "flops", kind=OpKind.GROUPED_GEMM)
        assert ratio == pytest.approx(utilisation, abs=5e-5)

    def test_one_rank_cannot_be_busier_than_all(self):
        skewed = forward_ops(MIXTRAL, ParallelPlan(), BF16, PREFILL, expert_imbalance=3.0)
        assert skewed == forward_ops(MIXTRAL, ParallelPlan(), BF16, PREFILL)

    def test_whole_experts_across_data_ranks_exchange_tokens_all_to_all(self):
        ops = forward_ops(DEEPSEEK, ParallelPlan.for_serving(data=16, expert=16), BF16, DECODE)
        calls = collectives(ops, CollectiveKind.ALL_TO_ALL)
        devices = 16 * (1 - (15 / 16) ** 8)
        assert [(op.name, op.repeats, op.collective.ranks) for op in calls] == [
            ("expert dispatch", 58, 16),
            ("expert combine", 58, 16),
        ]
        assert calls[0].collective.payload_bytes == pytest.approx(64 * 7168 * 2 * devices)

    def test_sharded_experts_across_data_ranks_gather_all_tokens(self):
        ops = forward_ops(DEEPSEEK, ParallelPlan.for_serving(data=8), BF16, DECODE)
        (gather,) = collectives(ops, CollectiveKind.ALL_GATHER)
        assert (gather.collective.ranks, gather.collective.payload_bytes) == (8, 8 * 64 * 7168 * 2)
        assert collectives(ops, CollectiveKind.REDUCE_SCATTER)[0].collective == gather.collective._replace(
            kind=CollectiveKind.REDUCE_SCATTER
        )

    def test_routed_experts_have_a_precision_and_arithmetic_of_their_own(self):
        precisions = Precisions(experts=Precision.FP4, expert_compute=Precision.FP8, scale_bytes_per_element=1 / 32)
        ops = forward_ops(MIXTRAL, ParallelPlan(), precisions, PREFILL)
        up = named(ops, "experts up")
        assert up.precision is Precision.FP8
        assert up.weight_bytes == pytest.approx(8 * 2 * 4096 * 14336 * (0.5 + 1 / 32))
        assert named(ops, "qkv projection").precision is Precision.BF16


class TestCommunication:
    def test_tensor_parallel_sums_twice_a_layer_and_once_after_the_embedding(self):
        ops = forward_ops(LLAMA, ParallelPlan(tensor=8), BF16, DECODE)
        reduces = collectives(ops, CollectiveKind.ALL_REDUCE)
        assert sum(op.repeats for op in reduces) == 161
        assert {op.collective.payload_bytes for op in reduces} == {64 * 8192 * 2}

    def test_sequence_parallel_moves_as_much_and_normalises_its_share(self):
        plain = forward_ops(LLAMA, ParallelPlan(tensor=8), BF16, PREFILL)
        sharded = forward_ops(LLAMA, ParallelPlan(tensor=8, sequence_parallel=True), BF16, PREFILL)
        assert not collectives(sharded, CollectiveKind.ALL_REDUCE)
        gathers, scatters = (
            collectives(sharded, kind) for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
        )
        assert sum(op.repeats for op in gathers if op.layer >= 0) == 160
        assert sum(op.repeats for op in scatters) == 161
        assert named(sharded, "ffn norm").flops == named(plain, "ffn norm").flops / 8

    def test_stages_pass_the_hidden_rows_on(self):
        ops = forward_ops(LLAMA, ParallelPlan(tensor=4, pipeline=3), BF16, DECODE)
        sends = collectives(ops, CollectiveKind.POINT_TO_POINT)
        assert [(op.stage, op.collective.payload_bytes, op.collective.stride) for op in sends] == [
            (0, 64 * 8192 * 2, 4),
            (1, 64 * 8192 * 2, 4),
        ]

    def test_ring_attention_shares_the_triangle_and_passes_keys_and_values(self):
        one = forward_ops(LLAMA, ParallelPlan(), BF16, PREFILL)
        four = forward_ops(LLAMA, ParallelPlan(context=4), BF16, PREFILL)
        assert total(four, "flops", kind=OpKind.ATTENTION) == total(one, "flops", kind=OpKind.ATTENTION) / 4
        assert named(four, "qkv projection").flops == named(one, "qkv projection").flops / 4
        (exchange,) = collectives(four, CollectiveKind.ALL_GATHER)
        assert exchange.repeats * exchange.collective.payload_bytes == 2048 * kv_bytes_per_token(LLAMA, Precision.BF16)


def test_stages_split_the_layers_and_sum_to_the_whole():
    spec = ModelSpec("33 layers", 1000, 512, ((33, Layer(Gqa(8, 2, 64), DenseFfn(2048))),), False, 4096)
    one, two = (forward_ops(spec, ParallelPlan(pipeline=stages), BF16, PREFILL) for stages in (1, 2))
    assert [op.repeats for op in two if op.name == "attention"] == [17, 16]
    assert total(two, "flops") == pytest.approx(total(one, "flops"))
    assert [op.stage for op in two if op.name in ("embedding", "head")] == [0, 1]


def test_equal_layers_are_one_op_even_where_they_alternate():
    spec = find_model("gpt-oss-20b")
    attention = [op for op in forward_ops(spec, ParallelPlan(), BF16, DECODE) if op.name == "attention"]
    assert [(op.layer, op.repeats) for op in attention] == [(0, 12), (1, 12)]


def test_a_step_without_logits_runs_no_head():
    names = {op.name for op in forward_ops(LLAMA, ParallelPlan(tensor=2), BF16, StepComposition(((1, 100, 0),), 0))}
    assert not names & {"head", "sample", "logits all-gather"}


def test_groups_of_a_step_are_one_attention_launch():
    ops = forward_ops(LLAMA, ParallelPlan(), BF16, StepComposition(((1, 100, 0), (8, 1, 50), (8, 1, 60)), 17))
    assert [op.launches for op in ops if op.name == "attention"] == [1, 0, 0]


def test_verifying_drafts_is_decoding_with_more_rows():
    one = forward_ops(LLAMA, ParallelPlan(), BF16, StepComposition(((8, 1, 1000),), 8))
    five = forward_ops(LLAMA, ParallelPlan(), BF16, StepComposition(((8, 5, 1000),), 40))
    assert total(five, "flops", kind=OpKind.GEMM) == 5 * total(one, "flops", kind=OpKind.GEMM)
    assert named(five, "attention").kv_bytes == pytest.approx(named(one, "attention").kv_bytes * 1005 / 1001)


@given(
    tensor=st.sampled_from([1, 2, 4, 8]),
    new=st.integers(1, 300),
    past=st.integers(0, 3000),
    count=st.integers(1, 50),
    model=st.sampled_from(["Llama-3.1-8B", "DeepSeek-V2-Lite", "gpt-oss-20b", "Gemma-3-12B", "Qwen3-30B-A3B"]),
)
@settings(max_examples=40, deadline=None)
def test_work_grows_with_tokens_context_and_sequences(tensor, new, past, count, model):
    spec, plan = find_model(model), ParallelPlan(tensor=tensor)
    assume(all(layer.attention.heads % tensor == 0 for layer in spec.each_layer()))

    def work(count, new, past):
        ops = forward_ops(spec, plan, BF16, StepComposition(((count, new, past),), count))
        return total(ops, "flops"), total(ops, "kv_bytes")

    base = work(count, new, past)
    for larger in (work(count + 1, new, past), work(count, new, past + 64)):
        assert all(more >= less for more, less in zip(larger, base, strict=True))
    # A longer prompt may switch latent attention to the form that computes more but reads less: compare FLOPs of one form.
    if not any(isinstance(layer.attention, Mla) for layer in spec.each_layer()):
        assert all(more >= less for more, less in zip(work(count, new + 1, past), base, strict=True))


def test_the_busiest_data_rank_rounds_up():
    step = StepComposition(((10, 1, 500), (1, 512, 0)), 11)
    assert step_of_data_rank(step, 8) == StepComposition(((2, 1, 500), (1, 512, 0)), 2)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (ParallelPlan(tensor=3), "tensor parallelism 3 does not divide 64 attention heads"),
        (ParallelPlan(pipeline=81), "80 layers cannot be split into 81"),
        (ParallelPlan(tensor=8, expert=8), "has no experts"),
    ],
)
def test_plans_that_do_not_divide_the_model(plan, message):
    with pytest.raises(ConfigError, match=message):
        forward_ops(LLAMA, plan, BF16, DECODE)


def test_more_expert_ranks_than_experts():
    with pytest.raises(ConfigError, match="expert parallelism 16 exceeds the 8 experts"):
        forward_ops(MIXTRAL, ParallelPlan.for_serving(data=16, expert=16), BF16, DECODE)


@pytest.mark.parametrize("imbalance", [-0.1, math.nan, math.inf])
def test_impossible_imbalance(imbalance):
    with pytest.raises(ConfigError, match="imbalance"):
        forward_ops(MIXTRAL, ParallelPlan(), BF16, DECODE, expert_imbalance=imbalance)


@pytest.mark.parametrize(
    "step",
    [
        StepComposition((), 0),
        StepComposition(((1, 0, 5),), 0),
        StepComposition(((0, 1, 5),), 0),
        StepComposition(((1, 1, -1),), 0),
        StepComposition(((2, 1, 0),), 3),
    ],
)
def test_compositions_that_are_no_step(step):
    with pytest.raises(ConfigError, match="step"):
        forward_ops(LLAMA, ParallelPlan(), BF16, step)


def test_shared_experts_and_router_are_counted():
    moe = MoeFfn(experts=4, top_k=2, size=100, shared_size=300, router_bias=True, shared_gate=True)
    spec = ModelSpec("moe", 100, 64, ((1, Layer(Gqa(4, 4, 16), moe)),), True, 100)
    ops = forward_ops(spec, ParallelPlan(), BF16, StepComposition(((3, 1, 0),), 3))
    assert named(ops, "shared experts up").flops == 3 * 2 * 64 * 600
    assert named(ops, "shared experts gate").weight_bytes == 128
    assert named(ops, "router").weight_bytes == 2 * (64 * 4 + 4)
