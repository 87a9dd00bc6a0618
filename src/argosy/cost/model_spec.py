"""The shape of a model as the cost model sees it: exact parameter and KV arithmetic, nothing of how it is computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gqa:
    """Grouped-query attention (multi-head when kv_heads == heads).

    `window` tokens are kept and seen, or None for all. `biases` counts bias elements per projection output: "qkv", "o".
    `sinks` adds one learned logit per head.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False


@dataclass(frozen=True, slots=True)
class Mla:
    """Multi-head latent attention (DeepSeek-V2): what is cached per token is kv_lora + rope elements, once for all heads."""

    heads: int
    q_lora: int | None
    kv_lora: int
    nope_dim: int
    rope_dim: int
    v_dim: int


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """Gated delta-rule or similar attention with a state of fixed size per sequence and no KV that grows."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    conv_width: int


@dataclass(frozen=True, slots=True)
class DenseFfn:
    """Feed-forward of `size`; gated ones have three matrices, others two."""

    size: int
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True, slots=True)
class MoeFfn:
    """`experts` routed ones of `size`, `top_k` of them per token, and shared experts of `shared_size` in sum."""

    experts: int
    top_k: int
    size: int
    shared_size: int = 0
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
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
    """

    name: str
    vocab_size: int
    hidden_size: int
    layers: tuple[tuple[int, Layer], ...]
    tied_embeddings: bool
    max_positions: int
    learned_positions: int = 0
    norm_has_bias: bool = False

    @property
    def num_layers(self) -> int:
        """Decoder layers in all."""
        return sum(count for count, _ in self.layers)

    def each_layer(self) -> Iterator[Layer]:
        """The layers in order, one by one."""
        for count, layer in self.layers:
            for _ in range(count):
                yield layer
