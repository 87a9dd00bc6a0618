"""Gemma 3's layer (text)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from argosy.models.architectures.attention import Attention
from argosy.models.architectures.mlp import GatedMlp
from argosy.models.architectures.norm import RMSNorm
from argosy.models.architectures.rope import Rotary
from argosy.models.architectures.self_attention import SelfAttention
from argosy.models.config import ModelConfig


class Gemma3Layer(nn.Module):
    """Attention and a gated MLP, each normalised before and after, inside the residual branch.

    Sliding windows, the rope of the sliding layers, the scale of the embeddings and the `1 + weight` of the norms are in the
    configuration.
    """

    def __init__(self, config: ModelConfig, layer: int, *, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        self.self_attn = SelfAttention(config, layer, dtype=dtype, device=device)
        self.mlp = GatedMlp(config, dtype=dtype, device=device)
        self.input_layernorm = RMSNorm.of_hidden(config, dtype=dtype, device=device)
        self.post_attention_layernorm = RMSNorm.of_hidden(config, dtype=dtype, device=device)
        self.pre_feedforward_layernorm = RMSNorm.of_hidden(config, dtype=dtype, device=device)
        self.post_feedforward_layernorm = RMSNorm.of_hidden(config, dtype=dtype, device=device)

    def forward(self, hidden: Tensor, rotary: Rotary, attention: Attention) -> Tensor:
        """[tokens, hidden_size] -> [tokens, hidden_size]."""
        attended = self.self_attn(self.input_layernorm(hidden), rotary, attention)
        hidden = hidden + self.post_attention_layernorm(attended)
        transformed = self.mlp(self.pre_feedforward_layernorm(hidden))
        normed: Tensor = self.post_feedforward_layernorm(transformed)
        return hidden + normed


def text_tensors(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """A vision-and-text checkpoint's tensors without those of the vision side, under the names of a text-only checkpoint.

    Two namings are about: `language_model.model.…` and `model.language_model.…`. A text-only checkpoint passes unchanged.
    """
    for name, tensor in tensors:
        if name.removeprefix("model.").startswith(("vision_tower.", "multi_modal_projector.")):
            continue
        if name.startswith("model.language_model."):
            yield "model." + name.removeprefix("model.language_model."), tensor
        else:
            yield name.removeprefix("language_model."), tensor
