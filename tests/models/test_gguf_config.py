"""What GGUF keys mean, and what is refused because it would change the result."""

import subprocess
import sys

import pytest
import torch
from gguf import GGUFWriter, RopeScalingType

from argosy.errors import ModelFileError, UnsupportedModel
from argosy.models.config import RopeConfig
from argosy.models.gguf_config import model_config_from_gguf
from argosy.models.gguf_file import GgufFile


@pytest.fixture
def config_with(tiny_checkpoint):
    """The configuration of a family's GGUF file with keys added or replaced."""

    def make(family, extra, **options):
        def replace(writer: GGUFWriter) -> None:
            added = GGUFWriter(None, writer.arch)
            extra(added)
            writer.kv_data[0].update({k: v for k, v in added.kv_data[0].items() if k != "general.architecture"})
            for name, info in added.tensors[0].items():
                writer.add_tensor(name, info.tensor)

        return model_config_from_gguf(GgufFile(tiny_checkpoint(family, extra=replace, **options).gguf))

    return make


def test_torch_is_not_needed_for_a_configuration():
    modules = "argosy.models.gguf_config, argosy.models.checkpoint, argosy.models.loader"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


def test_linear_scaling(config_with):
    def extra(writer):
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    assert config_with("qwen2", extra).rope == RopeConfig(10_000.0, "linear", 4.0)


def test_linear_scaling_under_its_early_name(config_with):
    assert config_with("llama", lambda w: w.add_float32("llama.rope.scale_linear", 2.0)).rope == RopeConfig(
        1e4, "linear", 2.0
    )


def test_yarn_with_every_parameter(config_with):
    def extra(writer):
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(64)
        writer.add_rope_scaling_yarn_beta_fast(16.0)
        writer.add_rope_scaling_yarn_beta_slow(2.0)
        writer.add_rope_scaling_yarn_attn_factor(1.5)
        writer.add_rope_freq_base(500_000.0)

    config = config_with("qwen2", extra)
    assert config.rope == RopeConfig(
        5e5, "yarn", 4.0, original_max_positions=64, beta_fast=16.0, beta_slow=2.0, attention_factor=1.5
    )
    assert config.max_positions == 256


def test_yarn_reaches_factor_times_the_original_context(config_with):
    def extra(writer):
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)

    config = config_with("qwen2", extra, max_position_embeddings=32_768)
    assert config.rope.original_max_positions == 32_768
    assert config.max_positions == 131_072


def test_frequency_divisors_replace_the_formula(config_with):
    config = config_with("llama", lambda w: w.add_tensor("rope_freqs.weight", torch.arange(1.0, 9.0).numpy()))
    assert config.rope == RopeConfig(10_000.0, freq_divisors=tuple(float(i) for i in range(1, 9)))


@pytest.mark.parametrize("divisors", [[1.0] * 7, [1.0] * 7 + [0.0], [1.0] * 7 + [float("nan")]])
def test_damaged_frequency_divisors_are_refused(config_with, divisors):
    with pytest.raises(ModelFileError, match=r"rope_freqs\.weight.*8 positive numbers"):
        config_with("llama", lambda w: w.add_tensor("rope_freqs.weight", torch.tensor(divisors).numpy()))


def test_frequency_divisors_with_scaling_are_refused(config_with):
    def extra(writer):
        writer.add_tensor("rope_freqs.weight", torch.ones(8).numpy())
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    with pytest.raises(UnsupportedModel, match="together with rope scaling 'linear'"):
        config_with("llama", extra)


def test_gemma_windows_and_both_ropes(config_with):
    config = config_with("gemma3", lambda w: w.add_rope_freq_base_swa(20_000.0))
    assert config.layer_windows == (8, 8, 8, 8, 8, None, 8)
    assert config.rope.theta == 1_000_000.0
    assert config.rope_local == RopeConfig(20_000.0)


def test_gemma_scaling_leaves_the_sliding_layers_alone(config_with):
    def extra(writer):
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(8.0)

    config = config_with("gemma3", extra)
    assert config.rope == RopeConfig(1_000_000.0, "linear", 8.0)
    assert config.rope_local == RopeConfig(10_000.0)


@pytest.mark.parametrize(
    ("pattern", "windows"),
    [(3, (8, 8, None, 8, 8, None, 8)), ([True, False] * 3 + [True], (8, None, 8, None, 8, None, 8))],
)
def test_gemma_window_pattern_of_the_file(config_with, pattern, windows):
    assert config_with("gemma3", lambda w: w.add_sliding_window_pattern(pattern)).layer_windows == windows


def test_gemma_window_pattern_of_other_length_is_refused(config_with):
    with pytest.raises(ModelFileError, match="sliding_window_pattern"):
        config_with("gemma3", lambda w: w.add_sliding_window_pattern([True, False]))


