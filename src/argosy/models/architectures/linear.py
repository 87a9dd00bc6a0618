"""Arithmetic on rows: as fast as torch allows, or with bits that do not depend on how many rows there are (`row_tile`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, row_tile: int | None) -> Tensor:
    """x · weightᵀ + bias.

    A GEMM library picks its kernel, and with it the order of summation, by the number of rows. With `row_tile` = n every
    product has exactly n rows (the last tile is padded with zeros), so one row's bits are the same whatever is computed
    beside it.

    Args:
        x: [rows, in_features].
        weight: [out_features, in_features].
        bias: [out_features] or None.
        row_tile: rows of every product, or None for a single product of all rows.

    Returns:
        [rows, out_features], in the dtype of `x`; never a view of `x`.
    """
    if row_tile is None:
        return F.linear(x, weight, bias)
    rows = x.shape[0]
    if padding := -rows % row_tile:
        x = F.pad(x, (0, 0, 0, padding))
    return torch.cat([F.linear(tile, weight, bias) for tile in torch.split(x, row_tile)])[:rows]


def elementwise(function: Callable[[Tensor], Tensor], x: Tensor, row_tile: int | None) -> Tensor:
    """An elementwise function with an exponential in it, on `x`, [rows, columns].

    torch takes most of a tensor through vector instructions and the ends (of the tensor, of a thread's share) through
    scalar ones, whose exponential may differ in the last bit. With `row_tile` every row goes alone, so that it has the same
    ends in any company.
    """
    if row_tile is None or len(x) == 0:
        return function(x)
    return torch.stack([function(row) for row in x])


class Linear(nn.Module):
    """A linear layer that may hold several of a checkpoint's matrices one under the other, so that one GEMM does them all.

    Args:
        in_features: width of the input.
        parts: output rows of each matrix by its name in the checkpoint, in the order of the output columns,
            e.g. {"q_proj": 64, "k_proj": 32, "v_proj": 32}.
        bias: whether each part has a bias.
    """

    def __init__(self, in_features: int, parts: Mapping[str, int], *, bias: bool, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        self.parts = dict(parts)
        self.row_tile: int | None = None
        out_features = sum(self.parts.values())
        weight = torch.empty(out_features, in_features, dtype=dtype, device=device)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = (
            nn.Parameter(torch.empty(out_features, dtype=dtype, device=device), requires_grad=False) if bias else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """[rows, in_features] -> [rows, sum of the parts]."""
        return linear(x, self.weight, self.bias, self.row_tile)

    def checkpoint_slots(self) -> Iterator[tuple[str, Tensor]]:
        """Name in the checkpoint (within the parent module) and the slice of the parameter it fills, for each part."""
        row = 0
        for name, rows in self.parts.items():
            yield f"{name}.weight", self.weight[row : row + rows]
            if self.bias is not None:
                yield f"{name}.bias", self.bias[row : row + rows]
            row += rows
