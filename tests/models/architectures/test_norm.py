"""Root-mean-square normalisation and where half precision is rounded."""

from __future__ import annotations

import pytest
import torch

from argosy.models.architectures.norm import RMSNorm


def norm(size: int, offset: float, dtype: torch.dtype, weight: torch.Tensor) -> RMSNorm:
    built = RMSNorm(size, eps=1e-5, offset=offset, dtype=dtype, device="cpu")
    built.weight.copy_(weight)
    return built


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_half_precision_is_squared_in_fp32(offset):
    """300² is infinite in fp16, and with it the norm would be 0."""
    out = norm(4, offset, torch.float16, torch.ones(4))(torch.tensor([[300.0, -300.0, 300.0, -300.0]]).half())
    assert out.dtype == torch.float16
    assert out.tolist() == [[1.0 + offset, -1.0 - offset, 1.0 + offset, -1.0 - offset]]


def test_llama_rounds_before_the_weight_and_gemma_after_it():
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(9, 64, generator=generator).bfloat16(), torch.randn(64, generator=generator).bfloat16()
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    llama = normed.bfloat16() * weight
    gemma = (normed * (1.0 + weight.float())).bfloat16()
    assert torch.equal(norm(64, 0.0, torch.bfloat16, weight)(x), llama)
    assert torch.equal(norm(64, 1.0, torch.bfloat16, weight)(x), gemma)
    assert not torch.equal((normed * weight.float()).bfloat16(), llama), "the order of rounding must show"


def test_the_input_is_left_as_it_was():
    x = torch.randn(3, 8)
    before = x.clone()
    norm(8, 0.0, torch.float32, torch.full((8,), 3.0))(x)
    assert torch.equal(x, before)
