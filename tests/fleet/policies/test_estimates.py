import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.errors import ConfigError
from argosy.fleet.policies.estimates import OutputHistogram, OutputQuantile


def learnt(lengths, **settings):
    estimates = OutputQuantile(**settings)
    for length in lengths:
        estimates.observe("acme", "m", length)
    return estimates


def test_before_anything_is_known_the_initial_estimate_counts_and_max_tokens_bounds_it():
    estimates = OutputQuantile(initial_tokens=700)
    assert estimates.tokens("acme", "m") == 700
    assert estimates.tokens("acme", "m", 300) == 300
    assert estimates.tokens("acme", "m", 9000) == 700


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.95])
def test_the_known_share_of_answers_is_at_most_as_long(quantile):
    rng = Random(3)
    lengths = [round(rng.lognormvariate(5.0, 1.0)) for _ in range(500)]
    estimate = learnt(lengths, quantile=quantile).tokens("acme", "m")
    share = sum(length <= estimate for length in lengths) / len(lengths)
    assert quantile - 0.02 <= share <= quantile + 0.09  # a bucket is 19 % wide


@given(st.integers(0, 1 << 20))
def test_an_estimate_is_never_below_what_was_seen_and_at_most_a_bucket_above(length):
    histogram = OutputHistogram()
    histogram.observe(length, 0.9)
    assert length <= histogram.quantile_tokens <= max(1, 1.19 * length + 1)


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=40), st.sampled_from([0.01, 0.5, 0.9, 0.99]))
def test_the_quantile_is_followed_whatever_comes(lengths, quantile):
    histogram = OutputHistogram()
    for number, length in enumerate(lengths, 1):
        histogram.observe(length, quantile)
        exact = sorted(lengths[:number])[max(1, math.ceil(quantile * number)) - 1]
        assert exact <= histogram.quantile_tokens <= max(1, 1.19 * exact + 1)


def test_lengths_beyond_the_largest_bucket_count_in_it():
    histogram = OutputHistogram()
    histogram.observe(1 << 30, 0.9)
    assert histogram.quantile_tokens == 1 << 20


def test_a_tenant_with_few_answers_borrows_the_models():
    estimates = learnt([100] * 30)
    estimates.observe("other", "m", 5000)
    assert 100 <= estimates.tokens("other", "m") < 130
    assert estimates.tokens("other", "unknown") == 1024
    for _ in range(20):
        estimates.observe("other", "m", 5000)
    assert estimates.tokens("other", "m") >= 5000
    assert estimates.tokens("acme", "m") < 130


def test_old_answers_fade():
    estimates = learnt([4000] * 600 + [100] * 3000)
    assert estimates.tokens("acme", "m") < 130


def test_the_one_heard_of_longest_ago_is_forgotten():
    estimates = OutputQuantile(min_answers=1, max_pairs=2, max_models=1)
    for tenant in ("a", "b", "a", "c"):
        estimates.observe(tenant, "m", 10)
    estimates.observe("a", "n", 4000)
    assert len(estimates._of_pair) == 2
    assert len(estimates._of_model) == 1
    assert estimates.tokens("b", "m") == 1024


@pytest.mark.parametrize("settings", [{"quantile": 1.0}, {"quantile": 0.0}, {"initial_tokens": 0}, {"max_pairs": 0}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ConfigError):
        OutputQuantile(**settings)
