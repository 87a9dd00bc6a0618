"""From the rope keys and tensors of a GGUF file to `RopeConfig`."""

from __future__ import annotations

from argosy.errors import ModelFileError, UnsupportedModel
from argosy.models.config import RopeConfig
from argosy.models.gguf_file import GgufFile
from argosy.models.gguf_metadata import ArchitectureKeys

DIVISORS_TENSOR = "rope_freqs.weight"
DEFAULT_THETA = 10_000.0


def rope_from_gguf(keys: ArchitectureKeys, file: GgufFile, head_dim: int) -> tuple[RopeConfig, RopeConfig | None]:
    """The rope of full-attention layers, and of sliding ones where they differ (Gemma 3).

    Llama 3's length extension comes as a tensor of divisors, one per frequency, in place of its formula.

    Raises:
        UnsupportedModel: a kind of scaling, or a combination, that this package does not run.
        ModelFileError: a value is missing or damaged.
    """
    rotary_dim = _rotary_dim(keys, head_dim)
    rope = _scaled(keys, keys.positive("rope.freq_base", default=DEFAULT_THETA), rotary_dim)
    if DIVISORS_TENSOR in file.tensors:
        rope = _with_divisors(file, rope, (rotary_dim or head_dim) // 2)
    if keys.architecture != "gemma3":
        return rope, None
    return rope, RopeConfig(theta=keys.positive("rope.freq_base_swa", default=DEFAULT_THETA), rotary_dim=rotary_dim)


def _rotary_dim(keys: ArchitectureKeys, head_dim: int) -> int | None:
    rotary_dim = keys.count("rope.dimension_count", default=head_dim)
    if rotary_dim == head_dim:
        return None
    if rotary_dim > head_dim or rotary_dim % 2:
        raise ModelFileError(f"{keys.path} is damaged: rope.dimension_count is {rotary_dim} with heads of {head_dim}")
    if keys.architecture == "llama":
        # Q and K are stored with the pairs of the whole head interleaved, which fixes what rotates.
        raise UnsupportedModel(f"{keys.path}: rotating {rotary_dim} of {head_dim} dimensions is not supported for llama")
    return rotary_dim


def _scaled(keys: ArchitectureKeys, theta: float, rotary_dim: int | None) -> RopeConfig:
    kind = keys.get("rope.scaling.type", "none")
    if keys.get("rope.scale_linear") is not None:  # the name that early files use
        return RopeConfig(theta, "linear", keys.positive("rope.scale_linear"), rotary_dim=rotary_dim)
    if kind == "none":
        return RopeConfig(theta, rotary_dim=rotary_dim)
    factor = keys.positive("rope.scaling.factor")
    if kind == "linear":
        return RopeConfig(theta, "linear", factor, rotary_dim=rotary_dim)
    if kind != "yarn":
        raise UnsupportedModel(f"{keys.path}: rope scaling {kind!r} is not supported; none, linear and yarn are")
    for suffix, neutral in (("attn_factor", 1.0), ("yarn_ext_factor", 1.0), ("yarn_log_multiplier", 0.0)):
        keys.refuse_unless(f"rope.scaling.{suffix}", neutral)
    has_factor = keys.get("rope.scaling.yarn_attn_factor") is not None
    return RopeConfig(
        theta,
        "yarn",
        factor,
        original_max_positions=keys.count("rope.scaling.original_context_length", default=keys.count("context_length")),
        beta_fast=keys.positive("rope.scaling.yarn_beta_fast", default=32.0),
        beta_slow=keys.positive("rope.scaling.yarn_beta_slow", default=1.0),
        attention_factor=keys.positive("rope.scaling.yarn_attn_factor") if has_factor else None,
        rotary_dim=rotary_dim,
    )


def _with_divisors(file: GgufFile, rope: RopeConfig, num_frequencies: int) -> RopeConfig:
    if rope.kind != "default":
        raise UnsupportedModel(f"{file.path}: {DIVISORS_TENSOR!r} together with rope scaling {rope.kind!r} is not supported")
    divisors = file.dequantize(DIVISORS_TENSOR).ravel().tolist()
    if len(divisors) != num_frequencies or not all(0 < d < float("inf") for d in divisors):
        raise ModelFileError(
            f"{file.path} is damaged: {DIVISORS_TENSOR!r} must hold {num_frequencies} positive numbers, has {len(divisors)}"
        )
    return RopeConfig(rope.theta, freq_divisors=tuple(divisors), rotary_dim=rope.rotary_dim)
