"""A Hugging Face `config.json` as the shape the cost model works with.

Each family below states which of its fields decide the shape, and the defaults that its released configurations leave out.
Vision and audio towers are outside the shape: only the decoder is counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from argosy.cost.config_fields import ConfigFields
from argosy.cost.model_spec import (
    DenseFfn,
    Gqa,
    Layer,
    LinearAttention,
    Mla,
    ModelSpec,
    MoeFfn,
    QkNorm,
    SparseIndex,
)
from argosy.errors import ConfigError, UnsupportedModel

SLIDING, CHUNKED, FULL, LINEAR = "sliding_attention", "chunked_attention", "full_attention", "linear_attention"


def spec_from_hf(config: Mapping[str, Any], name: str = "") -> ModelSpec:
    """The shape of the decoder that a `config.json` describes.

    Args:
        config: the parsed file; multi-modal ones carry the decoder under `text_config`.
        name: of the resulting spec; by default what the file calls itself.

    Raises:
        UnsupportedModel: an unknown `model_type` (the known ones are named), or a variant of one that is not counted.
        ConfigError: a field is missing or impossible.
    """
    outer = config.get("model_type")
    inner = config.get("text_config")
    fields: Mapping[str, Any] = config
    if isinstance(inner, Mapping):
        tied = {"tie_word_embeddings": config["tie_word_embeddings"]} if "tie_word_embeddings" in config else {}
        fields = {"model_type": outer, **tied, **inner}
    kind = fields.get("model_type")
    if not isinstance(kind, str) or kind not in _FAMILIES:
        known = ", ".join(sorted(_FAMILIES))
        raise UnsupportedModel(f"model_type {kind!r} is not known to the cost model; it knows {known}")
    title = name or str(config.get("_name_or_path") or kind)
    return _FAMILIES[kind](ConfigFields(fields, f"configuration of {title}"), title)


def runs_of(layers: Iterable[Layer]) -> tuple[tuple[int, Layer], ...]:
    """Equal neighbours counted together."""
    return tuple((sum(1 for _ in group), layer) for layer, group in itertools.groupby(layers))


def _spec(fields: ConfigFields, title: str, layers: Iterable[Layer], *, tied: bool, vocab: int | None = None) -> ModelSpec:
    return ModelSpec(
        name=title,
        vocab_size=fields.integer("vocab_size", vocab),
        hidden_size=fields.integer("hidden_size"),
        layers=runs_of(layers),
        tied_embeddings=fields.flag("tie_word_embeddings", tied),
        max_positions=fields.integer("max_position_embeddings", 131072),
        mtp_layers=fields.integer(
            "num_nextn_predict_layers", fields.integer("mtp_num_hidden_layers", 0, minimum=0), minimum=0
        ),
    )


def _gqa(
    fields: ConfigFields, *, heads: int | None = None, kv_heads: int | None = None, head_dim: int = 0, **more: Any
) -> Gqa:
    """Heads and their size; `head_dim` is the family's own default, 0 for hidden size / heads."""
    count = fields.integer("num_attention_heads", heads)
    shared = fields.integer("num_key_value_heads", kv_heads or count)
    if count % shared:
        raise ConfigError(f"{fields.origin}: {shared} KV heads do not divide {count} attention heads")
    if not fields.has("head_dim") and not head_dim:
        if fields.integer("hidden_size") % count:
            raise ConfigError(f"{fields.origin}: {count} heads do not divide the hidden size, and there is no 'head_dim'")
        head_dim = fields.integer("hidden_size") // count
    return Gqa(heads=count, kv_heads=shared, head_dim=fields.integer("head_dim", head_dim), **more)


def _layer_types(fields: ConfigFields, default: Callable[[int], str]) -> list[str]:
    count = fields.integer("num_hidden_layers")
    kinds = fields.sequence("layer_types", count) or [default(index) for index in range(count)]
    unknown = sorted({str(kind) for kind in kinds} - {SLIDING, CHUNKED, FULL, LINEAR})
    if unknown:
        raise UnsupportedModel(
            f"{fields.origin}: layer type {unknown[0]!r} is not counted; known: full, sliding, chunked, linear"
        )
    return kinds


