"""Outliers of a product's input: found in the scales, and computed more finely."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.engine.executors.cpu_refinement import MAX_REFINED, groups_to_refine, sample_tokens


@pytest.mark.parametrize(
    ("scales", "expected"),
    [
        ([1.0] * 16, ()),
        ([1.0] * 5 + [9.0] + [1.0] * 10, (5,)),
        ([9.0] * 3 + [1.0] * 13, (0, 1)),  # at most one in eight
        ([1.0, 9.0, 1.0, 8.0] + [1.0] * 12, (1, 3)),
        ([1.0] * 6 + [9.0], ()),  # too few groups to take one
        ([0.0] * 16, ()),
        ([float("nan")] + [1.0] * 15, ()),
        ([float("inf")] + [1.0] * 15, ()),
    ],
)
def test_groups_far_above_the_mean_are_chosen(scales, expected):
    assert groups_to_refine(np.array([scales] * 3, np.float32)) == expected


def test_a_single_large_token_does_not_decide():
    scales = np.ones((50, 16), np.float32)
    scales[0, 7] = 1e6
    assert groups_to_refine(scales) == ()
    scales[1:, 2] = 5.0
    assert groups_to_refine(scales) == (2,)


@given(st.integers(1, 200), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_few_groups_each_once_in_order(groups, tokens, seed):
    scales = np.random.default_rng(seed).pareto(0.5, (tokens, groups)).astype(np.float32)
    chosen = groups_to_refine(scales)
    assert list(chosen) == sorted(set(chosen))
    assert len(chosen) <= min(MAX_REFINED, groups // 8)


def test_sampled_tokens_are_of_the_vocabulary_and_always_the_same():
    assert sample_tokens(97, 64) == sample_tokens(97, 64)
    assert set(sample_tokens(97, 2000)) == set(range(97))


@pytest.mark.parametrize("matrix_type", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_logits_with_outliers_come_nearer_to_the_decoder(kernel_driver, kernel_model, full_logits, matrix_type):
    """The same bits for any number of threads, too."""
    name, tokens = "outliers", [(7 * i + i // 11) % 97 for i in range(60)]
    expected = full_logits(kernel_model(name, matrix_type)[2], tokens)
    found, three, plain = (
        kernel_driver(name, matrix_type, num_blocks=32, **settings).executor.score(tokens)
        for settings in ({"refine_outliers": True}, {"refine_outliers": True, "num_threads": 3}, {})
    )
    assert np.array_equal(found.numpy(), three.numpy())
    assert (found - expected).abs().mean() < 0.9 * (plain - expected).abs().mean()
