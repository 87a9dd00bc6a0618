"""Op of a tape: Q and K normalised per head where the model does so and rotated, K and V written to the KV pool.

A token's row of the projection holds its heads side by side; Q is changed in place, K and V are left for the pool:

    | q 0 … q H-1 | k 0 … k G-1 | v 0 … v G-1 |        H query heads, G KV heads

The leading rotary_dim elements of a head rotate in pairs (i, i + rotary_dim / 2) (Su et al. 2021, paired as in GPT-NeoX):

    x[i]        ← x[i] · cos - x[i + half] · sin
    x[i + half] ← x[i + half] · cos + x[i] · sin
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import cfunc, njit

from argosy.kernels.kv_elements import element_bytes, store_elements
from argosy.kernels.ops_norm import inverse_rms, scale_row
from argosy.kernels.pointers import OP_SIGNATURE, bits_float, load_f32, load_i64, store_f32
from argosy.kernels.simd import LANES, fma, load, splat, store


class RopeArgs(NamedTuple):
    """Args of the op. Items are (token, head) pairs, token by token: T · (num_heads + 2 · num_kv_heads) of them.

    Attributes:
        qkv: address of f32[T, (num_heads + 2 · num_kv_heads) · head_dim]; Q and K are changed.
        num_heads, num_kv_heads, head_dim: head_dim is a multiple of 8.
        half: rotary_dim / 2.
        cos, sin: addresses of f32[positions, half] (`RopeTable`).
        positions: address of i64[T].
        slots: address of i64[T]: where each token's K and V go.
        k_pool, v_pool: addresses of this layer's K and V, [slots, num_kv_heads, head_dim].
        element: `KVElement` of the pool.
        q_norm, k_norm: addresses of f32[head_dim], with the model's `norm_offset` added, or 0.
        eps: of these norms.
    """

    qkv: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    half: int
    cos: int
    sin: int
    positions: int
    slots: int
    k_pool: int
    v_pool: int
    element: int
    q_norm: int
    k_norm: int
    eps: float


@njit(nogil=True, cache=True)
def rotate_head(x: int, cos: int, sin: int, half: int) -> None:
    """Rotate the first 2 · half floats at `x` in place."""
    high = x + 4 * half
    full = half // LANES * LANES
    for i in range(0, 4 * full, 4 * LANES):
        a, b, c, s = load(x + i), load(high + i), load(cos + i), load(sin + i)
        store(x + i, fma(splat(np.float32(0.0)) - b, s, a * c))
        store(high + i, fma(a, s, b * c))
    for i in range(4 * full, 4 * half, 4):
        p, q, u, v = load_f32(x + i), load_f32(high + i), load_f32(cos + i), load_f32(sin + i)
        store_f32(x + i, p * u - q * v)
        store_f32(high + i, q * u + p * v)


@njit(nogil=True, cache=True)
def write_head(x: int, head_dim: int, out: int, element: int) -> None:
    """Store a head's floats at `x` as elements of the pool at `out`."""
    for i in range(0, head_dim, LANES):
        store_elements(out + i * element_bytes(element), load(x + 4 * i), element)


@cfunc(OP_SIGNATURE, cache=True)
def rope_op(args: Any, begin: int, end: int, thread: int) -> None:  # noqa: ARG001
    """Heads begin..end; args: `RopeArgs`."""
    num_heads, num_kv_heads, head_dim, half, element = args[1], args[2], args[3], args[4], args[11]
    eps = bits_float(args[14])
    heads = num_heads + 2 * num_kv_heads
    for item in range(begin, end):
        token, head = item // heads, item % heads
        x = args[0] + 4 * item * head_dim
        if head < num_heads + num_kv_heads:
            weight = args[12] if head < num_heads else args[13]
            if weight != 0:
                scale_row(x, inverse_rms(x, head_dim, eps), weight, head_dim, x)
            row = 4 * half * load_i64(args[7] + 8 * token)
            rotate_head(x, args[5] + row, args[6] + row, half)
        if head >= num_heads:
            kv_head = head - num_heads
            pool = args[9]
            if kv_head >= num_kv_heads:
                kv_head -= num_kv_heads
                pool = args[10]
            slot = load_i64(args[8] + 8 * token)
            out = pool + (slot * num_kv_heads + kv_head) * head_dim * element_bytes(element)
            write_head(x, head_dim, out, element)
