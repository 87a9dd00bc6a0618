"""A sparse mixture of gated MLPs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from argosy.models.architectures.linear import Linear, linear
from argosy.models.architectures.mlp import activation_function, gated
from argosy.models.config import Activation, MoeConfig


class ExpertNames(NamedTuple):
    """What a checkpoint calls the three matrices of an expert."""

    gate: str
    up: str
    down: str


class Experts(nn.Module):
    """The experts' matrices, stacked: gate over up [experts, 2 · width, hidden_size], down [experts, hidden_size, width]."""

    def __init__(
        self,
        hidden_size: int,
        moe: MoeConfig,
        names: ExpertNames,
        activation: Activation,
        *,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        super().__init__()
        self.names = names
        self.activation = activation_function(activation)
        self.row_tile: int | None = None
        width = moe.intermediate_size
        gate_up = torch.empty(moe.num_experts, 2 * width, hidden_size, dtype=dtype, device=device)
        down = torch.empty(moe.num_experts, hidden_size, width, dtype=dtype, device=device)
        self.gate_up = nn.Parameter(gate_up, requires_grad=False)
        self.down = nn.Parameter(down, requires_grad=False)

    def forward(self, x: Tensor, expert: int) -> Tensor:
        """Rows through one expert: [rows, hidden_size] -> [rows, hidden_size]."""
        inner = gated(linear(x, self.gate_up[expert], None, self.row_tile), self.activation, self.row_tile)
        return linear(inner, self.down[expert], None, self.row_tile)

    def checkpoint_slots(self) -> Iterator[tuple[str, Tensor]]:
        """Name in the checkpoint (within the parent module) and the slice it fills, for each matrix of each expert."""
        for expert, (gate_up, down) in enumerate(zip(self.gate_up, self.down, strict=True)):
            gate, up = gate_up.chunk(2)
            yield f"experts.{expert}.{self.names.gate}.weight", gate
            yield f"experts.{expert}.{self.names.up}.weight", up
            yield f"experts.{expert}.{self.names.down}.weight", down


class SparseMoe(nn.Module):
    """Each token goes through its `num_experts_per_token` best experts and takes the weighted sum (Shazeer et al. 2017).

    The router's softmax is over all experts and in fp32. A token's result depends on no other token: experts' products
    are tiled like every other, and the sum runs from the best expert down.
    """

    def __init__(
        self,
        hidden_size: int,
        moe: MoeConfig,
        names: ExpertNames,
        activation: Activation,
        *,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        super().__init__()
        self.moe = moe
        self.gate = Linear(hidden_size, {"gate": moe.num_experts}, bias=False, dtype=dtype, device=device)
        self.experts = Experts(hidden_size, moe, names, activation, dtype=dtype, device=device)

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, hidden_size] -> [tokens, hidden_size]."""
        weights, chosen = self.route(x)
        per_token = self.moe.num_experts_per_token
        # A visit is one (token, rank) pair, numbered token · per_token + rank; visits of one expert are put side by side.
        visits = chosen.flatten().argsort(stable=True)
        counts = chosen.flatten().bincount(minlength=self.moe.num_experts).tolist()
        results = torch.empty(visits.shape[0], x.shape[1], dtype=torch.float32, device=x.device)
        for expert, visit in enumerate(torch.split(visits, counts)):
            if len(visit):
                results[visit] = self.experts(x[visit // per_token], expert).float()
        by_rank = results.view(*chosen.shape, x.shape[1]).mul_(weights.unsqueeze(-1)).unbind(1)
        total = by_rank[0]
        for ranked in by_rank[1:]:
            total = total + ranked
        return total.to(x.dtype)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights, f32, and expert indices, i64, of each token by falling weight, both [tokens, num_experts_per_token]."""
        probabilities = self.gate(x).float().softmax(dim=-1)
        weights, chosen = probabilities.topk(self.moe.num_experts_per_token, dim=-1)
        if self.moe.normalize_top_k:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return weights, chosen