def test_gemma_softcaps_and_scale(config_with):
    def extra(writer):
        writer.add_final_logit_softcapping(30.0)
        writer.add_attn_logit_softcapping(50.0)
        writer.add_float32("gemma3.attention.scale", 0.25)

    config = config_with("gemma3", extra)
    assert (config.final_logit_softcap, config.attention_softcap, config.attention_scale) == (30.0, 50.0, 0.25)


def test_deepest_gemma_scales_by_the_mean_head_width(config_with):
    config = config_with("gemma3", lambda w: None, num_hidden_layers=62, hidden_size=32, intermediate_size=8)
    assert config.head_dim == 32
    assert config.attention_scale == (32 / 4) ** -0.5


def test_window_in_every_layer_of_a_llama(config_with):
    assert config_with("llama", lambda w: w.add_sliding_window(16)).layer_windows == (16, 16)
    assert config_with("llama", lambda w: w.add_sliding_window(128)).layer_windows == (None, None)


def test_end_ids_are_united(config_with):
    def extra(writer):
        writer.add_eot_token_id(7)
        writer.add_eom_token_id(5)

    config = config_with("llama", extra)
    assert config.eos_token_ids == (2, 5, 7)
    assert config.bos_token_id == 1


@pytest.mark.parametrize(
    ("extra", "match"),
    [
        (lambda w: w.add_logit_scale(2.0), "logit_scale = 2.0"),
        (lambda w: w.add_clamp_kqv(8.0), "clamp_kqv = 8.0"),
        (lambda w: w.add_float32("llama.residual_scale", 0.5), "residual_scale"),
        (lambda w: w.add_causal_attention(False), "causal = False"),
        (lambda w: w.add_expert_shared_count(1), "expert_shared_count = 1"),
        (lambda w: w.add_rope_scaling_type(RopeScalingType.LONGROPE), "'longrope' is not supported"),
        (lambda w: w.add_head_count_kv([2, 1]), "head_count_kv differs between layers"),
        (lambda w: w.add_value_length(8), "key heads of 16 and value heads of 8"),
        (lambda w: w.add_rope_dimension_count(8), "rotating 8 of 16"),
    ],
)
def test_what_would_change_the_result_is_refused(config_with, extra, match):
    def with_factor(writer):
        writer.add_rope_scaling_factor(2.0)
        extra(writer)

    with pytest.raises(UnsupportedModel, match=match):
        config_with("llama", with_factor)


def test_yarn_parameter_of_another_model_is_refused(config_with):
    def extra(writer):
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_yarn_log_mul(0.1)

    with pytest.raises(UnsupportedModel, match="yarn_log_multiplier"):
        config_with("llama", extra)


def test_window_that_some_layers_have_is_refused(config_with):
    with pytest.raises(UnsupportedModel, match="sliding window in qwen2"):
        config_with("qwen2", lambda w: w.add_sliding_window(16))


@pytest.mark.parametrize(
    ("extra", "match"),
    [
        (
            lambda w: w.add_embedding_length(128),
            r"'token_embd\.weight' has shape \[320, 64\], the metadata says \[320, 128\]",
        ),
        (lambda w: w.add_head_count(8), "metadata says"),
        (lambda w: w.add_head_count_kv(4), "metadata says"),
        (lambda w: w.add_feed_forward_length(2**31 - 1), "metadata says"),
        (lambda w: w.add_block_count(2**30), "block_count must be an integer from 1 to"),
        (lambda w: w.add_block_count(1), "more layers than its block_count of 1"),
        (lambda w: w.add_block_count(0), "block_count must be an integer"),
        (lambda w: w.add_context_length(2**31 - 1), "context_length must be an integer from 1 to"),
        (lambda w: w.add_layer_norm_rms_eps(0.0), "layer_norm_rms_epsilon must be above 0"),
        (lambda w: w.add_rope_freq_base(float("nan")), "freq_base must be a finite number"),
        (lambda w: w.add_string("llama.context_length", "long"), "context_length must be an integer"),
        (lambda w: w.add_string("tokenizer.ggml.eos_token_id", "</s>"), "eos_token_id must be an id"),
        (lambda w: w.add_expert_count(4), "no router"),
    ],
)
def test_metadata_that_contradicts_the_tensors_is_refused(config_with, extra, match):
    with pytest.raises(ModelFileError, match=match):
        config_with("llama", extra)


def test_missing_key_is_named(tmp_path):
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("token_embd.weight", torch.zeros(4, 4).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelFileError, match=r"the key llama\.block_count is missing"):
        model_config_from_gguf(GgufFile(tmp_path / "m.gguf"))


@pytest.mark.parametrize("architecture", ["gpt2", "bert", "phi3", "qwen2moe"])
def test_other_architectures_are_refused_by_name(tmp_path, architecture):
    writer = GGUFWriter(tmp_path / "m.gguf", architecture)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        UnsupportedModel, match=f"architecture '{architecture}' is not supported; supported are gemma3, llama"
    ):
        model_config_from_gguf(GgufFile(tmp_path / "m.gguf"))
