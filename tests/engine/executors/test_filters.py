"""Filters against a plain restatement of their definitions, against transformers, and draws against the distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.executors.filters import filtered_probabilities
from argosy.engine.executors.philox import token_keys
from argosy.engine.executors.race import draw


def filtered(logits, params):
    return filtered_probabilities(torch.tensor(logits, dtype=torch.float32), params)


def normalised(row):
    return row / row.sum()


def plain_reference(logits, params: SamplingParams) -> np.ndarray:
    """One row, by loops over the definitions, in fp64."""
    x = np.array(logits, dtype=np.float64) / params.temperature
    if params.top_k > 0:
        x = np.array([v if (x > v).sum() < params.top_k else -np.inf for v in x])
    p = normalised(np.exp(x - x.max()))
    if params.top_p < 1.0:
        p = normalised(np.array([v if p[p > v].sum() < params.top_p else 0.0 for v in p]))
    return normalised(np.array([v if v >= params.min_p * p.max() else 0.0 for v in p]))


# Multiples of 1/4 make ties common; a gap to the thresholds keeps fp32 and fp64 from disagreeing by rounding.
LOGIT = st.integers(-24, 24).map(lambda i: i / 4)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.25, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, -1, 1, 2, 3, 10, 1000]),
    top_p=st.sampled_from([1.0, 0.913, 0.517, 0.0123]),
    min_p=st.sampled_from([0.0, 0.0517, 0.313, 1.0]),
)


@settings(deadline=None, max_examples=200)
@given(st.data(), st.integers(1, 5))
def test_each_row_as_defined_whatever_the_other_rows_ask(data, rows):
    vocab = data.draw(st.integers(2, 40))
    logits = [data.draw(st.lists(LOGIT, min_size=vocab, max_size=vocab)) for _ in range(rows)]
    params = [data.draw(PARAMS) for _ in range(rows)]
    result = filtered(logits, params)
    for r in range(rows):
        expected = plain_reference(logits[r], params[r])
        assert (result[r] > 0).tolist() == (expected > 0).tolist()
        np.testing.assert_allclose(normalised(result[r].double().numpy()), expected, rtol=1e-4, atol=1e-7)
        alone = filtered([logits[r]], [params[r]])
        assert torch.equal(alone[0], result[r])


@pytest.mark.parametrize("vocab", [50, 3_000])
@pytest.mark.parametrize("spread", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.99])
def test_nucleus_of_every_size_like_transformers(vocab, spread, top_p):
    """Flat rows need more tokens than are sorted at first."""
    logits = torch.randn(4, vocab, generator=torch.Generator().manual_seed(vocab)) * spread
    expected = torch.isfinite(TopPLogitsWarper(top_p)(None, logits.clone()))
    kept = filtered_probabilities(logits.clone(), [SamplingParams(top_p=top_p)] * 4) > 0
    # Summed from the other end in fp32, the last token's membership may differ by rounding.
    assert (kept != expected).sum(-1).max() <= (1 if spread < 0.1 else 0)


@pytest.mark.parametrize(
    ("params", "warpers"),
    [
        ({"top_k": 7}, [TopKLogitsWarper(7)]),
        ({"min_p": 0.1}, [MinPLogitsWarper(0.1)]),
        ({"temperature": 0.6}, [TemperatureLogitsWarper(0.6)]),
        (
            {"temperature": 1.7, "top_k": 200, "top_p": 0.8, "min_p": 0.05},
            [TemperatureLogitsWarper(1.7), TopKLogitsWarper(200), TopPLogitsWarper(0.8), MinPLogitsWarper(0.05)],
        ),
    ],
)
def test_filters_like_transformers(params, warpers):
    logits = torch.randn(16, 2_000, generator=torch.Generator().manual_seed(5)) * 3
    expected = logits.clone()
    for warper in warpers:
        expected = warper(None, expected)
    result = filtered_probabilities(logits.clone(), [SamplingParams(**params)] * 16)
    result = result / result.sum(-1, keepdim=True)
    torch.testing.assert_close(result, expected.softmax(-1), atol=1e-6, rtol=1e-4)


def test_a_tiny_temperature_does_not_overflow():
    result = filtered([[1e30, 3e30, 2e30]], [SamplingParams(temperature=1.1e-5)])
    assert result.tolist() == [[0.0, 1.0, 0.0]]


def test_masked_tokens_stay_masked():
    result = filtered([[-math.inf, 0.0, -math.inf, 0.0]], [SamplingParams(top_k=4, top_p=0.999, min_p=0.01)])
    assert result.tolist() == [[0.0, 0.5, 0.0, 0.5]]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_k": 4},
        {"top_p": 0.7},
        {"min_p": 0.3},
        {"temperature": 1.5, "top_k": 6, "top_p": 0.9, "min_p": 0.1},
    ],
)
def test_draws_follow_the_exact_distribution(params):
    """Chi-square over 20 000 positions of one seed."""
    logits = [0.3, 2.0, -1.0, 1.5, 0.0, 1.9, -3.0, 0.7, 1.1, -0.2]
    settings_ = SamplingParams(**params)
    expected = plain_reference(logits, settings_)
    count = 20_000
    keys = token_keys(*(np.array(a, dtype=np.uint64) for a in (np.full(count, 77), np.zeros(count), np.arange(count))))
    tokens = draw(filtered([logits], [settings_]).expand(count, -1), keys)
    counts = np.bincount(tokens.numpy(), minlength=len(logits))
    alive = expected > 0
    assert counts[~alive].sum() == 0
    chi_square = ((counts[alive] - count * expected[alive]) ** 2 / (count * expected[alive])).sum()
    freedom = alive.sum() - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom) + 8  # the draws are fixed
