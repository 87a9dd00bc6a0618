"""Root-mean-square normalisation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from argosy.models.config import ModelConfig


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) · (offset + weight) over the last dimension (Zhang and Sennrich 2019).

    Computed in fp32. As in the checkpoints' training code, half-precision results are rounded before the weight is applied
    without an offset (Llama), and after it with one (Gemma).
    """

    def __init__(self, size: int, *, eps: float, offset: float, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        self.eps = eps
        self.offset = offset
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype, device=device), requires_grad=False)

    @classmethod
    def of_hidden(cls, config: ModelConfig, *, dtype: torch.dtype, device: str) -> RMSNorm:
        """The norm of whole hidden states that `config` describes."""
        return cls(config.hidden_size, eps=config.norm_eps, offset=config.norm_offset, dtype=dtype, device=device)

    @classmethod
    def of_heads(cls, config: ModelConfig, *, dtype: torch.dtype, device: str) -> RMSNorm:
        """The norm of each head of Q or K that `config` describes."""
        return cls(config.head_dim, eps=config.norm_eps, offset=config.norm_offset, dtype=dtype, device=device)

    def forward(self, x: Tensor) -> Tensor:
        """[…, size] -> […, size], in the dtype of `x`."""
        wide = x.float()
        normed = wide * wide.square().mean(-1, keepdim=True).add_(self.eps).rsqrt_()
        if self.offset:
            return normed.mul_(self.weight.float() + self.offset).to(x.dtype)
        return normed.to(x.dtype).mul_(self.weight)
