"""Root-mean-square normalisation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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

    def forward(self, x: Tensor) -> Tensor:
        """[…, size] -> […, size], in the dtype of `x`."""
        shape = self.weight.shape
        if self.offset:
            return F.rms_norm(x.float(), shape, self.weight.float() + self.offset, self.eps).to(x.dtype)
        if x.dtype == torch.float32:
            return F.rms_norm(x, shape, self.weight, self.eps)
        return F.rms_norm(x.float(), shape, None, self.eps).to(x.dtype) * self.weight
