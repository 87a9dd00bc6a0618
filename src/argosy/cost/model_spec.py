"""The shape of a model as the cost model sees it: exact parameter and KV arithmetic, nothing of how it is computed."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass


class QkNorm(enum.StrEnum):
    """Which learned norms queries and keys pass before attention; the one without parameters counts as none."""

    NONE = ""
    PER_HEAD = "per head"
    PER_PROJECTION = "per projection"


@dataclass(frozen=True, slots=True)
class Gqa:
    """Grouped-query attention (multi-head when kv_heads == heads).

    Attributes:
        window: tokens kept and seen, or None for all. Chunked attention (Llama 4) has its chunk here: an upper bound.
        qkv_bias, output_bias: bias vectors on the projections into and out of the heads.
        qk_norm: one vector of `head_dim` for queries and one for keys, or vectors as long as the projections.
        sinks: one learned logit per head.
        output_gate: the query projection is twice as wide, its other half gates the output (Qwen3-Next).
        keys_are_values: one projection makes both; keys and values are still cached apart, since only keys are rotated.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: QkNorm = QkNorm.NONE
    sinks: bool = False
    output_gate: bool = False
    keys_are_values: bool = False


@dataclass(frozen=True, slots=True)
class SparseIndex:
    """Lightning indexer (DeepSeek-V3.2): `heads` queries of `dim`, one key per token; attention sees `top_k` tokens."""

    heads: int
    dim: int
    top_k: int


@dataclass(frozen=True, slots=True)
class Mla:
    """Multi-head latent attention (DeepSeek-V2): what is cached per token is kv_lora + rope elements, once for all heads.

    `index` adds the lightning indexer of DeepSeek sparse attention, which caches a key of its own.
    """

    heads: int
    q_lora: int | None
    kv_lora: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    index: SparseIndex | None = None


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """Gated delta rule (Yang et al. 2024): a state of fixed size per sequence and no KV that grows.

    `heads` have values of `value_dim`, `kv_heads` have queries and keys of `key_dim`; the state of a value head is
    key_dim x value_dim. A causal convolution of `conv_width` runs over queries, keys and values.
    """

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    conv_width: int


@dataclass(frozen=True, slots=True)
class DenseFfn:
    """Feed-forward of `size`; gated ones have three matrices, others two. `bias`: one vector per matrix."""

    size: int
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True, slots=True)
class MoeFfn:
    """`experts` routed ones of `size`, `top_k` of them per token, and shared experts of `shared_size` in sum.

    `router_bias` is one element per expert (bias, correction or scale); `router_scale` a vector of hidden size before the
    router; `shared_gate` a vector of hidden size that weighs the shared experts.
    """

    experts: int
    top_k: int
    size: int
    shared_size: int = 0
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    router_scale: bool = False
    shared_gate: bool = False


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer. `norms` counts RMSNorm vectors of hidden size."""

    attention: Gqa | Mla | LinearAttention
    ffn: DenseFfn | MoeFfn
    norms: int = 2


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only model.

    `layers` are runs (count, layer) in order, so that a 126-layer model of equal layers is one entry; patterns such as five
    local layers and one global are spelled out in order. `learned_positions` counts rows of a learned position table.
    `mtp_layers` counts modules that predict further tokens; they are extra to `layers` and to every count of parameters
    but `model_arithmetic.mtp_parameters`.
    """

    name: str
    vocab_size: int
    hidden_size: int
    layers: tuple[tuple[int, Layer], ...]
    tied_embeddings: bool
    max_positions: int
    learned_positions: int = 0
    norm_has_bias: bool = False
    mtp_layers: int = 0

    @property
    def num_layers(self) -> int:
        """Decoder layers in all."""
        return sum(count for count, _ in self.layers)

    def each_layer(self) -> Iterator[Layer]:
        """The layers in order, one by one."""
        for count, layer in self.layers:
            for _ in range(count):
                yield layer
