"""Asking for weights before they are needed, where a product waits for memory."""

from __future__ import annotations

from argosy.kernels.ir import Emitter, Value

_DISTANCE_BYTES = 1536
"""One core of Zen 3, reading weights of one token from memory: 12 GB/s with its own prefetcher alone, 16 with this."""

_MOST_TOKENS = 2
"""With more a group of weights takes longer to multiply than to read."""


def prefetch_ahead(e: Emitter, weights: Value, num_bytes: int, num_tokens: int) -> None:
    """Ask for the `num_bytes` that lie some way behind `weights`, an address, in a tile of `num_tokens`."""
    if num_tokens <= _MOST_TOKENS:
        e.prefetch(weights, _DISTANCE_BYTES, num_bytes)