def _windowed(fields: ConfigFields, kinds: list[str], attention: dict[str, Any], window_key: str, window: int) -> list[Gqa]:
    full = _gqa(fields, **attention)
    local = _gqa(fields, **attention, window=fields.integer(window_key, window))
    return [full if kind == FULL else local for kind in kinds]


def _biases(fields: ConfigFields, default: bool = False) -> dict[str, bool]:
    biased = fields.flag("attention_bias", default)
    return {"qkv_bias": biased, "output_bias": biased}


def _llama(fields: ConfigFields, title: str) -> ModelSpec:
    ffn = DenseFfn(fields.integer("intermediate_size"), bias=fields.flag("mlp_bias", False))
    layer = Layer(_gqa(fields, **_biases(fields)), ffn)
    return _spec(fields, title, [layer] * fields.integer("num_hidden_layers"), tied=False)


def _mistral_window(fields: ConfigFields) -> int | None:
    return fields.integer("sliding_window") if fields.has("sliding_window") else None


def _mistral(fields: ConfigFields, title: str) -> ModelSpec:
    attention = _gqa(fields, kv_heads=8, window=_mistral_window(fields))
    layer = Layer(attention, DenseFfn(fields.integer("intermediate_size")))
    return _spec(fields, title, [layer] * fields.integer("num_hidden_layers"), tied=False)


def _mixtral(fields: ConfigFields, title: str) -> ModelSpec:
    attention = _gqa(fields, kv_heads=8, window=_mistral_window(fields))
    ffn = MoeFfn(
        experts=fields.integer("num_local_experts", 8),
        top_k=fields.integer("num_experts_per_tok", 2),
        size=fields.integer("intermediate_size"),
    )
    return _spec(fields, title, [Layer(attention, ffn)] * fields.integer("num_hidden_layers"), tied=False)


def _qwen_attention(fields: ConfigFields, attention: dict[str, Any]) -> list[Gqa]:
    """Qwen 2 and 3 turn windows on by `use_sliding_window`, for the layers from `max_window_layers` on."""
    first = fields.integer("max_window_layers", 28, minimum=0)
    windows = fields.flag("use_sliding_window", False) and fields.has("sliding_window")
    kinds = _layer_types(fields, lambda index: SLIDING if windows and index >= first else FULL)
    return _windowed(fields, kinds, attention, "sliding_window", 4096)


def _qwen2(fields: ConfigFields, title: str) -> ModelSpec:
    ffn = DenseFfn(fields.integer("intermediate_size"))
    return _spec(fields, title, [Layer(a, ffn) for a in _qwen_attention(fields, {"qkv_bias": True})], tied=False)


def _qwen3(fields: ConfigFields, title: str) -> ModelSpec:
    ffn = DenseFfn(fields.integer("intermediate_size"))
    attention = {"head_dim": 128, "qk_norm": QkNorm.PER_HEAD, **_biases(fields)}
    return _spec(fields, title, [Layer(a, ffn) for a in _qwen_attention(fields, attention)], tied=False)


def _qwen_ffn(fields: ConfigFields, *, shared: bool) -> list[DenseFfn | MoeFfn]:
    """Experts in every `decoder_sparse_step`-th layer but those in `mlp_only_layers`."""
    experts = MoeFfn(
        experts=fields.integer("num_experts"),
        top_k=fields.integer("num_experts_per_tok"),
        size=fields.integer("moe_intermediate_size"),
        shared_size=fields.integer("shared_expert_intermediate_size", 0, minimum=0) if shared else 0,
        shared_gate=shared,
    )
    step = fields.integer("decoder_sparse_step", 1)
    dense_layers = fields.sequence("mlp_only_layers") or []
    return [
        experts if index not in dense_layers and (index + 1) % step == 0 else DenseFfn(fields.integer("intermediate_size"))
        for index in range(fields.integer("num_hidden_layers"))
    ]


def _qwen2_moe(fields: ConfigFields, title: str) -> ModelSpec:
    attention = _qwen_attention(fields, {"qkv_bias": fields.flag("qkv_bias", True)})
    return _spec(fields, title, map(Layer, attention, _qwen_ffn(fields, shared=True)), tied=False)


