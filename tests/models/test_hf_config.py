"""Reading config.json: both of transformers' forms, its defaults, and refusals that name the key."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig

from argosy.errors import ModelFileError, UnsupportedModel
from argosy.models.config import MoeConfig, RopeConfig
from argosy.models.hf_config import DEFAULTS, READERS, model_config_from_hf

SIZES = {
    "vocab_size": 1000,
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}


def config(model_type="llama", **changes):
    return {"model_type": model_type, **SIZES, **changes}


def rope(**scaling):
    return model_config_from_hf(config(max_position_embeddings=4096, rope_theta=500_000.0, rope_scaling=scaling)).rope


def test_smollm2_as_published():
    smollm2 = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "is_llama_config": True,
        "max_position_embeddings": 8192,
        "model_type": "llama",
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_interleaved": False,
        "rope_scaling": None,
        "rope_theta": 100000,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": 49152,
    }
    read = model_config_from_hf(smollm2)
    assert (read.architecture, read.num_layers, read.num_heads, read.num_kv_heads, read.head_dim) == ("llama", 30, 9, 3, 64)
    assert (read.rope, read.max_positions, read.norm_eps) == (RopeConfig(theta=100_000.0), 8192, 1e-5)
    assert (read.tie_embeddings, read.dtype, read.eos_token_ids, read.bos_token_id) == (True, "bfloat16", (2,), 1)
    assert read.attention_scale == 0.125
    assert read.layer_windows == (None,) * 30


def test_gemma_3_with_vision_as_published():
    """Its text_config leaves out whatever equals the defaults of its class."""
    gemma = {
        "model_type": "gemma3",
        "eos_token_id": [1, 106],
        "torch_dtype": "bfloat16",
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "model_type": "gemma3_text",
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
    }
    read = model_config_from_hf(gemma)
    assert (read.architecture, read.vocab_size, read.num_heads, read.num_kv_heads, read.head_dim) == (
        "gemma3",
        262_208,
        8,
        4,
        256,
    )
    assert read.rope == RopeConfig(theta=1e6, kind="linear", factor=8.0)
    assert read.rope_local == RopeConfig(theta=1e4)
    assert read.layer_windows[:12] == (1024, 1024, 1024, 1024, 1024, None) * 2
    assert (read.max_positions, read.eos_token_ids, read.dtype, read.tie_embeddings) == (131_072, (1, 106), "bfloat16", True)
    assert (read.activation, read.norm_offset, read.qk_norm) == ("gelu_tanh", 1.0, True)
    assert read.embedding_scale == pytest.approx(2560**0.5, rel=1e-12)
    assert read.attention_scale == pytest.approx(1 / 16)


def test_qwen_3_moe_layers():
    read = model_config_from_hf(
        config(
            "qwen3_moe",
            decoder_sparse_step=2,
            mlp_only_layers=[3],
            num_experts=16,
            moe_intermediate_size=64,
            norm_topk_prob=True,
        )
    )
    assert read.moe == MoeConfig(16, 8, 64, True, layers=(1,))
    assert read.head_dim == 16, "without head_dim, hidden / heads"
    assert read.qk_norm


def test_mixtral_experts():
    read = model_config_from_hf(config("mixtral", num_local_experts=4))
    assert read.moe == MoeConfig(4, 2, 256, True, layers=(0, 1, 2, 3))
    assert (read.rope.theta, read.norm_eps, read.layer_windows) == (1e6, 1e-5, (None,) * 4)


@pytest.mark.parametrize(
    ("model_type", "tied"), [*((t, False) for t in READERS if t != "gemma3_text"), ("gemma3_text", True)]
)
def test_whether_embeddings_are_tied_by_default(model_type, tied):
    assert model_config_from_hf(config(model_type)).tie_embeddings is tied
    assert model_config_from_hf(config(model_type, tie_word_embeddings=not tied)).tie_embeddings is not tied


@pytest.mark.parametrize("model_type", READERS)
def test_defaults_are_those_of_transformers(model_type):
    theirs = AutoConfig.for_model(model_type)
    for key, value in DEFAULTS[model_type].items():
        if key == "rope_theta":
            full = theirs.rope_parameters.get("full_attention", theirs.rope_parameters)
            assert value == full["rope_theta"]
        elif key == "rope_local_base_freq":
            assert value == theirs.rope_parameters["sliding_attention"]["rope_theta"]
        elif key == "sliding_window" and not getattr(theirs, "use_sliding_window", True):
            assert value == type(theirs).sliding_window
        elif hasattr(theirs, key):
            assert value == getattr(theirs, key), key
        else:
            assert value in (False, 6), f"{key} is unknown to transformers"


@pytest.mark.parametrize(
    ("model_type", "changes", "expected"),
    [
        ("llama", {}, (False, False, False)),
        ("llama", {"attention_bias": True}, (True, True, False)),
        ("llama", {"mlp_bias": True}, (False, False, True)),
        ("mistral", {}, (False, False, False)),
        ("qwen2", {}, (True, False, False)),
        ("qwen3", {}, (False, False, False)),
        ("qwen3", {"attention_bias": True}, (True, True, False)),
        ("qwen3_moe", {"attention_bias": True}, (True, True, False)),
        ("gemma3_text", {"attention_bias": True}, (True, True, False)),
        ("mixtral", {}, (False, False, False)),
    ],
)
def test_biases(model_type, changes, expected):
    read = model_config_from_hf(config(model_type, **changes))
    assert (read.qkv_bias, read.output_bias, read.mlp_bias) == expected


@pytest.mark.parametrize(
    ("model_type", "changes", "windows"),
    [
        ("llama", {"sliding_window": 64}, (None,) * 4),
        ("mistral", {"sliding_window": 64}, (64,) * 4),
        ("mistral", {"sliding_window": None}, (None,) * 4),
        ("mistral", {}, (4096,) * 4),
        ("qwen2", {"sliding_window": 64}, (None,) * 4),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": True}, (None,) * 4),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 3}, (None, None, None, 64)),
        ("qwen3_moe", {"sliding_window": 64, "use_sliding_window": True}, (64,) * 4),
        ("gemma3_text", {"sliding_window": 64, "sliding_window_pattern": 2}, (64, None, 64, None)),
        ("gemma3_text", {"sliding_window": 64}, (64,) * 4),
        (
            "gemma3_text",
            {"sliding_window": 64, "layer_types": ["full_attention", "sliding_attention"] * 2},
            (None, 64, None, 64),
        ),
    ],
)
def test_sliding_windows(model_type, changes, windows):
    assert model_config_from_hf(config(model_type, **changes)).layer_windows == windows


def test_rope_types_in_both_spellings_of_the_key():
    linear = RopeConfig(theta=5e5, kind="linear", factor=4.0)
    assert rope(rope_type="linear", factor=4.0) == rope(type="linear", factor=4) == linear
    assert rope(rope_type="dynamic", factor=2.0) == RopeConfig(5e5, "dynamic", 2.0, 4096)
    assert rope(rope_type="default") == RopeConfig(5e5)
    llama3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 1024}
    assert rope(rope_type="llama3", **llama3) == RopeConfig(
        5e5, "llama3", 8.0, 1024, low_freq_factor=1.0, high_freq_factor=4.0
    )
    yarn = {
        "beta_fast": 16,
        "beta_slow": 2,
        "attention_factor": 1.5,
        "mscale": 0.5,
        "mscale_all_dim": 0.7,
        "truncate": False,
    }
    assert rope(type="yarn", factor=4, original_max_position_embeddings=1024, **yarn) == RopeConfig(
        5e5,
        "yarn",
        4.0,
        1024,
        beta_fast=16,
        beta_slow=2,
        attention_factor=1.5,
        mscale=0.5,
        mscale_all_dim=0.7,
        truncate=False,
    )
    assert rope(rope_type="yarn", factor=None, original_max_position_embeddings=1024).factor == 4.0


def test_both_forms_of_rope_give_the_same():
    scaling = {"rope_type": "linear", "factor": 4.0}
    old = config(rope_theta=500_000.0, rope_scaling=scaling)
    assert model_config_from_hf(old) == model_config_from_hf(config(rope_parameters={**scaling, "rope_theta": 500_000.0}))
    old = config("gemma3_text", rope_theta=2e6, rope_local_base_freq=2e4, rope_scaling=scaling)
    by_type = {
        "full_attention": {**scaling, "rope_theta": 2e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    }
    assert model_config_from_hf(old) == model_config_from_hf(config("gemma3_text", rope_parameters=by_type))


@pytest.mark.parametrize(
    ("scaling", "positions"),
    [
        ({"rope_type": "default"}, 4096),
        ({"rope_type": "linear", "factor": 4.0}, 4096),
        ({"rope_type": "dynamic", "factor": 2.0}, 8192),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}, 16_384),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
        ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024}, 4096),
    ],
)
def test_positions_that_can_be_served(scaling, positions):
    assert model_config_from_hf(config(max_position_embeddings=4096, rope_scaling=scaling)).max_positions == positions


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "mamba"}, "'mamba': known are gemma3, gemma3_text, llama"),
        ({"hidden_act": "relu"}, "hidden_act 'relu': known are"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config .*'gptq'"),
        ({"torch_dtype": "float8_e4m3fn"}, "torch_dtype 'float8_e4m3fn'"),
        ({"dtype": "int8"}, "dtype 'int8'"),
        ({"layer_types": ["chunked_attention"] * 4}, None),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope type 'longrope': known are default"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0, "alpha": 1000.0}}, r"rope_scaling\.alpha"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 7}}, "'dynamic'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}}, r"rope_scaling\.partial_rotary"),
        ({"rope_parameters": {"full_attention": {}, "sliding_attention": {}}}, "rope_parameters differs by layer type"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ],
)
def test_options_that_are_not_run_are_refused_by_name(changes, named):
    changed = config(**changes) | ({"model_type": "mistral"} if "layer_types" in changes else {})
    with pytest.raises(UnsupportedModel, match=named or "'chunked_attention' of layer_types"):
        model_config_from_hf(changed)


@pytest.mark.parametrize(
    "key", ["model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"]
)
def test_a_missing_size_is_named(key):
    incomplete = config()
    del incomplete[key]
    with pytest.raises(ModelFileError, match=f"{key} is missing"):
        model_config_from_hf(incomplete)
    with pytest.raises(ModelFileError, match=f"{key} is null"):
        model_config_from_hf(config() | {key: None})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"vocab_size": "1000"}, "vocab_size must be a number, got '1000'"),
        ({"vocab_size": 0}, "vocab_size must be a whole number of at least 1"),
        ({"vocab_size": 10.5}, "vocab_size must be a whole number"),
        ({"vocab_size": True}, "vocab_size must be a number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a number"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps must be a number"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be above 0"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"hidden_act": 3}, "hidden_act must be a string"),
        ({"rope_scaling": "yarn"}, "rope_scaling must be an object"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be whole numbers"),
        ({"eos_token_id": [1, -1]}, "eos_token_id must be whole numbers"),
        ({"num_key_value_heads": 4}, "6 attention heads cannot share 4"),
        ({"num_attention_heads": 7, "num_key_value_heads": 7}, "head_dim is missing"),
        ({"head_dim": 15}, "head_dim must be even"),
        ({"rope_scaling": {"factor": 2.0}}, r"rope_scaling\.rope_type is missing"),
        ({"rope_scaling": {"rope_type": "linear"}}, r"rope_scaling\.factor is missing"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": -1}}, r"rope_scaling\.factor must be above 0"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, r"rope_scaling\.low_freq_factor is missing"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}},
            "below high_freq",
        ),
        ({"model_type": "mistral", "layer_types": ["full_attention"]}, "layer_types has 1 entries for 4 layers"),
        ({"model_type": "mistral", "layer_types": "full_attention"}, "layer_types must be a list of strings"),
        ({"model_type": "qwen2", "layer_types": ["sliding_attention"] * 4}, "no sliding window is set"),
        ({"model_type": "mixtral", "num_experts_per_tok": 9}, "num_experts_per_tok 9 is above 8"),
        ({"model_type": "gemma3"}, "text_config is missing"),
        ({"model_type": "gemma3", "text_config": {}}, r"text_config\.\w+ is missing"),
        ({"model_type": "gemma3_text", "rope_parameters": {"rope_type": "default"}}, "must be keyed by layer type"),
    ],
)
def test_values_that_make_no_sense_are_named(changes, named):
    with pytest.raises(ModelFileError, match=named):
        model_config_from_hf(config(**changes))


JSON_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.floats(), st.text(max_size=4), st.lists(st.integers(), max_size=2),
    st.dictionaries(st.sampled_from(["rope_type", "type", "factor", "full_attention"]), st.text(max_size=3), max_size=2),
)  # fmt: skip


@given(st.sampled_from(sorted(READERS)), st.data())
def test_any_value_of_any_key_is_read_or_refused_with_a_typed_error(model_type, data):
    keys = sorted({*SIZES, *DEFAULTS[model_type], "rope_scaling", "rope_parameters", "layer_types", "eos_token_id", "dtype"})
    changes = data.draw(st.dictionaries(st.sampled_from(keys), JSON_VALUES, max_size=3))
    with contextlib.suppress(ModelFileError, UnsupportedModel):
        assert model_config_from_hf(config(model_type, **changes)).num_layers > 0


def test_reading_needs_no_torch():
    program = (
        "import json, sys; from argosy.models.hf_config import model_config_from_hf;"
        f"model_config_from_hf(json.loads({json.dumps(json.dumps(config()))})); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
