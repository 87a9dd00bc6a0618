"""From the metadata of a GGUF file to a `ModelConfig`.

The keys are those of the GGUF specification; where a file leaves something to the reader, the comment at that place names
what llama.cpp's loader assumes. What the metadata claims is checked against the tensors' shapes, so that a damaged number
is an error here and not a huge allocation later.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gguf.constants import GGMLQuantizationType

from argosy.errors import ModelFileError, UnsupportedModel
from argosy.models.config import ModelConfig, MoeConfig
from argosy.models.gguf_file import GgufFile
from argosy.models.gguf_metadata import ArchitectureKeys
from argosy.models.gguf_rope import rope_from_gguf

ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3moe": "qwen3_moe", "gemma3": "gemma3"}
)
"""`general.architecture` -> `ModelConfig.architecture`; "llama" with experts is "mixtral"."""

GEMMA3_SLIDING_PATTERN = 6
"""Every sixth layer of Gemma 3 sees everything; files written before the key existed do not say so."""

GEMMA3_27B_LAYERS = 62
"""Gemma 3 27B alone scales attention by the mean width of a head, not by its real one; only its depth tells it apart."""

MAX_POSITIONS = 2**24
"""More than any published context; the rotary table is as long as the file says."""

SOFTMAX_GATING = 1
"""The value of `expert_gating_func` that means a softmax over all experts."""

END_KINDS = ("eos", "eot", "eom")
"""The ids that end a text, a turn, or a message of a tool call."""

_NEUTRAL_VALUES: Mapping[str, Any] = MappingProxyType(
    {
        "attention.causal": True,
        "attention.clamp_kqv": 0.0,
        "attention.max_alibi_bias": 0.0,
        "attention.shared_kv_layers": 0,
        "attention.temperature_scale": 0.0,
        "embedding_scale": 1.0,
        "expert_gating_func": SOFTMAX_GATING,
        "expert_shared_count": 0,
        "expert_weights_norm": True,
        "expert_weights_scale": 1.0,
        "leading_dense_block_count": 0,
        "logit_scale": 1.0,
        "nextn_predict_layers": 0,
        "residual_scale": 1.0,
        "router_logit_softcapping": 0.0,
        "use_parallel_residual": False,
    }
)
"""Keys that change what a model computes in ways not implemented here, with the value that changes nothing."""


def model_config_from_gguf(file: GgufFile) -> ModelConfig:
    """The configuration of the model in `file`.

    Norm weights of Gemma are stored in GGUF as 1 + weight; the configuration speaks of Hugging Face's layout, to which
    `gguf_weights` brings them back.

    Raises:
        UnsupportedModel: an architecture, or a setting of one, that this package does not run.
        ModelFileError: a key is missing or of the wrong kind, or contradicts the tensors.
    """
    keys = ArchitectureKeys(file)
    if keys.architecture not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise UnsupportedModel(f"{file.path}: architecture {keys.architecture!r} is not supported; supported are {known}")
    for suffix, neutral in _NEUTRAL_VALUES.items():
        keys.refuse_unless(suffix, neutral)
    num_layers = keys.count("block_count", at_most=len(file.tensors))
    hidden_size, num_heads = keys.count("embedding_length"), keys.same_in_all_layers("attention.head_count")
    head_dim = _head_dim(keys, hidden_size, num_heads)
    rope, rope_local = rope_from_gguf(keys, file, head_dim)
    moe = _moe(keys, file, num_layers)
    is_gemma = keys.architecture == "gemma3"
    config = ModelConfig(
        architecture="mixtral" if keys.architecture == "llama" and moe else ARCHITECTURES[keys.architecture],
        vocab_size=_shape(file, "token_embd.weight")[0],
        hidden_size=hidden_size,
        intermediate_size=keys.same_in_all_layers("feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=keys.same_in_all_layers("attention.head_count_kv", default=num_heads),
        head_dim=head_dim,
        max_positions=_max_positions(keys, rope.factor if rope.kind == "yarn" else 1.0, rope.original_max_positions),
        norm_eps=keys.positive("attention.layer_norm_rms_epsilon"),
        tie_embeddings="output.weight" not in file.tensors,
        rope=rope,
        rope_local=rope_local,
        layer_windows=_layer_windows(keys, num_layers),
        qkv_bias=keys.architecture == "qwen2" or "blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_up.bias" in file.tensors,
        qk_norm=keys.architecture in ("qwen3", "qwen3moe", "gemma3"),
        attention_scale=_attention_scale(keys, hidden_size, num_heads, head_dim, num_layers),
        activation="gelu_tanh" if is_gemma else "silu",
        norm_offset=1.0 if is_gemma else 0.0,
        embedding_scale=hidden_size**0.5 if is_gemma else 1.0,
        final_logit_softcap=keys.number("final_logit_softcapping", default=0.0) or None,
        attention_softcap=keys.number("attn_logit_softcapping", default=0.0) or None,
        moe=moe,
        dtype=_stored_dtype(file),
        eos_token_ids=tuple(sorted({i for kind in END_KINDS if (i := _token_id(file, kind)) is not None})),
        bos_token_id=_token_id(file, "bos"),
    )
    _check_against_tensors(file, config)
    return config


def _head_dim(keys: ArchitectureKeys, hidden_size: int, num_heads: int) -> int:
    key_length = keys.count("attention.key_length", default=hidden_size // num_heads)
    value_length = keys.count("attention.value_length", default=key_length)
    if key_length != value_length:
        raise UnsupportedModel(f"{keys.path}: key heads of {key_length} and value heads of {value_length} are not supported")
    return key_length


def _max_positions(keys: ArchitectureKeys, yarn_factor: float, original: int | None) -> int:
    """YaRN files may state the context of pre-training only; its factor says how far the rotary table reaches."""
    stated = keys.count("context_length", at_most=MAX_POSITIONS)
    reached = stated if original is None else max(stated, int(min(yarn_factor * original, MAX_POSITIONS + 1)))
    if reached > MAX_POSITIONS:
        raise ModelFileError(f"{keys.path} is damaged: rope scaling reaches beyond {MAX_POSITIONS} positions")
    return reached


def _layer_windows(keys: ArchitectureKeys, num_layers: int) -> tuple[int | None, ...]:
    window = keys.count("attention.sliding_window", default=0, at_least=0)
    if window == 0 or (keys.architecture != "gemma3" and window >= keys.count("context_length")):
        return (None,) * num_layers
    if keys.architecture == "llama":
        return (window,) * num_layers
    if keys.architecture != "gemma3":
        raise UnsupportedModel(f"{keys.path}: a sliding window in {keys.architecture}, which layers have it is not recorded")
    pattern = keys.get("attention.sliding_window_pattern", GEMMA3_SLIDING_PATTERN)
    if type(pattern) is int and pattern >= 1:
        return tuple(None if i % pattern == pattern - 1 else window for i in range(num_layers))
    if isinstance(pattern, list) and len(pattern) == num_layers:
        return tuple(window if is_sliding else None for is_sliding in pattern)
    raise ModelFileError(f"{keys.path} is damaged: attention.sliding_window_pattern is {pattern!r} for {num_layers} layers")


def _attention_scale(keys: ArchitectureKeys, hidden_size: int, num_heads: int, head_dim: int, num_layers: int) -> float:
    width = hidden_size / num_heads if keys.architecture == "gemma3" and num_layers == GEMMA3_27B_LAYERS else head_dim
    return keys.positive("attention.scale", default=width**-0.5)


def _moe(keys: ArchitectureKeys, file: GgufFile, num_layers: int) -> MoeConfig | None:
    num_experts = keys.count("expert_count", default=0, at_least=0)
    if num_experts == 0:
        if keys.architecture == "qwen3moe":
            raise ModelFileError(f"{keys.path} is damaged: qwen3moe without experts (expert_count)")
        return None
    if keys.architecture not in ("llama", "qwen3moe"):
        raise UnsupportedModel(f"{keys.path}: experts in architecture {keys.architecture!r} are not supported")
    layers = tuple(i for i in range(num_layers) if f"blk.{i}.ffn_gate_inp.weight" in file.tensors)
    if not layers:
        raise ModelFileError(f"{keys.path} is damaged: {num_experts} experts but no router (blk.0.ffn_gate_inp.weight)")
    router = _shape(file, f"blk.{layers[0]}.ffn_gate_inp.weight")
    if router[0] != num_experts:
        raise ModelFileError(f"{keys.path} is damaged: expert_count is {num_experts}, the router has {router[0]}")
    width_key = "feed_forward_length" if keys.architecture == "llama" else "expert_feed_forward_length"
    return MoeConfig(
        num_experts=num_experts,
        num_experts_per_token=keys.count("expert_used_count", at_most=num_experts),
        intermediate_size=keys.same_in_all_layers(width_key),
        normalize_top_k=True,  # the key expert_weights_norm is written for other architectures only; both of ours do
        layers=layers,
    )


def _stored_dtype(file: GgufFile) -> str:
    """The one 16-bit type of all matrices, or "float32" for quantised, mixed and fp32 files."""
    types = {t.type for t in file.tensors.values() if len(t.shape) > 1}
    names = {GGMLQuantizationType.F16: "float16", GGMLQuantizationType.BF16: "bfloat16"}
    return names.get(types.pop(), "float32") if len(types) == 1 else "float32"


def _token_id(file: GgufFile, kind: str) -> int | None:
    value = file.metadata.get(f"tokenizer.ggml.{kind}_token_id")
    if value is not None and type(value) is not int:
        raise ModelFileError(f"{file.path} is damaged: tokenizer.ggml.{kind}_token_id must be an id, got {value!r}")
    return value


def _shape(file: GgufFile, name: str) -> tuple[int, ...]:
    if name not in file.tensors:
        raise ModelFileError(f"{file.path} is damaged: tensor {name!r} is missing")
    return file.tensors[name].shape


def _check_against_tensors(file: GgufFile, config: ModelConfig) -> None:
    """Hold the sizes that memory will be allocated by to the first layer's shapes."""
    hidden = config.hidden_size
    expected: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (config.vocab_size, hidden),
        "blk.0.attn_q.weight": (config.num_heads * config.head_dim, hidden),
        "blk.0.attn_k.weight": (config.num_kv_heads * config.head_dim, hidden),
    }
    if config.moe is None:
        expected["blk.0.ffn_up.weight"] = (config.intermediate_size, hidden)
    elif "blk.0.ffn_up_exps.weight" in file.tensors:
        expected["blk.0.ffn_up_exps.weight"] = (config.moe.num_experts, config.moe.intermediate_size, hidden)
    for name, shape in expected.items():
        if _shape(file, name) != shape:
            raise ModelFileError(
                f"{file.path} is damaged: tensor {name!r} has shape {list(_shape(file, name))}, "
                f"the metadata says {list(shape)}"
            )
    if f"blk.{config.num_layers}.attn_norm.weight" in file.tensors:
        raise ModelFileError(f"{file.path} is damaged: it holds more layers than its block_count of {config.num_layers}")
    if config.num_heads % config.num_kv_heads:
        raise ModelFileError(
            f"{file.path} is damaged: {config.num_heads} query heads cannot share {config.num_kv_heads} KV heads"
        )
