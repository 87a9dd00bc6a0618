"""The projections around attention: Q, K, V, their normalisation and rotation, and the output."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from argosy.models.architectures.attention import Attention, AttentionSpec
from argosy.models.architectures.linear import Linear
from argosy.models.architectures.norm import RMSNorm
from argosy.models.architectures.rope import Rotary, rotate
from argosy.models.config import ModelConfig


class SelfAttention(nn.Module):
    """Grouped-query attention (Ainslie et al. 2023) of one layer, with optional biases and QK-norm."""

    def __init__(self, config: ModelConfig, layer: int, *, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.spec = AttentionSpec(layer, config.attention_scale, config.layer_windows[layer], config.attention_softcap)
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        parts = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
        self.qkv_proj = Linear(config.hidden_size, parts, bias=config.qkv_bias, dtype=dtype, device=device)
        self.o_proj = Linear(q_size, {"o_proj": config.hidden_size}, bias=config.output_bias, dtype=dtype, device=device)
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        if config.qk_norm:
            self.q_norm = RMSNorm.of_heads(config, dtype=dtype, device=device)
            self.k_norm = RMSNorm.of_heads(config, dtype=dtype, device=device)

    def forward(self, x: Tensor, rotary: Rotary, attention: Attention) -> Tensor:
        """[tokens, hidden_size] -> [tokens, hidden_size]; `attention` keeps K and V."""
        # heads of one token, side by side:  | q … q | k … k | v … v |
        heads = self.qkv_proj(x).view(x.shape[0], -1, self.head_dim)
        rotated, v = heads.tensor_split([self.num_heads + self.num_kv_heads], dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = rotated.tensor_split([self.num_heads], dim=1)
            rotated = torch.cat((self.q_norm(q), self.k_norm(k)), dim=1)
        q, k = rotate(rotated, rotary).tensor_split([self.num_heads], dim=1)
        out: Tensor = self.o_proj(attention(self.spec, q, k, v).reshape(x.shape[0], -1))
        return out
