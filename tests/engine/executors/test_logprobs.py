from __future__ import annotations

import math

import pytest
import torch

from argosy.engine.executors.logprobs import token_logprobs


def test_scores_ranks_and_the_most_likely_tokens():
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(2)) * 3
    tokens, num_top = [0, 39, 7, 7, 20], [0, 3, 20, 1, 0]
    for row, entry in enumerate(token_logprobs(logits, tokens, num_top)):
        expected = logits[row].double().log_softmax(-1)
        assert entry.token_id == tokens[row]
        assert entry.logprob == pytest.approx(expected[tokens[row]].item(), abs=1e-5)
        order = expected.argsort(descending=True).tolist()
        assert entry.rank == order.index(tokens[row]) + 1
        assert [t for t, _ in entry.top] == order[: num_top[row]]
        assert [p for _, p in entry.top] == pytest.approx([expected[t].item() for t, _ in entry.top], abs=1e-5)


def test_equal_logits_share_a_rank_and_stand_by_id():
    (entry,) = token_logprobs(torch.tensor([[1.0, 2.0, 1.0, 1.0]]), [3], [4])
    assert entry.rank == 2
    assert [t for t, _ in entry.top] == [1, 0, 2, 3]


def test_a_masked_token_has_a_logprob_of_minus_infinity():
    (entry,) = token_logprobs(torch.tensor([[0.0, -math.inf]]), [1], [2])
    assert entry.logprob == -math.inf
    assert entry.top == ((0, 0.0), (1, -math.inf))


def test_more_than_the_vocabulary_gives_the_vocabulary():
    (entry,) = token_logprobs(torch.zeros(1, 3), [0], [20])
    assert len(entry.top) == 3


def test_no_rows():
    assert token_logprobs(torch.zeros(0, 3), [], []) == []
