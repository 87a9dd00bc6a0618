"""Reading rotary position embedding settings from a Hugging Face `config.json`.

Two forms exist: `rope_theta` beside `rope_scaling` (transformers 4), and `rope_parameters` that holds both (transformers 5),
which for models with two kinds of attention is keyed by layer type.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

from argosy.errors import ModelFileError, UnsupportedModel
from argosy.models.config import RopeConfig, RopeKind
from argosy.models.hf_fields import Fields

_ANY_KIND = frozenset(
    {"rope_type", "type", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings", "finetuned"}
)
_YARN = frozenset({"factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"})
KEYS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "default": _ANY_KIND,
        "linear": _ANY_KIND | {"factor"},
        "dynamic": _ANY_KIND | {"factor"},
        "llama3": _ANY_KIND | {"factor", "low_freq_factor", "high_freq_factor"},
        "yarn": _ANY_KIND | _YARN,
    }
)
"""The rope types run here, and the keys that each may have."""

LAYER_TYPES = ("full_attention", "sliding_attention")


def read_rope(config: Fields) -> RopeConfig:
    """The one rope of a model.

    Raises:
        UnsupportedModel: the rope type or one of its keys is not known, or only a part of each head rotates.
        ModelFileError: a key is missing or has a value that makes no sense.
    """
    parameters = config.optional_object("rope_scaling") or config.optional_object("rope_parameters") or Fields({})
    if any(layer_type in parameters.values for layer_type in LAYER_TYPES):
        raise UnsupportedModel(f"{parameters.path[:-1]} differs by layer type, which this architecture does not support")
    return _read(config, parameters, theta_key="rope_theta")


def read_rope_by_layer_type(config: Fields) -> tuple[RopeConfig, RopeConfig]:
    """The ropes of the full-attention and of the sliding layers (Gemma 3); raises as `read_rope`.

    In the older form `rope_scaling` is about the full layers alone, and the sliding ones have `rope_local_base_freq`.
    """
    by_type = config.optional_object("rope_parameters") or Fields({})
    if by_type.values and not any(layer_type in by_type.values for layer_type in LAYER_TYPES):
        raise ModelFileError(f"config.json: {by_type.path[:-1]} must be keyed by layer type ({', '.join(LAYER_TYPES)})")
    full, sliding = (by_type.optional_object(layer_type) or Fields({}) for layer_type in LAYER_TYPES)
    scaling = config.optional_object("rope_scaling")
    if scaling is not None:
        full = Fields({**full.values, **scaling.values}, path=scaling.path)
    return _read(config, full, theta_key="rope_theta"), _read(config, sliding, theta_key="rope_local_base_freq")


def extended_positions(rope: RopeConfig, max_position_embeddings: int) -> int:
    """Positions a model can serve: "yarn" and "dynamic" reach `factor` times the context of pre-training, whatever
    `max_position_embeddings` says (some checkpoints leave it as it was); the others have it set to the extended length."""
    if rope.kind in ("yarn", "dynamic") and rope.original_max_positions is not None:
        return max(max_position_embeddings, int(rope.original_max_positions * rope.factor))
    return max_position_embeddings


def _read(config: Fields, parameters: Fields, *, theta_key: str) -> RopeConfig:
    """`parameters` as a rope; what it lacks comes from the top level of `config`."""
    kind = _kind(parameters)
    for fields in (config, parameters):
        if fields.raw("partial_rotary_factor") not in (None, 1, 1.0):
            raise UnsupportedModel(f"{fields.name('partial_rotary_factor')} other than 1 is not supported")
    theta = parameters.positive("rope_theta") if "rope_theta" in parameters.values else config.positive(theta_key)
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, kind=kind, factor=parameters.positive("factor"))
    max_positions = config.count("max_position_embeddings")
    original = (
        config.optional_count("original_max_position_embeddings")
        or parameters.optional_count("original_max_position_embeddings")
        or max_positions
    )
    if kind == "dynamic":
        if original != max_positions:
            raise UnsupportedModel(
                "rope type 'dynamic' with original_max_position_embeddings other than max_position_embeddings"
            )
        return RopeConfig(theta=theta, kind=kind, factor=parameters.positive("factor"), original_max_positions=original)
    if kind == "llama3":
        return _llama3(parameters, theta, original)
    return _yarn(parameters, theta, original, max_positions)


def _kind(parameters: Fields) -> RopeKind:
    """The rope type, with every key of `parameters` known to it."""
    key = "rope_type" if parameters.raw("rope_type") is not None else "type"
    if parameters.raw(key) is None and not parameters.values.keys() <= {"rope_theta", "partial_rotary_factor"}:
        raise ModelFileError(f"config.json: {parameters.name('rope_type')} is missing")
    kind = "default" if parameters.raw(key) is None else parameters.text(key)
    if kind not in KEYS:
        raise UnsupportedModel(f"unsupported rope type {kind!r}: known are {', '.join(sorted(KEYS))}")
    unknown = sorted(parameters.values.keys() - KEYS[kind])
    if unknown:
        raise UnsupportedModel(f"{parameters.name(unknown[0])} is not known for rope type {kind!r}")
    return cast(RopeKind, kind)


def _llama3(parameters: Fields, theta: float, original: int) -> RopeConfig:
    low, high = parameters.positive("low_freq_factor"), parameters.positive("high_freq_factor")
    if low >= high:
        raise ModelFileError(
            f"config.json: {parameters.name('low_freq_factor')} must be below high_freq_factor, got {low} and {high}"
        )
    return RopeConfig(
        theta=theta,
        kind="llama3",
        factor=parameters.positive("factor"),
        original_max_positions=original,
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(parameters: Fields, theta: float, original: int, max_positions: int) -> RopeConfig:
    factor = parameters.optional_number("factor")
    return RopeConfig(
        theta=theta,
        kind="yarn",
        factor=max_positions / original if factor is None else parameters.positive("factor"),
        original_max_positions=original,
        beta_fast=parameters.optional_number("beta_fast") or 32.0,
        beta_slow=parameters.optional_number("beta_slow") or 1.0,
        attention_factor=parameters.optional_number("attention_factor"),
        mscale=parameters.optional_number("mscale"),
        mscale_all_dim=parameters.optional_number("mscale_all_dim"),
        truncate=True if parameters.raw("truncate") is None else parameters.flag("truncate"),
    )