def _qwen3_moe(fields: ConfigFields, title: str) -> ModelSpec:
    attention = _qwen_attention(fields, {"qk_norm": QkNorm.PER_HEAD, **_biases(fields)})
    return _spec(fields, title, map(Layer, attention, _qwen_ffn(fields, shared=False)), tied=False)


def _hybrid_attention(fields: ConfigFields) -> list[Gqa | LinearAttention]:
    """Qwen3-Next and Qwen3.5: gated delta rule, with gated full attention in every `full_attention_interval`-th layer."""
    full = _gqa(fields, head_dim=256, qk_norm=QkNorm.PER_HEAD, output_gate=True, **_biases(fields))
    linear = LinearAttention(
        heads=fields.integer("linear_num_value_heads", 32),
        kv_heads=fields.integer("linear_num_key_heads", 16),
        key_dim=fields.integer("linear_key_head_dim", 128),
        value_dim=fields.integer("linear_value_head_dim", 128),
        conv_width=fields.integer("linear_conv_kernel_dim", 4),
    )
    interval = fields.integer("full_attention_interval", 4)
    kinds = _layer_types(fields, lambda index: FULL if (index + 1) % interval == 0 else LINEAR)
    return [full if kind == FULL else linear for kind in kinds]


def _hybrid_moe(fields: ConfigFields, title: str) -> ModelSpec:
    return _spec(fields, title, map(Layer, _hybrid_attention(fields), _qwen_ffn(fields, shared=True)), tied=False)


def _hybrid_dense(fields: ConfigFields, title: str) -> ModelSpec:
    ffn = DenseFfn(fields.integer("intermediate_size"))
    return _spec(fields, title, [Layer(attention, ffn) for attention in _hybrid_attention(fields)], tied=False)


def _gemma2(fields: ConfigFields, title: str) -> ModelSpec:
    kinds = _layer_types(fields, lambda index: FULL if index % 2 else SLIDING)
    attention = _windowed(fields, kinds, {"head_dim": 256, **_biases(fields)}, "sliding_window", 4096)
    ffn = DenseFfn(fields.integer("intermediate_size"))
    return _spec(fields, title, [Layer(a, ffn, norms=4) for a in attention], tied=True, vocab=256000)


def _gemma3(fields: ConfigFields, title: str) -> ModelSpec:
    """Released multi-modal configurations leave heads, their size and the vocabulary to the defaults of the family."""
    pattern = fields.integer("sliding_window_pattern", 6)
    kinds = _layer_types(fields, lambda index: SLIDING if (index + 1) % pattern else FULL)
    shape = {"heads": 8, "kv_heads": 4, "head_dim": 256, "qk_norm": QkNorm.PER_HEAD, **_biases(fields)}
    attention = _windowed(fields, kinds, shape, "sliding_window", 4096)
    ffn = DenseFfn(fields.integer("intermediate_size", 9216))
    return _spec(fields, title, [Layer(a, ffn, norms=4) for a in attention], tied=True, vocab=262208)


def _gemma4(fields: ConfigFields, title: str) -> ModelSpec:
    """Full layers have heads of their own, experts stand beside a dense block; per-layer inputs are refused."""
    for key in ("hidden_size_per_layer_input", "num_kv_shared_layers"):
        if fields.integer(key, 256 if key.startswith("hidden") else 0, minimum=0):
            raise UnsupportedModel(f"{fields.origin}: Gemma 4 with {key} is not counted; only variants that set it to 0 are")
    kinds = _layer_types(fields, lambda index: SLIDING if (index + 1) % 6 else FULL)
    local = _gqa(fields, head_dim=256, qk_norm=QkNorm.PER_HEAD, window=fields.integer("sliding_window", 512))
    keys_are_values = fields.flag("attention_k_eq_v", False)
    kv_heads = fields.integer("num_global_key_value_heads", local.kv_heads) if keys_are_values else local.kv_heads
    head_dim = fields.integer("global_head_dim", 512)
    full = Gqa(local.heads, kv_heads, head_dim, qk_norm=QkNorm.PER_HEAD, keys_are_values=keys_are_values)
    dense_size = fields.integer("intermediate_size")
    ffn: DenseFfn | MoeFfn = DenseFfn(dense_size)
    norms = 4
    if fields.flag("enable_moe_block", False):
        experts, top_k = fields.integer("num_experts"), fields.integer("top_k_experts")
        size = fields.integer("moe_intermediate_size")
        ffn = MoeFfn(experts, top_k, size, shared_size=dense_size, router_bias=True, router_scale=True)
        norms = 7
    layers = [Layer(full if kind == FULL else local, ffn, norms=norms) for kind in kinds]
    return _spec(fields, title, layers, tied=True, vocab=262144)


