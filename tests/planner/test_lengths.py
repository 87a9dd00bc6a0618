import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.errors import ConfigError
from argosy.planner.lengths import Lengths


def test_fixed_lengths_have_no_spread():
    lengths = Lengths.fixed(300)
    assert (lengths.mean, lengths.cv, lengths.nodes, lengths.shares, lengths.resident_mean) == (300, 0, (300,), (1,), 300)


@given(st.floats(20, 5000), st.floats(0.1, 1.5))
def test_lognormal_nodes_reproduce_mean_and_median(mean: float, cv: float):
    lengths = Lengths.lognormal(mean, cv)
    of_nodes = sum(share * node for share, node in zip(lengths.shares, lengths.nodes, strict=True))
    assert of_nodes == pytest.approx(mean, rel=0.08)
    assert lengths.nodes == tuple(sorted(lengths.nodes))
    below_half = [node for node, share in zip(lengths.nodes, _cumulated(lengths), strict=True) if share <= 0.5]
    assert below_half[-1] <= mean / math.sqrt(1 + cv * cv) <= lengths.nodes[len(below_half)]


def _cumulated(lengths: Lengths) -> list[float]:
    return [sum(lengths.shares[: index + 1]) for index in range(len(lengths.shares))]


def test_shares_are_of_all_requests():
    assert sum(Lengths.lognormal(100, 1).shares) == pytest.approx(1)
    assert sum(Lengths.empirical([1, 5, 9]).shares) == pytest.approx(1)


def test_empirical_lengths_keep_mean_and_spread():
    lengths = Lengths.empirical([100, 200, 300])
    assert lengths.mean == 200
    assert lengths.cv == pytest.approx(math.sqrt(20000 / 3) / 200)


def test_long_outputs_count_for_the_time_they_stay():
    values = [10, 10, 100]
    lengths = Lengths.empirical(values)
    assert lengths.resident_mean == pytest.approx(sum(v * v for v in values) / sum(values))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Lengths.fixed(0), "at least 1 token"),
        (lambda: Lengths.lognormal(math.nan, 1), "mean"),
        (lambda: Lengths.lognormal(10, -1), "cv"),
        (lambda: Lengths.empirical([]), "at least one length"),
        (lambda: Lengths.empirical([5, 0]), "at least 1 token"),
    ],
)
def test_impossible_lengths_are_refused(make, words: str):
    with pytest.raises(ConfigError, match=words):
        make()
