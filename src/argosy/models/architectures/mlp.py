"""The gated feed-forward block."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from argosy.models.architectures.linear import Linear, elementwise
from argosy.models.config import Activation, ModelConfig


def activation_function(name: Activation) -> Callable[[Tensor], Tensor]:
    """The elementwise function called `name`."""
    if name == "silu":
        return F.silu
    return lambda x: F.gelu(x, approximate="tanh")


def gated(gate_up: Tensor, activation: Callable[[Tensor], Tensor], row_tile: int | None) -> Tensor:
    """activation(gate) · up (Shazeer 2020), for `gate_up` [rows, 2 · width] with the gate first -> [rows, width]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return elementwise(activation, gate, row_tile).mul_(up)


class GatedMlp(nn.Module):
    """down(activation(gate(x)) · up(x))."""

    def __init__(self, config: ModelConfig, *, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        width = config.intermediate_size
        parts = {"gate_proj": width, "up_proj": width}
        self.gate_up_proj = Linear(config.hidden_size, parts, bias=config.mlp_bias, dtype=dtype, device=device)
        self.down_proj = Linear(width, {"down_proj": config.hidden_size}, bias=config.mlp_bias, dtype=dtype, device=device)
        self.activation = activation_function(config.activation)

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, hidden_size] -> [tokens, hidden_size]."""
        out: Tensor = self.down_proj(gated(self.gate_up_proj(x), self.activation, self.gate_up_proj.row_tile))
        return out