def _gpt_oss(fields: ConfigFields, title: str) -> ModelSpec:
    kinds = _layer_types(fields, lambda index: FULL if index % 2 else SLIDING)
    shape = {"head_dim": 64, "sinks": True, **_biases(fields, True)}
    attention = _windowed(fields, kinds, shape, "sliding_window", 128)
    top_k = fields.integer("num_experts_per_tok", fields.integer("experts_per_token", 4))
    ffn = MoeFfn(
        fields.integer("num_local_experts"), top_k, fields.integer("intermediate_size"), bias=True, router_bias=True
    )
    return _spec(fields, title, [Layer(a, ffn) for a in attention], tied=False)


def _llama4(fields: ConfigFields, title: str) -> ModelSpec:
    """Chunked attention where positions are rotated, full attention in every fourth layer; experts every so many layers."""
    count = fields.integer("num_hidden_layers")
    rotated = fields.sequence("no_rope_layers", count) or [int((index + 1) % 4 != 0) for index in range(count)]
    kinds = _layer_types(fields, lambda index: CHUNKED if rotated[index] else FULL)
    attention = _windowed(fields, kinds, {"kv_heads": 8, **_biases(fields)}, "attention_chunk_size", 8192)
    size, step = fields.integer("intermediate_size"), fields.integer("interleave_moe_layer_step", 1)
    experts = fields.integer("num_local_experts", 16), fields.integer("num_experts_per_tok", 1)
    sparse, dense = MoeFfn(*experts, size, shared_size=size), DenseFfn(fields.integer("intermediate_size_mlp", 16384))
    with_experts = fields.sequence("moe_layers") or list(range(step - 1, count, step))
    ffn = [sparse if index in with_experts else dense for index in range(count)]
    return _spec(fields, title, map(Layer, attention, ffn), tied=False)


def _minimax_m2(fields: ConfigFields, title: str) -> ModelSpec:
    ffn = MoeFfn(
        experts=fields.integer("num_local_experts"),
        top_k=fields.integer("num_experts_per_tok"),
        size=fields.integer("intermediate_size"),
        router_bias=fields.flag("use_routing_bias", True),
    )
    norm = QkNorm.PER_PROJECTION if fields.flag("use_qk_norm", True) else QkNorm.NONE
    return _spec(fields, title, [Layer(_gqa(fields, qk_norm=norm), ffn)] * fields.integer("num_hidden_layers"), tied=False)


def _deepseek_ffn(fields: ConfigFields, *, router_bias: bool, first_dense: int) -> list[DenseFfn | MoeFfn]:
    """The first layers dense, then experts with shared ones among them in every `moe_layer_freq`-th layer."""
    size = fields.integer("moe_intermediate_size")
    experts = MoeFfn(
        experts=fields.integer("n_routed_experts"),
        top_k=fields.integer("num_experts_per_tok"),
        size=size,
        shared_size=size * fields.integer("n_shared_experts", 0, minimum=0),
        router_bias=router_bias,
    )
    dense = DenseFfn(fields.integer("intermediate_size"))
    first, step = fields.integer("first_k_dense_replace", first_dense, minimum=0), fields.integer("moe_layer_freq", 1)
    return [
        experts if index >= first and index % step == 0 else dense for index in range(fields.integer("num_hidden_layers"))
    ]


