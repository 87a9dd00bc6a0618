"""The shape of a model, whatever file it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn"]
Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding (Su et al. 2021) and its length extensions.

    Attributes:
        theta: base of the frequencies.
        factor: extension factor of every kind but "default".
        original_max_positions: context of pre-training; "llama3", "yarn" and "dynamic" need it.
        low_freq_factor, high_freq_factor: "llama3" only.
        beta_fast, beta_slow, attention_factor, mscale, mscale_all_dim, truncate: "yarn" only (Peng et al. 2023).
        freq_divisors: per-frequency divisors that replace the formula (GGUF `rope_freqs.weight`), rotary_dim / 2 long.
        rotary_dim: leading dimensions of a head that rotate, or None for all.
    """

    theta: float = 10_000.0
    kind: RopeKind = "default"
    factor: float = 1.0
    original_max_positions: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    freq_divisors: tuple[float, ...] | None = None
    rotary_dim: int | None = None


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """Mixture of experts in the layers whose index is in `layers`.

    `normalize_top_k`: the chosen experts' router weights are scaled to sum to 1.
    """

    num_experts: int
    num_experts_per_token: int
    intermediate_size: int
    normalize_top_k: bool
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything needed to build a decoder, in Hugging Face's tensor layout and naming.

    Attributes:
        architecture: "llama" (also Mistral), "qwen2", "qwen3", "gemma3", "mixtral" or "qwen3_moe".
        head_dim: need not be hidden_size / num_heads.
        max_positions: positions the rotary table covers; longer is refused.
        rope: of the full-attention layers; `rope_local` of the sliding ones where they differ (Gemma 3).
        layer_windows: per layer the sliding window in tokens (a token sees itself and window - 1 before it), or None.
        qkv_bias, output_bias, mlp_bias: which projections carry a bias.
        qk_norm: RMSNorm on each head of Q and K before RoPE.
        attention_scale: multiplies Q·K.
        norm_offset: RMSNorm multiplies by (norm_offset + weight): 1 for Gemma, else 0.
        embedding_scale: multiplies the token embeddings.
        final_logit_softcap, attention_softcap: c·tanh(x/c), or None.
        dtype: the element type of the stored weights, e.g. "bfloat16"; quantised files give "float32".
        eos_token_ids, bos_token_id: as the checkpoint's configuration files name them.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    norm_eps: float
    tie_embeddings: bool
    rope: RopeConfig
    layer_windows: tuple[int | None, ...]
    rope_local: RopeConfig | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    attention_scale: float = 0.0
    activation: Activation = "silu"
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    final_logit_softcap: float | None = None
    attention_softcap: float | None = None
    moe: MoeConfig | None = None
    dtype: str = "float32"
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's K and V over all layers in fp32; scale by the KV element size / 4."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * 4
