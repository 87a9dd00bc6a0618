"""Routing and mixing of experts, against a loop over tokens."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from argosy.models.architectures.moe import ExpertNames, SparseMoe
from argosy.models.config import MoeConfig

HIDDEN, WIDTH = 24, 20


def block(normalize: bool, per_token: int = 3, experts: int = 6) -> SparseMoe:
    generator = torch.Generator().manual_seed(1)
    moe = MoeConfig(experts, per_token, WIDTH, normalize, layers=(0,))
    built = SparseMoe(HIDDEN, moe, ExpertNames("g", "u", "d"), "silu", dtype=torch.float32, device="cpu")
    for parameter in built.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4)
    return built


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("per_token", [1, 3, 6])
def test_each_token_is_the_weighted_sum_of_its_best_experts(normalize, per_token):
    moe, x = block(normalize, per_token), torch.randn(13, HIDDEN)
    slots = dict(moe.experts.checkpoint_slots())
    for token, out in zip(x, moe(x), strict=True):
        probabilities = (moe.gate.weight @ token).softmax(0)
        best = probabilities.argsort(descending=True)[:per_token]
        scale = probabilities[best].sum() if normalize else 1.0
        expected = torch.zeros(HIDDEN)
        for e in best.tolist():
            gate, up, down = (slots[f"experts.{e}.{name}.weight"] for name in "gud")
            expected += probabilities[e] / scale * (down @ (F.silu(gate @ token) * (up @ token)))
        torch.testing.assert_close(out, expected)


def test_experts_nobody_chooses_are_not_computed(monkeypatch):
    moe, visited = block(True, per_token=1), []
    moe.gate.weight.zero_()
    moe.gate.weight[4, 0] = 1.0
    forward = moe.experts.forward
    monkeypatch.setattr(moe.experts, "forward", lambda x, expert: visited.append((expert, len(x))) or forward(x, expert))
    moe(torch.ones(7, HIDDEN))
    assert visited == [(4, 7)]


def test_no_tokens_give_no_rows():
    assert block(True)(torch.empty(0, HIDDEN)).shape == (0, HIDDEN)
