"""Reading `config.json`: which field decides what, defaults that released files leave out, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.cost.catalogue import find_model
from argosy.cost.model_arithmetic import parameter_count
from argosy.cost.model_spec import DenseFfn, Gqa, LinearAttention, Mla, MoeFfn, QkNorm, SparseIndex
from argosy.cost.spec_from_hf import spec_from_hf
from argosy.errors import ArgosyError, ConfigError, UnsupportedModel

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}


def test_a_plain_decoder() -> None:
    spec = spec_from_hf(LLAMA, "eight")
    ((count, layer),) = spec.layers
    assert (spec.name, spec.num_layers, count, spec.hidden_size) == ("eight", 32, 32, 4096)
    assert layer.attention == Gqa(32, 8, 128)
    assert layer.ffn == DenseFfn(14336)
    assert not spec.tied_embeddings
    assert parameter_count(spec) == 8_030_261_248


def test_the_file_names_itself() -> None:
    assert spec_from_hf({**LLAMA, "_name_or_path": "org/model"}).name == "org/model"
    assert spec_from_hf(LLAMA).name == "llama"


def test_head_size_is_the_stated_one_where_there_is_one() -> None:
    """Mistral Nemo has heads of 128, not 5120 / 32 = 160; null means not stated."""
    config = {**LLAMA, "model_type": "mistral", "hidden_size": 5120}
    stated = next(spec_from_hf({**config, "head_dim": 128}).each_layer()).attention
    derived = next(spec_from_hf({**config, "head_dim": None}).each_layer()).attention
    assert isinstance(stated, Gqa)
    assert isinstance(derived, Gqa)
    assert (stated.head_dim, derived.head_dim) == (128, 160)


def test_multi_head_where_no_kv_heads_are_stated() -> None:
    attention = next(spec_from_hf({k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}).each_layer()).attention
    assert isinstance(attention, Gqa)
    assert attention.kv_heads == 32


def test_biases_and_norms_of_the_families() -> None:
    def attention_of(**changes: Any) -> Gqa:
        attention = next(spec_from_hf({**LLAMA, **changes}).each_layer()).attention
        assert isinstance(attention, Gqa)
        return attention

    qwen2, qwen3 = attention_of(model_type="qwen2"), attention_of(model_type="qwen3")
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.qk_norm) == (True, False, QkNorm.NONE)
    assert (qwen3.qkv_bias, qwen3.output_bias, qwen3.qk_norm) == (False, False, QkNorm.PER_HEAD)
    biased = attention_of(attention_bias=True)
    assert (biased.qkv_bias, biased.output_bias) == (True, True)


def test_gpt_oss_has_sinks_and_biases_everywhere() -> None:
    layer = next(spec_from_hf({**LLAMA, "model_type": "gpt_oss", "num_local_experts": 4}).each_layer())
    assert layer.attention == Gqa(32, 8, 64, window=128, qkv_bias=True, output_bias=True, sinks=True)
    assert layer.ffn == MoeFfn(4, 4, 14336, bias=True, router_bias=True)


def windows(config: dict[str, Any]) -> list[int | None]:
    return [layer.attention.window for layer in spec_from_hf(config).each_layer() if isinstance(layer.attention, Gqa)]


def test_which_layers_are_windowed() -> None:
    short = {**LLAMA, "num_hidden_layers": 8, "sliding_window": 100}
    assert windows(short) == [None] * 8
    assert windows({**short, "model_type": "mistral"}) == [100] * 8
    assert windows({**short, "model_type": "mistral", "sliding_window": None}) == [None] * 8
    assert windows({**short, "model_type": "gemma2"}) == [100, None] * 4
    assert windows({**short, "model_type": "gemma3_text"}) == [100] * 5 + [None] + [100] * 2
    assert windows({**short, "model_type": "gemma3_text", "sliding_window_pattern": 4}) == [100, 100, 100, None] * 2
    assert windows({**short, "model_type": "gpt_oss", "num_local_experts": 4}) == [100, None] * 4
    assert windows({**short, "model_type": "qwen2"}) == [None] * 8
    assert (
        windows({**short, "model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 6})
        == [None] * 6 + [100] * 2
    )


def test_stated_layer_types_overrule_the_pattern() -> None:
    kinds = ["full_attention", "full_attention", "sliding_attention", "full_attention"]
    config = {**LLAMA, "model_type": "gemma3_text", "num_hidden_layers": 4, "sliding_window": 64, "layer_types": kinds}
    assert windows(config) == [None, None, 64, None]
    with pytest.raises(ConfigError, match="'layer_types' must be a list of 5"):
        spec_from_hf({**config, "num_hidden_layers": 5})
    with pytest.raises(UnsupportedModel, match="layer type 'mamba' is not counted"):
        spec_from_hf({**config, "layer_types": [*kinds[:3], "mamba"]})


def test_a_multi_modal_file_carries_its_decoder_inside() -> None:
    """Gemma 3 4B as released: heads, their size and the vocabulary are left to the family's defaults."""
    config = {
        "model_type": "gemma3",
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "model_type": "gemma3_text",
            "num_hidden_layers": 34,
            "sliding_window": 1024,
        },
        "vision_config": {"hidden_size": 1152},
    }
    assert parameter_count(spec_from_hf(config)) == parameter_count(find_model("Gemma-3-4B")) == 3_880_263_168


