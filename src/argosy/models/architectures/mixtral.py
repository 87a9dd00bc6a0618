"""Mixtral's layer (Jiang et al. 2024)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from argosy.models.architectures.attention import Attention
from argosy.models.architectures.moe import ExpertNames, SparseMoe
from argosy.models.architectures.norm import RMSNorm
from argosy.models.architectures.rope import Rotary
from argosy.models.architectures.self_attention import SelfAttention
from argosy.models.config import ModelConfig

EXPERT_NAMES = ExpertNames(gate="w1", up="w3", down="w2")


class MixtralLayer(nn.Module):
    """Pre-norm attention, then a pre-norm mixture of experts in every layer."""

    def __init__(self, config: ModelConfig, layer: int, *, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        assert config.moe is not None
        self.self_attn = SelfAttention(config, layer, dtype=dtype, device=device)
        self.block_sparse_moe = SparseMoe(
            config.hidden_size, config.moe, EXPERT_NAMES, config.activation, dtype=dtype, device=device
        )
        self.input_layernorm = RMSNorm.of_hidden(config, dtype=dtype, device=device)
        self.post_attention_layernorm = RMSNorm.of_hidden(config, dtype=dtype, device=device)

    def forward(self, hidden: Tensor, rotary: Rotary, attention: Attention) -> Tensor:
        """[tokens, hidden_size] -> [tokens, hidden_size]."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotary, attention)
        transformed: Tensor = self.block_sparse_moe(self.post_attention_layernorm(hidden))
        return hidden + transformed
