"""The seam between an architecture and how its attention is computed.

A model computes tokens laid end to end, of any number of sequences, and hands each layer's Q, K and V to an `Attention`.
Who calls the model knows which token belongs to which sequence and where its past is kept (a paged pool, nothing at all);
the model does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """One layer's attention. `window`: tokens seen, itself included, or None for all; `softcap` as c·tanh(s/c)."""

    layer: int
    scale: float
    window: int | None
    softcap: float | None


class Attention(Protocol):
    """Causal attention over tokens laid end to end."""

    def __call__(self, spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store K and V where this backend keeps them and attend.

        Args:
            q: [tokens, num_heads, head_dim], rotated.
            k, v: [tokens, num_kv_heads, head_dim], K rotated; query head h reads KV head h // (num_heads / num_kv_heads).
                All three may be views of wider tensors: only the last dimension is sure to be contiguous.

        Returns:
            [tokens, num_heads, head_dim], in the dtype of `q`.
        """
        ...


class SingleSequenceAttention:
    """Causal attention over one whole sequence, without a cache: the reference that everything else is held to."""

    def __call__(self, spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """As `Attention`; the tokens are positions 0..T-1 of one sequence. Scores and softmax are in fp32."""
        tokens, groups = q.shape[0], q.shape[1] // k.shape[1]
        keys, values = k.repeat_interleave(groups, dim=1).float(), v.repeat_interleave(groups, dim=1).float()
        scores = torch.einsum("qhd,khd->hqk", q.float(), keys) * spec.scale
        if spec.softcap is not None:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        position = torch.arange(tokens, device=q.device)
        distance = position[:, None] - position[None, :]
        hidden = distance < 0 if spec.window is None else (distance < 0) | (distance >= spec.window)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
        return torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
