"""Qwen 3 MoE's layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from argosy.models.architectures.attention import Attention
from argosy.models.architectures.mlp import GatedMlp
from argosy.models.architectures.moe import ExpertNames, SparseMoe
from argosy.models.architectures.norm import RMSNorm
from argosy.models.architectures.rope import Rotary
from argosy.models.architectures.self_attention import SelfAttention
from argosy.models.config import ModelConfig

EXPERT_NAMES = ExpertNames(gate="gate_proj", up="up_proj", down="down_proj")


class Qwen3MoeLayer(nn.Module):
    """Pre-norm attention with QK-norm, then a pre-norm mixture of experts, or a dense MLP in layers outside `moe.layers`."""

    def __init__(self, config: ModelConfig, layer: int, *, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        assert config.moe is not None
        self.self_attn = SelfAttention(config, layer, dtype=dtype, device=device)
        self.mlp: nn.Module
        if layer in config.moe.layers:
            moe = config.moe
            self.mlp = SparseMoe(config.hidden_size, moe, EXPERT_NAMES, config.activation, dtype=dtype, device=device)
        else:
            self.mlp = GatedMlp(config, dtype=dtype, device=device)
        self.input_layernorm = RMSNorm.of_hidden(config, dtype=dtype, device=device)
        self.post_attention_layernorm = RMSNorm.of_hidden(config, dtype=dtype, device=device)

    def forward(self, hidden: Tensor, rotary: Rotary, attention: Attention) -> Tensor:
        """[tokens, hidden_size] -> [tokens, hidden_size]."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotary, attention)
        transformed: Tensor = self.mlp(self.post_attention_layernorm(hidden))
        return hidden + transformed