def _mla(fields: ConfigFields, index: SparseIndex | None = None) -> Mla:
    if fields.flag("attention_bias", False):
        raise UnsupportedModel(f"{fields.origin}: latent attention with attention_bias is not counted")
    return Mla(
        heads=fields.integer("num_attention_heads"),
        q_lora=fields.integer("q_lora_rank") if fields.has("q_lora_rank") else None,
        kv_lora=fields.integer("kv_lora_rank", 512),
        nope_dim=fields.integer("qk_nope_head_dim", 128),
        rope_dim=fields.integer("qk_rope_head_dim", 64),
        v_dim=fields.integer("v_head_dim", 128),
        index=index,
    )


def _deepseek_v2(fields: ConfigFields, title: str) -> ModelSpec:
    ffn = _deepseek_ffn(fields, router_bias=False, first_dense=0)
    return _spec(fields, title, [Layer(_mla(fields), block) for block in ffn], tied=False)


def _deepseek_v3(fields: ConfigFields, title: str) -> ModelSpec:
    ffn = _deepseek_ffn(fields, router_bias=True, first_dense=3)
    return _spec(fields, title, [Layer(_mla(fields), block) for block in ffn], tied=False)


def _sparse_mla(fields: ConfigFields, title: str) -> ModelSpec:
    """Latent attention whose indexer runs in every layer; not schedules that share one layer's choice with the next."""
    kinds = fields.sequence("indexer_types") or []
    if fields.integer("index_topk_freq", 1) > 1 or fields.has("index_topk_pattern") or "shared" in kinds:
        raise UnsupportedModel(f"{fields.origin}: an indexer shared between layers is not counted")
    index = SparseIndex(
        heads=fields.integer("index_n_heads", 32 if fields.text("model_type") == "glm_moe_dsa" else 64),
        dim=fields.integer("index_head_dim", 128),
        top_k=fields.integer("index_topk", 2048),
    )
    ffn = _deepseek_ffn(fields, router_bias=True, first_dense=3)
    return _spec(fields, title, [Layer(_mla(fields, index), block) for block in ffn], tied=False)


def _glm4_moe(fields: ConfigFields, title: str) -> ModelSpec:
    norm = QkNorm.PER_HEAD if fields.flag("use_qk_norm", False) else QkNorm.NONE
    attention = _gqa(fields, qkv_bias=fields.flag("attention_bias", False), qk_norm=norm)
    ffn = _deepseek_ffn(fields, router_bias=True, first_dense=1)
    return _spec(fields, title, [Layer(attention, block) for block in ffn], tied=False)


def _gpt2(fields: ConfigFields, title: str) -> ModelSpec:
    """Learned positions, LayerNorm with bias, biases everywhere, an ungated feed-forward four times as wide by default."""
    hidden, heads = fields.integer("n_embd"), fields.integer("n_head")
    if hidden % heads:
        raise ConfigError(f"{fields.origin}: {heads} heads do not divide the hidden size {hidden}")
    attention = Gqa(heads, heads, hidden // heads, qkv_bias=True, output_bias=True)
    layer = Layer(attention, DenseFfn(fields.integer("n_inner", 4 * hidden), gated=False, bias=True))
    positions = fields.integer("n_positions")
    return ModelSpec(
        name=title,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        layers=((fields.integer("n_layer"), layer),),
        tied_embeddings=fields.flag("tie_word_embeddings", True),
        max_positions=positions,
        learned_positions=positions,
        norm_has_bias=True,
    )


_FAMILIES: Mapping[str, Callable[[ConfigFields, str], ModelSpec]] = {
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _deepseek_v3,
    "deepseek_v32": _sparse_mla,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3,
    "gemma4": _gemma4,
    "gemma4_text": _gemma4,
    "glm4_moe": _glm4_moe,
    "glm_moe_dsa": _sparse_mla,
    "gpt2": _gpt2,
    "gpt_oss": _gpt_oss,
    "kimi_k2": _deepseek_v3,
    "kimi_k25": _deepseek_v3,
    "llama": _llama,
    "llama4": _llama4,
    "llama4_text": _llama4,
    "minimax_m2": _minimax_m2,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_5": _hybrid_dense,
    "qwen3_5_moe": _hybrid_moe,
    "qwen3_5_moe_text": _hybrid_moe,
    "qwen3_5_text": _hybrid_dense,
    "qwen3_moe": _qwen3_moe,
    "qwen3_next": _hybrid_moe,
}