def test_tying_stated_outside_the_decoder_holds() -> None:
    inner = {key: value for key, value in LLAMA.items() if key != "model_type"} | {"model_type": "qwen3"}
    assert spec_from_hf({"model_type": "vl", "tie_word_embeddings": True, "text_config": inner}).tied_embeddings
    assert not spec_from_hf({"model_type": "vl", "text_config": inner}).tied_embeddings


DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 2,
    "num_nextn_predict_layers": 1,
}


def test_latent_attention_and_first_dense_layers() -> None:
    spec = spec_from_hf(DEEPSEEK)
    (dense_count, dense), (moe_count, moe) = spec.layers
    assert (dense_count, moe_count, spec.mtp_layers) == (2, 3, 1)
    assert dense.attention == moe.attention == Mla(4, 24, 16, 8, 4, 8)
    assert dense.ffn == DenseFfn(128)
    assert moe.ffn == MoeFfn(8, 2, 32, shared_size=64, router_bias=True)
    attention = next(spec_from_hf({**DEEPSEEK, "q_lora_rank": None}).each_layer()).attention
    assert isinstance(attention, Mla)
    assert attention.q_lora is None


def test_sparse_attention_has_an_indexer() -> None:
    sparse = {**DEEPSEEK, "index_topk": 16, "index_head_dim": 8, "index_n_heads": 2}
    attention = next(spec_from_hf({**sparse, "model_type": "glm_moe_dsa"}).each_layer()).attention
    assert isinstance(attention, Mla)
    assert attention.index == SparseIndex(2, 8, 16)
    with pytest.raises(UnsupportedModel, match="indexer shared between layers"):
        spec_from_hf({**sparse, "model_type": "glm_moe_dsa", "index_topk_freq": 4})
    with pytest.raises(UnsupportedModel, match="attention_bias is not counted"):
        spec_from_hf({**DEEPSEEK, "attention_bias": True})


def test_a_hybrid_alternates_linear_and_full_attention() -> None:
    config = {
        **LLAMA,
        "model_type": "qwen3_next",
        "num_hidden_layers": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 16,
    }
    layers = list(spec_from_hf(config).each_layer())
    kinds = [type(layer.attention) for layer in layers]
    assert kinds == [LinearAttention, LinearAttention, LinearAttention, Gqa] * 2
    assert layers[0].ffn == MoeFfn(4, 2, 32, shared_size=16, shared_gate=True)
    full = layers[3].attention
    assert isinstance(full, Gqa)
    assert full.output_gate


def test_llama_4_alternates_experts_and_chunks() -> None:
    config = {**LLAMA, "model_type": "llama4_text", "num_hidden_layers": 8, "num_local_experts": 4}
    layers = list(spec_from_hf({**config, "interleave_moe_layer_step": 2}).each_layer())
    assert [isinstance(layer.ffn, MoeFfn) for layer in layers] == [False, True] * 4
    assert windows({**config, "interleave_moe_layer_step": 2}) == [8192, 8192, 8192, None] * 2
    assert all(isinstance(layer.ffn, MoeFfn) for layer in spec_from_hf(config).each_layer())


def test_gemma_4_with_per_layer_inputs_is_refused_rather_than_miscounted() -> None:
    config = {**LLAMA, "model_type": "gemma4_text"}
    with pytest.raises(UnsupportedModel, match="hidden_size_per_layer_input"):
        spec_from_hf(config)
    with pytest.raises(UnsupportedModel, match="num_kv_shared_layers"):
        spec_from_hf({**config, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 10})


@pytest.mark.parametrize("kind", ["mamba2", None, 7, "Llama"])
def test_an_unknown_kind_is_refused_with_the_known_ones(kind: Any) -> None:
    with pytest.raises(UnsupportedModel, match=r"deepseek_v3.*llama.*qwen3_moe"):
        spec_from_hf({**LLAMA, "model_type": kind})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "has no 'hidden_size'"),
        ({"hidden_size": 0}, "'hidden_size' must be an integer of at least 1, got 0"),
        ({"hidden_size": "4096"}, "'hidden_size' must be an integer"),
        ({"hidden_size": 4096.0}, "'hidden_size' must be an integer"),
        ({"num_hidden_layers": True}, "'num_hidden_layers' must be an integer"),
        ({"num_key_value_heads": 5}, "5 KV heads do not divide 32 attention heads"),
        ({"num_attention_heads": 48}, "48 heads do not divide the hidden size"),
        ({"tie_word_embeddings": "yes"}, "'tie_word_embeddings' must be true or false"),
    ],
)
def test_fields_that_are_wrong_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec_from_hf({**LLAMA, **change}, "some model")


def test_gpt_2_heads_must_divide() -> None:
    with pytest.raises(ConfigError, match="5 heads do not divide the hidden size 48"):
        spec_from_hf({"model_type": "gpt2", "n_embd": 48, "n_head": 5, "n_layer": 1, "n_positions": 8, "vocab_size": 10})


VALUES = st.one_of(st.none(), st.booleans(), st.integers(-2, 300), st.text(max_size=3), st.lists(st.integers(), max_size=2))


@given(st.sampled_from([LLAMA, DEEPSEEK]), st.dictionaries(st.sampled_from(sorted({*LLAMA, *DEEPSEEK, "head_dim"})), VALUES))
def test_any_damage_gives_a_shape_or_one_line(base: dict[str, Any], damage: dict[str, Any]) -> None:
    try:
        count, message = parameter_count(spec_from_hf({**base, **damage})), ""
    except ArgosyError as error:
        count, message = 1, error.message
    assert "\n" not in message
    assert count > 0
