"""Llama's layer, which is also Mistral's, Qwen 2.5's and Qwen 3's.

What sets these apart is in the configuration: sliding windows (Mistral, Qwen), biases on Q, K and V (Qwen 2.5), RMSNorm on
the heads of Q and K (Qwen 3).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from argosy.models.architectures.attention import Attention
from argosy.models.architectures.mlp import GatedMlp
from argosy.models.architectures.norm import RMSNorm
from argosy.models.architectures.rope import Rotary
from argosy.models.architectures.self_attention import SelfAttention
from argosy.models.config import ModelConfig


class LlamaLayer(nn.Module):
    """Pre-norm attention, then a pre-norm gated MLP."""

    def __init__(self, config: ModelConfig, layer: int, *, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        self.self_attn = SelfAttention(config, layer, dtype=dtype, device=device)
        self.mlp = GatedMlp(config, dtype=dtype, device=device)
        self.input_layernorm = RMSNorm.of_hidden(config, dtype=dtype, device=device)
        self.post_attention_layernorm = RMSNorm.of_hidden(config, dtype=dtype, device=device)

    def forward(self, hidden: Tensor, rotary: Rotary, attention: Attention) -> Tensor:
        """[tokens, hidden_size] -> [tokens, hidden_size]."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotary, attention)
        transformed: Tensor = self.mlp(self.post_attention_layernorm(hidden))
        return hidden + transformed
