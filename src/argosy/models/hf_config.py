"""Reading a Hugging Face `config.json`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from argosy.errors import ModelFileError, UnsupportedModel
from argosy.models.config import Activation, ModelConfig, MoeConfig
from argosy.models.hf_fields import Fields
from argosy.models.hf_rope import extended_positions, read_rope, read_rope_by_layer_type

ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_python_tanh": "gelu_tanh"}
)
"""Our names of the activations."""

DTYPES = ("float32", "float16", "bfloat16")

_COMMON: Mapping[str, Any] = {
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
}
_SILU: Mapping[str, Any] = {**_COMMON, "hidden_act": "silu"}
_QWEN: Mapping[str, Any] = {**_SILU, "max_position_embeddings": 32_768, "sliding_window": 4096}
DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama": {**_SILU, "max_position_embeddings": 2048},
        "mistral": {**_SILU, "max_position_embeddings": 131_072, "num_key_value_heads": 8, "sliding_window": 4096},
        "qwen2": {**_QWEN, "num_key_value_heads": 32, "max_window_layers": 28},
        "qwen3": {**_QWEN, "num_key_value_heads": 32, "max_window_layers": 28, "head_dim": 128},
        "qwen3_moe": {
            **_QWEN,
            "num_key_value_heads": 4,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "norm_topk_prob": False,
            "decoder_sparse_step": 1,
        },
        "mixtral": {
            **_SILU,
            "max_position_embeddings": 131_072,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1_000_000.0,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
        "gemma3_text": {
            **_COMMON,
            "vocab_size": 262_208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "max_position_embeddings": 131_072,
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "sliding_window_pattern": 6,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
            "use_bidirectional_attention": False,
        },
    }
)
"""What transformers takes a key to be where a configuration of that model type leaves it out."""


def model_config_from_hf(config: Mapping[str, Any]) -> ModelConfig:
    """The shape of a model from its `config.json`, as transformers 4 or 5 writes it.

    Raises:
        UnsupportedModel: the model type, or an option it sets, is not run here.
        ModelFileError: a key is missing or has a value that makes no sense.
    """
    model_type = Fields(config).text("model_type")
    if model_type == "gemma3":
        fields, model_type = _gemma3_text_fields(Fields(config)), "gemma3_text"
    elif model_type in READERS:
        fields = Fields(config, DEFAULTS[model_type])
    else:
        raise UnsupportedModel(f"unsupported model_type {model_type!r}: known are {', '.join(sorted([*READERS, 'gemma3']))}")
    quantization = fields.optional_object("quantization_config")
    if quantization is not None:
        method = quantization.raw("quant_method")
        raise UnsupportedModel(
            f"quantization_config (quant_method {method!r}) is not supported: use the unquantised checkpoint"
        )
    return READERS[model_type](fields)


def _gemma3_text_fields(config: Fields) -> Fields:
    """The text model of a vision-and-text configuration."""
    text = config.optional_object("text_config")
    if text is None:
        raise ModelFileError("config.json: text_config is missing")
    shared = ("eos_token_id", "bos_token_id", "torch_dtype", "dtype", "tie_word_embeddings", "quantization_config")
    outer = {key: config.values[key] for key in shared if key in config.values}
    return Fields({**outer, **text.values}, DEFAULTS["gemma3_text"], path=text.path)


def _llama(fields: Fields) -> ModelConfig:
    bias = fields.flag("attention_bias")
    return replace(_base(fields, "llama"), qkv_bias=bias, output_bias=bias, mlp_bias=fields.flag("mlp_bias"))


def _mistral(fields: Fields) -> ModelConfig:
    return replace(_base(fields, "llama"), layer_windows=_windows(fields, fields.optional_count("sliding_window")))


def _qwen2(fields: Fields) -> ModelConfig:
    return replace(_base(fields, "qwen2"), qkv_bias=True, layer_windows=_qwen_windows(fields))


def _qwen3(fields: Fields) -> ModelConfig:
    bias = fields.flag("attention_bias")
    windows = _qwen_windows(fields)
    return replace(_base(fields, "qwen3"), qkv_bias=bias, output_bias=bias, qk_norm=True, layer_windows=windows)


def _qwen3_moe(fields: Fields) -> ModelConfig:
    base = _base(fields, "qwen3_moe")
    dense, step = fields.ids("mlp_only_layers"), fields.count("decoder_sparse_step")
    moe = MoeConfig(
        num_experts=fields.count("num_local_experts" if "num_local_experts" in fields.values else "num_experts"),
        num_experts_per_token=fields.count("num_experts_per_tok"),
        intermediate_size=fields.count("moe_intermediate_size"),
        normalize_top_k=fields.flag("norm_topk_prob"),
        layers=tuple(i for i in range(base.num_layers) if i not in dense and (i + 1) % step == 0),
    )
    window = fields.optional_count("sliding_window") if fields.flag("use_sliding_window") else None
    bias = fields.flag("attention_bias")
    windows = _windows(fields, window)
    return replace(base, qkv_bias=bias, output_bias=bias, qk_norm=True, layer_windows=windows, moe=_checked(moe))


def _mixtral(fields: Fields) -> ModelConfig:
    base = _base(fields, "mixtral")
    moe = MoeConfig(
        num_experts=fields.count("num_local_experts"),
        num_experts_per_token=fields.count("num_experts_per_tok"),
        intermediate_size=base.intermediate_size,
        normalize_top_k=True,
        layers=tuple(range(base.num_layers)),
    )
    return replace(base, layer_windows=_windows(fields, fields.optional_count("sliding_window")), moe=_checked(moe))


def _gemma3(fields: Fields) -> ModelConfig:
    if fields.flag("use_bidirectional_attention"):
        raise UnsupportedModel(f"{fields.name('use_bidirectional_attention')} is not supported: attention here is causal")
    base = _base(fields, "gemma3", activation_key="hidden_activation")
    period = fields.count("sliding_window_pattern")
    sliding = [bool((i + 1) % period) for i in range(base.num_layers)]
    rope, rope_local = read_rope_by_layer_type(fields)
    bias = fields.flag("attention_bias")
    return replace(
        base,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
        layer_windows=_windows(fields, fields.optional_count("sliding_window"), sliding),
        rope=rope,
        rope_local=rope_local,
        max_positions=extended_positions(rope, base.max_positions),
        attention_scale=fields.positive("query_pre_attn_scalar") ** -0.5,
        norm_offset=1.0,
        embedding_scale=math.sqrt(base.hidden_size),
        final_logit_softcap=fields.optional_number("final_logit_softcapping"),
        attention_softcap=fields.optional_number("attn_logit_softcapping"),
    )


READERS: Mapping[str, Callable[[Fields], ModelConfig]] = MappingProxyType(
    {
        "llama": _llama,
        "mistral": _mistral,
        "qwen2": _qwen2,
        "qwen3": _qwen3,
        "qwen3_moe": _qwen3_moe,
        "mixtral": _mixtral,
        "gemma3_text": _gemma3,
    }
)
"""What reads a configuration of each `model_type`."""


def _base(fields: Fields, architecture: str, *, activation_key: str = "hidden_act") -> ModelConfig:
    """What all model types share; full attention, no biases."""
    layers, heads = fields.count("num_hidden_layers"), fields.count("num_attention_heads")
    head_dim = _head_dim(fields, heads)
    kv_heads = fields.optional_count("num_key_value_heads") or heads
    if heads % kv_heads:
        raise ModelFileError(f"config.json: {heads} attention heads cannot share {kv_heads} key/value heads")
    by_layer_type = architecture == "gemma3"
    rope = read_rope_by_layer_type(fields)[0] if by_layer_type else read_rope(fields)
    bos = fields.ids("bos_token_id")
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.count("vocab_size"),
        hidden_size=fields.count("hidden_size"),
        intermediate_size=fields.count("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_positions=extended_positions(rope, fields.count("max_position_embeddings")),
        norm_eps=fields.positive("rms_norm_eps"),
        tie_embeddings=fields.flag("tie_word_embeddings"),
        rope=rope,
        layer_windows=(None,) * layers,
        attention_scale=head_dim**-0.5,
        activation=_activation(fields, activation_key),
        dtype=_dtype(fields),
        eos_token_ids=fields.ids("eos_token_id"),
        bos_token_id=bos[0] if bos else None,
    )


def _head_dim(fields: Fields, heads: int) -> int:
    head_dim, hidden_size = fields.optional_count("head_dim"), fields.count("hidden_size")
    if head_dim is None and hidden_size % heads:
        raise ModelFileError(f"config.json: head_dim is missing, and {heads} heads do not divide hidden_size {hidden_size}")
    head_dim = head_dim or hidden_size // heads
    if head_dim % 2:
        raise ModelFileError(f"config.json: head_dim must be even for rotary embeddings, got {head_dim}")
    return head_dim


def _activation(fields: Fields, key: str) -> Activation:
    name = fields.text(key)
    if name not in ACTIVATIONS:
        raise UnsupportedModel(f"unsupported {fields.name(key)} {name!r}: known are {', '.join(sorted(ACTIVATIONS))}")
    return ACTIVATIONS[name]


def _dtype(fields: Fields) -> str:
    key = "dtype" if fields.raw("dtype") is not None else "torch_dtype"
    dtype = "float32" if fields.raw(key) is None else fields.text(key)
    if dtype not in DTYPES:
        raise UnsupportedModel(f"unsupported {fields.name(key)} {dtype!r}: known are {', '.join(DTYPES)}")
    return dtype


def _qwen_windows(fields: Fields) -> tuple[int | None, ...]:
    """Sliding windows from layer `max_window_layers` on, if switched on at all."""
    if not fields.flag("use_sliding_window"):
        return _windows(fields, None)
    first, layers = fields.count("max_window_layers"), fields.count("num_hidden_layers")
    return _windows(fields, fields.optional_count("sliding_window"), [i >= first for i in range(layers)])


def _windows(fields: Fields, window: int | None, sliding: Sequence[bool] | None = None) -> tuple[int | None, ...]:
    """The window of each layer that `layer_types` calls sliding; without that key, that `sliding` marks (default: all)."""
    layers, kinds = fields.count("num_hidden_layers"), fields.texts("layer_types")
    if kinds is None:
        return tuple(window if is_sliding else None for is_sliding in (sliding or [True] * layers))
    name = fields.name("layer_types")
    if len(kinds) != layers:
        raise ModelFileError(f"config.json: {name} has {len(kinds)} entries for {layers} layers")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise UnsupportedModel(f"unsupported entry {kind!r} of {name}: known are full_attention, sliding_attention")
    if window is None and "sliding_attention" in kinds:
        raise ModelFileError(f"config.json: {name} has sliding_attention, but no sliding window is set")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _checked(moe: MoeConfig) -> MoeConfig:
    if moe.num_experts_per_token > moe.num_experts:
        raise ModelFileError(
            f"config.json: num_experts_per_tok {moe.num_experts_per_token} is above {moe.num_experts} experts"
        )
    return moe
