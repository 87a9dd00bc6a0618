"""Parameters, KV, recurrent state and stages."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.cost.catalogue import all_models, find_model
from argosy.cost.device import Precision
from argosy.cost.model_arithmetic import (
    ActiveConvention,
    active_parameters,
    attention_parameters,
    kv_bytes,
    kv_bytes_per_token,
    kv_elements_per_token,
    kv_heads_per_device,
    layer_kv_bytes,
    layer_parameters,
    layer_runs,
    model_parameters,
    mtp_parameters,
    parameter_count,
    split_layers,
    state_bytes,
)
from argosy.cost.model_spec import DenseFfn, Gqa, Layer, LinearAttention, ModelSpec, MoeFfn, QkNorm
from argosy.errors import ConfigError

KIB = 1024
BF16 = Precision.BF16
MODELS = [model.spec for model in all_models()]


def wide(kv_heads: int, layers: int = 80) -> ModelSpec:
    """A 70 B model of 64 heads x 128 with so many KV heads."""
    return ModelSpec("wide", 32000, 8192, ((layers, Layer(Gqa(64, kv_heads, 128), DenseFfn(28672))),), False, 131072)


def test_kv_of_one_request_in_worked_examples() -> None:
    assert kv_bytes(wide(64), 4096, BF16) == pytest.approx(10.737e9, rel=1e-4)
    assert kv_bytes(wide(64), 4096, Precision.INT4) == pytest.approx(2.684e9, rel=2e-4)
    assert kv_bytes(wide(8), 4096, BF16) == pytest.approx(1.342e9, rel=1e-3)
    for precision, gb in ((BF16, 687.2), (Precision.INT8, 343.6), (Precision.INT4, 171.8)):
        assert 8 * kv_bytes(wide(64), 32768, precision) == pytest.approx(gb * 1e9, rel=1e-3)


def test_a_prefix_shared_by_a_thousand_users() -> None:
    apart = 1000 * kv_bytes(wide(64), 2500, BF16)
    shared = kv_bytes(wide(64), 2000, BF16) + 1000 * kv_bytes(wide(64), 500, BF16)
    assert (apart, shared) == pytest.approx((6.554e12, 1.316e12), rel=1e-3)
    assert 1 - shared / apart == pytest.approx(0.7992, abs=1e-4)
    assert kv_bytes(wide(8), 2000, BF16) == pytest.approx(0.655e9, rel=1e-3)


def test_tensor_parallelism_splits_kv_only_down_to_one_head() -> None:
    """A 70 B model with 8 KV heads at 16 ways replicates them: each device holds what it held at 8."""
    spec = find_model("Llama-3.1-70B")
    per_device = {tensor: kv_bytes(spec, 1000, BF16, tensor=tensor) for tensor in (1, 2, 4, 8, 16, 32)}
    assert per_device[8] == per_device[1] / 8
    assert per_device[16] == per_device[32] == per_device[8]


def test_a_latent_is_replicated() -> None:
    spec = find_model("DeepSeek-V3")
    assert kv_bytes_per_token(spec, BF16) == 61 * 576 * 2
    assert kv_bytes(spec, 1000, BF16, tensor=8) == kv_bytes(spec, 1000, BF16)


def test_an_indexer_keeps_a_key_of_its_own() -> None:
    """128 elements in fp8 with one fp32 scale, whatever the precision of the latent."""
    spec = find_model("GLM-5")
    assert kv_bytes_per_token(spec, BF16) == 78 * (576 * 2 + 132)
    assert kv_bytes_per_token(spec, Precision.FP8) == 78 * (576 + 132)


def test_windows_cap_what_is_kept() -> None:
    """gpt-oss-120b at 131072 tokens: half its layers keep 128 of them, about half of what full attention keeps."""
    spec = find_model("gpt-oss-120b")
    assert kv_bytes(spec, 131072, BF16) == (36 * 131072 + 36 * 128) * KIB
    assert kv_bytes_per_token(spec, BF16) * 131072 / kv_bytes(spec, 131072, BF16) == pytest.approx(1.998, abs=1e-3)
    assert kv_bytes_per_token(spec, BF16) == 72 * KIB


def test_gemma_keeps_full_context_in_every_sixth_layer() -> None:
    spec = find_model("Gemma-3-1B")
    per_layer = 2 * 256 * 2
    assert kv_bytes(spec, 10_000, BF16) == per_layer * (22 * 512 + 4 * 10_000)


def test_linear_attention_has_state_and_no_kv() -> None:
    spec = find_model("Qwen3.5-397B-A17B")
    assert kv_bytes_per_token(spec, BF16) == 15 * 2 * 2 * 256 * 2
    channels = 2 * 16 * 128 + 64 * 128
    assert state_bytes(spec) == 45 * 4 * (64 * 128 * 128 + channels * 3)
    assert state_bytes(spec, BF16) == state_bytes(spec) / 2
    assert state_bytes(spec, tensor=4) == state_bytes(spec) / 4
    assert state_bytes(find_model("Llama-3.1-8B")) == 0
    with pytest.raises(ConfigError, match="tensor parallelism 32 does not divide 64 value and 16 key heads"):
        state_bytes(spec, tensor=32)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (3, "does not divide 64 attention heads"),
        (16, "not a multiple of 12 KV heads"),
        (8, "does not divide 12 KV heads"),
    ],
)
def test_tensor_parallelism_that_does_not_fit_the_heads(tensor: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kv_heads_per_device(Gqa(64, 12, 128), tensor)


def test_latent_heads_must_divide_too() -> None:
    with pytest.raises(ConfigError, match="does not divide 128 attention heads"):
        kv_bytes(find_model("DeepSeek-V3"), 1, BF16, tensor=3)


def test_negative_tokens_are_refused() -> None:
    with pytest.raises(ConfigError, match="cannot have -1 tokens"):
        layer_kv_bytes(Gqa(8, 8, 64), -1, BF16)


def test_active_parameters_by_convention() -> None:
    """gpt-oss-20b is quoted as 4.19 B and as 3.61 B; the difference is its input embedding."""
    spec = find_model("gpt-oss-20b")
    with_input = active_parameters(spec, ActiveConvention.WITH_INPUT_EMBEDDING)
    without = active_parameters(spec, ActiveConvention.WITHOUT_INPUT_EMBEDDING)
    assert (with_input / 1e9, without / 1e9) == pytest.approx((4.19, 3.61), abs=5e-3)
    assert with_input - without == 201088 * 2880
    big = find_model("gpt-oss-120b")
    assert active_parameters(big, ActiveConvention.WITHOUT_INPUT_EMBEDDING) / 1e9 == pytest.approx(5.13, abs=5e-3)


def test_a_tied_matrix_counts_as_the_head_in_both_conventions() -> None:
    spec = find_model("Llama-3.2-1B")
    conventions = {active_parameters(spec, convention) for convention in ActiveConvention}
    assert conventions == {parameter_count(spec)}
    gpt3 = find_model("GPT-3")
    positions = parameter_count(gpt3) - active_parameters(gpt3, ActiveConvention.WITHOUT_INPUT_EMBEDDING)
    assert positions == 2048 * 12288


def test_active_parameters_of_a_mixture_of_experts() -> None:
    active = active_parameters(find_model("DeepSeek-V3"), ActiveConvention.WITH_INPUT_EMBEDDING)
    assert active / 1e9 == pytest.approx(37.55, abs=5e-3)


def test_the_module_that_predicts_a_second_token() -> None:
    """DeepSeek-V3's is 11.5 B of its own in the publisher's count of 14 B with shared embedding and head."""
    spec = find_model("DeepSeek-V3")
    own = mtp_parameters(spec)
    assert own / 1e9 == pytest.approx(11.6, abs=0.05)
    assert (own + 2 * spec.vocab_size * spec.hidden_size) / 1e9 == pytest.approx(13.5, abs=0.1)
    assert mtp_parameters(find_model("Llama-3.1-8B")) == 0


def test_parts_of_a_block() -> None:
    hidden = 64
    plain = Gqa(4, 2, 16)
    base = hidden * (64 + 2 * 32) + 64 * hidden
    assert attention_parameters(plain, hidden) == base
    assert attention_parameters(replace(plain, qkv_bias=True), hidden) == base + 128
    assert attention_parameters(replace(plain, output_bias=True), hidden) == base + hidden
    assert attention_parameters(replace(plain, sinks=True), hidden) == base + 4
    assert attention_parameters(replace(plain, qk_norm=QkNorm.PER_HEAD), hidden) == base + 32
    assert attention_parameters(replace(plain, qk_norm=QkNorm.PER_PROJECTION), hidden) == base + 96
    assert attention_parameters(replace(plain, output_gate=True), hidden) == base + hidden * 64
    assert attention_parameters(replace(plain, keys_are_values=True), hidden) == base - hidden * 32


def test_parts_of_linear_attention() -> None:
    """Projections to queries, keys, values, gate, decay and step; convolution; two scalars per head; output norm."""
    hidden, keys, values = 64, 2 * 16, 4 * 8
    projections = hidden * (2 * keys + values + values + 4 + 4) + values * hidden
    assert attention_parameters(LinearAttention(4, 2, 16, 8, 4), hidden) == projections + (2 * keys + values) * 4 + 8 + 8


def test_parts_of_a_layer_with_experts() -> None:
    moe = MoeFfn(experts=8, top_k=2, size=32, shared_size=48, router_bias=True, shared_gate=True)
    parts = layer_parameters(Layer(Gqa(4, 2, 16), moe), 64)
    assert (parts.routed, parts.routed_active) == (8 * 3 * 64 * 32, 2 * 3 * 64 * 32)
    assert parts.shared == 3 * 64 * 48 + 64
    assert parts.router == 64 * 8 + 8
    assert parts.norms == 2 * 64
    assert parts.dense_ffn == 0
    assert parts.total - parts.active == parts.routed - parts.routed_active


@pytest.mark.parametrize("spec", MODELS, ids=lambda spec: spec.name)
def test_parts_add_up_layer_by_layer(spec: ModelSpec) -> None:
    parts = model_parameters(spec)
    layers = [layer_parameters(layer, spec.hidden_size, norm_has_bias=spec.norm_has_bias) for layer in spec.each_layer()]
    assert len(layers) == spec.num_layers
    assert parts.total == sum(part.total for part in layers) + parts.embedding + parts.head + parts.final_norm
    assert parts.head == 0 if spec.tied_embeddings else parts.head == spec.vocab_size * spec.hidden_size


@pytest.mark.parametrize("spec", MODELS, ids=lambda spec: spec.name)
def test_stages_together_hold_the_kv_of_the_whole(spec: ModelSpec) -> None:
    for stages in (1, 2, 3, spec.num_layers):
        parts = [kv_bytes(spec, 5000, BF16, layers=bounds) for bounds in split_layers(spec.num_layers, stages)]
        assert sum(parts) == pytest.approx(kv_bytes(spec, 5000, BF16), rel=1e-12)


def test_an_uneven_pipeline_is_bound_by_its_larger_stage() -> None:
    """33 layers over 2 stages: 17 and 16."""
    assert split_layers(33, 2) == ((0, 17), (17, 33))
    spec = wide(8, layers=33)
    first, second = (kv_bytes(spec, 100, BF16, layers=bounds) for bounds in split_layers(33, 2))
    assert first / second == 17 / 16


@given(st.integers(1, 200), st.integers(1, 200))
def test_a_split_covers_all_layers_evenly(layers: int, stages: int) -> None:
    if stages > layers:
        with pytest.raises(ConfigError, match="cannot be split"):
            split_layers(layers, stages)
        return
    bounds = split_layers(layers, stages)
    sizes = [stop - start for start, stop in bounds]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == layers
    assert all(left[1] == right[0] for left, right in itertools.pairwise(bounds))
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_no_stage_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="into 0 pipeline stages"):
        split_layers(4, 0)


def test_runs_of_a_slice_are_the_layers_of_the_slice() -> None:
    spec = find_model("Gemma-3-1B")
    layers = list(spec.each_layer())
    for first, stop in ((0, 26), (3, 9), (5, 6), (7, 7)):
        flat = [layer for count, layer in layer_runs(spec, first, stop) for _ in range(count)]
        assert flat == layers[first:stop]
    with pytest.raises(ConfigError, match="not within the 26 layers of Gemma-3-1B"):
        list(layer_runs(spec, 20, 27))


@given(
    tokens=st.integers(0, 300_000),
    more=st.integers(0, 10_000),
    window=st.one_of(st.none(), st.integers(1, 10_000)),
    tensor=st.sampled_from([1, 2, 4, 8, 16]),
)
def test_kv_grows_with_tokens_and_never_beyond_the_window(tokens: int, more: int, window: int | None, tensor: int) -> None:
    attention = Gqa(16, 4, 64, window=window)
    kept = layer_kv_bytes(attention, tokens, BF16, tensor)
    assert kept <= layer_kv_bytes(attention, tokens + more, BF16, tensor)
    assert kept <= (window if window is not None else tokens) * kv_elements_per_token(attention, tensor) * 2
    assert kept * tensor >= layer_kv_bytes(attention, tokens, BF16)


def test_linear_attention_caches_nothing_per_token() -> None:
    assert kv_elements_per_token(LinearAttention(8, 4, 16, 16, 4)) == 0
