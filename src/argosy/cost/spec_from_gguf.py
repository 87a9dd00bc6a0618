"""A GGUF header as the shape the cost model works with.

The header is translated into the fields of `spec_from_hf`, so that both kinds of file follow the same rules; the shapes of
the tensors then have to add up to the parameters that follow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from argosy.cost.config_fields import ConfigFields
from argosy.cost.model_arithmetic import parameter_count
from argosy.cost.model_spec import ModelSpec
from argosy.cost.spec_from_hf import FULL, SLIDING, spec_from_hf
from argosy.errors import ConfigError, UnsupportedModel

_MODEL_TYPES = {"gemma3": "gemma3_text", "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3moe": "qwen3_moe"}
_GEMMA3_PATTERN = 6
_NOT_PARAMETERS = ("rope_freqs.", "rope_factors_")


def spec_from_gguf(metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], name: str = "") -> ModelSpec:
    """The shape of the model that a GGUF header describes.

    Args:
        metadata: the header's keys and values.
        shapes: of each tensor by name, outermost dimension first (an embedding is vocabulary x hidden).
        name: of the resulting spec; by default the header's `general.name`.

    Raises:
        UnsupportedModel: an architecture that is not known here, or a variant of one that is not counted.
        ConfigError: a key is missing or impossible, or the tensors do not hold the parameters that the header implies.
    """
    architecture = metadata.get("general.architecture")
    title = name or str(metadata.get("general.name") or architecture)
    if architecture not in _MODEL_TYPES:
        known = ", ".join(sorted(_MODEL_TYPES))
        raise UnsupportedModel(f"GGUF architecture {architecture!r} is not known to the cost model; it knows {known}")
    prefix = f"{architecture}."
    keys = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    spec = spec_from_hf(_as_hf(architecture, ConfigFields(keys, f"GGUF header of {title}"), shapes), title)
    stored = sum(math.prod(shape) for tensor, shape in shapes.items() if not _has_no_parameters(tensor))
    if stored != parameter_count(spec):
        raise ConfigError(f"{title}: the tensors hold {stored} elements, the header implies {parameter_count(spec)}")
    return spec


def _has_no_parameters(tensor: str) -> bool:
    return tensor.startswith(_NOT_PARAMETERS)


def _as_hf(architecture: str, keys: ConfigFields, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    for extra in ("expert_shared_count", "leading_dense_block_count", "nextn_predict_layers", "attention.shared_kv_layers"):
        if keys.integer(extra, 0, minimum=0):
            raise UnsupportedModel(f"{keys.origin}: {architecture}.{extra} is not counted for this architecture")
    if "token_embd.weight" not in shapes:
        raise ConfigError(f"{keys.origin} has no tensor 'token_embd.weight'")
    layers, heads = keys.integer("block_count"), _same_in_all_layers(keys, "attention.head_count")
    hidden = keys.integer("embedding_length")
    fields: dict[str, Any] = {
        "model_type": _MODEL_TYPES[architecture],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": _same_in_all_layers(keys, "attention.head_count_kv", heads),
        "head_dim": keys.integer("attention.key_length", max(1, hidden // heads)),
        "intermediate_size": _same_in_all_layers(keys, "feed_forward_length"),
        "vocab_size": shapes["token_embd.weight"][0],
        "max_position_embeddings": keys.integer("context_length"),
        "tie_word_embeddings": "output.weight" not in shapes,
    }
    if architecture != "qwen2":
        fields["attention_bias"] = "blk.0.attn_q.bias" in shapes
    if keys.integer("expert_count", 0, minimum=0):
        fields.update(_experts(architecture, keys))
    fields.update(_windows(architecture, keys, layers))
    return fields


def _experts(architecture: str, keys: ConfigFields) -> dict[str, Any]:
    experts, top_k = keys.integer("expert_count"), keys.integer("expert_used_count")
    if architecture == "llama":
        return {"model_type": "mixtral", "num_local_experts": experts, "num_experts_per_tok": top_k}
    if architecture == "qwen3moe":
        size = keys.integer("expert_feed_forward_length")
        return {"num_experts": experts, "num_experts_per_tok": top_k, "moe_intermediate_size": size}
    raise UnsupportedModel(f"{keys.origin}: experts in architecture {architecture!r} are not counted")


def _windows(architecture: str, keys: ConfigFields, layers: int) -> dict[str, Any]:
    window = keys.integer("attention.sliding_window", 0, minimum=0)
    if window == 0 or (architecture != "gemma3" and window >= keys.integer("context_length")):
        return {}
    if architecture == "llama":
        return {"model_type": "mistral", "sliding_window": window}
    if architecture != "gemma3":
        raise UnsupportedModel(f"{keys.origin}: which layers of {architecture} have the sliding window is not recorded")
    if keys.has("attention.sliding_window_pattern"):
        try:
            pattern = keys.integer("attention.sliding_window_pattern")
        except ConfigError:
            flags = keys.sequence("attention.sliding_window_pattern", layers) or []
            return {"sliding_window": window, "layer_types": [SLIDING if flag else FULL for flag in flags]}
        return {"sliding_window": window, "sliding_window_pattern": pattern}
    return {"sliding_window": window, "sliding_window_pattern": _GEMMA3_PATTERN}


def _same_in_all_layers(keys: ConfigFields, key: str, default: int | None = None) -> int:
    """A count that GGUF writes once or per layer; one that differs between layers is refused."""
    try:
        values = keys.sequence(key)
    except ConfigError:
        return keys.integer(key, default)
    if values is None:
        return keys.integer(key, default)
    if len(set(values)) != 1 or type(values[0]) is not int or values[0] < 1:
        raise UnsupportedModel(f"{keys.origin}: {key} that differs between layers is not counted")
    return values[0]
