from __future__ import annotations

import numpy as np
import pytest
import torch

from argosy.kernels.kv_elements import KV_ELEMENTS
from argosy.kernels.ops_rope import RopeArgs, rope_op
from argosy.models.architectures.norm import RMSNorm
from argosy.models.architectures.rope import RopeTable, rotate
from argosy.models.config import RopeConfig

TOKENS, SLOTS, POSITIONS, EPS = 7, 40, 200, 1e-6


def run_rope(run_op, rng, *, heads, kv_heads, head_dim, rope, kv_dtype="float32", qk_norm=False, special=None):
    """(args' arrays after the op, expected Q, K and V as torch tensors)."""
    table = RopeTable(rope, head_dim, POSITIONS, dtype=torch.float32, device="cpu")
    qkv = rng.standard_normal((TOKENS, heads + 2 * kv_heads, head_dim), dtype=np.float32)
    if special is not None:
        qkv[0, -1, :] = special
    positions, slots = rng.integers(0, POSITIONS, TOKENS), rng.permutation(SLOTS)[:TOKENS]
    pool = torch.full((2, SLOTS, kv_heads, head_dim), -5.0, dtype=getattr(torch, kv_dtype))
    norms = rng.standard_normal((2, head_dim), dtype=np.float32)
    q, k, v = torch.from_numpy(qkv.copy()).split([heads, kv_heads, kv_heads], dim=1)
    if qk_norm:
        modules = [RMSNorm(head_dim, eps=EPS, offset=0.0, dtype=torch.float32, device="cpu") for _ in range(2)]
        for module, weight in zip(modules, norms, strict=True):
            module.weight.copy_(torch.from_numpy(weight))
        q, k = modules[0](q), modules[1](k)
    rotary = table(torch.from_numpy(positions))
    args = RopeArgs(
        qkv.ctypes.data,
        heads,
        kv_heads,
        head_dim,
        table.cos.shape[1],
        table.cos.data_ptr(),
        table.sin.data_ptr(),
        positions.ctypes.data,
        slots.ctypes.data,
        pool[0].data_ptr(),
        pool[1].data_ptr(),
        KV_ELEMENTS[kv_dtype],
        norms[0].ctypes.data if qk_norm else 0,
        norms[1].ctypes.data if qk_norm else 0,
        EPS,
    )
    run_op(rope_op, args, TOKENS * (heads + 2 * kv_heads), chunk=5)
    return qkv, pool, slots, (rotate(q, rotary), rotate(k, rotary), v)


ROPES = [
    (9, 3, 64, RopeConfig()),
    (2, 2, 16, RopeConfig(theta=500.0, rotary_dim=12)),  # six pairs: no whole vector
    (4, 1, 80, RopeConfig(rotary_dim=40)),
    (4, 2, 32, RopeConfig(kind="yarn", factor=4.0, original_max_positions=64)),
    (4, 2, 32, RopeConfig(kind="llama3", factor=8.0, original_max_positions=64)),
]


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "rope"), ROPES)
@pytest.mark.parametrize("qk_norm", [False, True])
def test_q_rotates_in_place_and_k_and_v_reach_their_slots(run_op, rng, heads, kv_heads, head_dim, rope, qk_norm):
    qkv, pool, slots, (q, k, v) = run_rope(
        run_op, rng, heads=heads, kv_heads=kv_heads, head_dim=head_dim, rope=rope, qk_norm=qk_norm
    )
    np.testing.assert_allclose(qkv[:, :heads], q, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(pool[0, slots], k, rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(pool[1, slots], v)
    untouched = np.setdiff1d(np.arange(SLOTS), slots)
    assert (pool[:, untouched] == -5.0).all()


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "float16"])
def test_stored_elements_are_rounded_as_torch_rounds(run_op, rng, kv_dtype):
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.00390625, 1.01171875, 3.4e38] * 2, np.float32)
    special[8:] = [65504.0, 65519.0, 65520.0, 6e-8, 2.9e-8, 1e-40, 2049.0, 2051.0]  # halves' edges and ties
    qkv, pool, slots, (_, _, v) = run_rope(
        run_op, rng, heads=2, kv_heads=2, head_dim=16, rope=RopeConfig(), kv_dtype=kv_dtype, special=special
    )
    stored_k = torch.from_numpy(qkv[:, 2:4]).to(pool.dtype)
    np.testing.assert_array_equal(pool[0, slots].view(torch.int16), stored_k.view(torch.int16))
    expected, got = v.to(pool.dtype).float().numpy(), pool[1, slots].float().numpy()
    np.testing.assert_array_equal(got, expected)
