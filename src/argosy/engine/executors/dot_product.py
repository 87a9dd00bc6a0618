"""Scaled dot-product attention over keys already gathered, and the causal bias that its callers share."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from argosy.models.architectures.attention import AttentionSpec


def attend(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, bias: Tensor | None, *, causal: bool = False) -> Tensor:
    """Attention of `q` [batch, heads, queries, head_dim] over `k`, `v` [batch, heads, keys, head_dim].

    `bias` (0 or -inf, in the type of `q`) is added to the scores and broadcasts to [batch, heads, queries, keys];
    `causal` hides key j from query i when j > i and excludes a bias. The window is in the bias; softmax is in fp32.
    """
    if spec.softcap is None:
        return scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal, scale=spec.scale)
    scores = torch.matmul(q.float(), k.float().transpose(-1, -2)) * spec.scale
    scores = spec.softcap * torch.tanh(scores / spec.softcap)
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    elif bias is not None:
        scores = scores + bias
    return torch.matmul(scores.softmax(dim=-1), v.float()).to(q.dtype)


def by_kv_head(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One sequence's Q [n, num_heads, d] and K, V [m, num_kv_heads, d] as views for grouped-query `attend`.

    KV heads become the batch, and the query heads that read one become its heads, over K and V of stride zero:
    [num_kv_heads, num_heads / num_kv_heads, n or m, d]. Nothing is copied.
    """
    kv_heads, groups = k.shape[1], q.shape[1] // k.shape[1]
    grouped = q.view(-1, kv_heads, groups, q.shape[2]).permute(1, 2, 0, 3)
    keys, values = (t.transpose(0, 1).unsqueeze(1).expand(-1, groups, -1, -1) for t in (k, v))
    return grouped, keys, values


def from_kv_head(attended: Tensor) -> Tensor:
    """[num_kv_heads, groups, n, d] as `by_kv_head` gives it, back to [n, num_heads, d]."""
    return attended.permute(2, 0, 1, 3).flatten(1, 2)


class CausalBias:
    """Additive masks for query tiles of up to `tile` rows over any span of keys, cut from one matrix per window.

    Whether a query sees a key depends on their distance alone, so a matrix aligned at the last query and the last key
    holds every smaller case as its lower right corner (tile 3, window 4; `.` is 0 and `x` is -inf):

            keys    … -5 -4 -3 -2 -1  0
        query -2    …  .  .  .  .  x  x
        query -1    …  x  .  .  .  .  x
        query  0    …  x  x  .  .  .  .

    The matrices grow with the longest span asked for and are kept from step to step.
    """

    def __init__(self, tile: int, dtype: torch.dtype, device: torch.device) -> None:
        self.tile = tile
        self._dtype = dtype
        self._device = device
        self._by_window: dict[int | None, Tensor] = {}

    def corner(self, queries: int, keys: int, window: int | None) -> Tensor:
        """The bias [queries, keys] for queries and keys that end at the same position; queries <= tile. Read-only."""
        full = self._by_window.get(window)
        if full is None or full.shape[1] < keys:
            full = self._build(max(256, 1 << (keys - 1).bit_length()), window)
            self._by_window[window] = full
        return full[self.tile - queries :, full.shape[1] - keys :]

    def _build(self, keys: int, window: int | None) -> Tensor:
        query = torch.arange(1 - self.tile, 1, device=self._device)
        key = torch.arange(1 - keys, 1, device=self._device)
        distance = query[:, None] - key[None, :]
        hidden = distance < 0
        if window is not None:
            hidden |= distance >= window
        bias = torch.zeros(self.tile, keys, dtype=self._dtype, device=self._device)
        return bias.masked_fill_(hidden, float("-inf"))
