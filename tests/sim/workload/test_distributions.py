import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import NormalDist, fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.errors import ConfigError, TraceFileError
from argosy.sim.workload.distributions import (
    Distribution,
    Empirical,
    Exponential,
    Fixed,
    FromTrace,
    Lognormal,
    Mixture,
    MixturePart,
    Uniform,
    weighted_index,
)

DRAWS = 20_000


def draws(distribution: Distribution, seed: int = 1) -> list[float]:
    rng = Random(seed)
    return [distribution.draw(rng) for _ in range(DRAWS)]


@pytest.mark.parametrize(
    ("distribution", "mean", "deviation"),
    [
        (Fixed(7.5), 7.5, 0.0),
        (Uniform(10, 40), 25, 30 / math.sqrt(12)),
        (Exponential(80), 80, 80),
        (Lognormal(300, 0.5), 300, 150),
        (Lognormal(300, 1.2), 300, 360),
        (Empirical((1.0, 2.0, 9.0)), 4, math.sqrt((9 + 4 + 25) / 3)),
        (Mixture((MixturePart(1, Fixed(10)), MixturePart(3, Fixed(50)))), 40, math.sqrt(0.25 * 0.75) * 40),
    ],
)
def test_the_mean_is_as_stated(distribution: Distribution, mean: float, deviation: float):
    # Four standard errors of a mean.
    assert fmean(draws(distribution)) == pytest.approx(mean, abs=4 * deviation / math.sqrt(DRAWS) + 1e-9)


@pytest.mark.parametrize(
    ("distribution", "cv"), [(Exponential(80), 1.0), (Lognormal(300, 0.5), 0.5), (Uniform(0, 1), 1 / math.sqrt(3))]
)
def test_the_spread_is_as_stated(distribution: Distribution, cv: float):
    values = draws(distribution)
    # The sample cv of these has a deviation below 1.5 cv / sqrt(n).
    assert pstdev(values) / fmean(values) == pytest.approx(cv, rel=4 * 1.5 / math.sqrt(DRAWS))


def test_lognormal_quantiles_are_the_normals():
    values = sorted(draws(Lognormal(300, 1.2)))
    scale = math.sqrt(math.log1p(1.2**2))
    normal = NormalDist(math.log(300) - scale**2 / 2, scale)
    for share in (0.1, 0.5, 0.9):
        below = sum(math.log(value) < normal.inv_cdf(share) for value in values)
        assert below == pytest.approx(DRAWS * share, abs=4 * math.sqrt(DRAWS * share * (1 - share)))


@pytest.mark.parametrize("distribution", [Exponential(80, max=100), Lognormal(100, 1.0, max=100)])
def test_values_above_the_max_are_drawn_again(distribution: Exponential | Lognormal):
    values = draws(distribution)
    assert max(values) <= 100
    # Drawn again, not cut: nothing piles up at the limit.
    assert sum(value > 99.99 for value in values) < 20
    unlimited = [
        value
        for value in draws(type(distribution)(*((80,) if isinstance(distribution, Exponential) else (100, 1.0))))
        if value <= 100
    ]
    assert fmean(values) == pytest.approx(fmean(unlimited), rel=0.03)


def test_counts_are_whole_and_at_least_one():
    rng = Random(3)
    assert [Fixed(value).draw_whole(rng) for value in (0, 0.4, 1.4, 1.6, 512)] == [1, 1, 1, 2, 512]
    assert min(Exponential(0.1).draw_whole(rng) for _ in range(100)) == 1


def test_uniform_counts_take_both_ends_and_all_alike():
    rng = Random(4)
    counts = Counter(Uniform(1, 6).draw_whole(rng) for _ in range(6000))
    assert set(counts) == set(range(1, 7))
    # Binomial(6000, 1/6): mean 1000, deviation 29.
    assert all(abs(count - 1000) < 4 * 29 for count in counts.values())
    assert Uniform(2.2, 2.4).draw_whole(rng) == 2
    mixed = Mixture((MixturePart(1, Uniform(5, 6)),))
    assert Counter(mixed.draw_whole(rng) for _ in range(1000))[5] == pytest.approx(500, abs=4 * 16)


@given(weights=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6), seed=st.integers(0, 1 << 32))
def test_a_weighted_index_is_one_of_them(weights: list[float], seed: int):
    bounds = tuple(sum(weights[: i + 1]) for i in range(len(weights)))
    assert 0 <= weighted_index(bounds, Random(seed)) < len(weights)


def test_a_product_that_rounds_up_to_the_whole_is_the_last_index():
    class Highest(Random):
        def random(self) -> float:
            return 1 - 2**-53

    assert weighted_index((5e-324,), Highest()) == 0


def test_lengths_of_a_trace(tmp_path: Path):
    rows = [{"timestamp": 0, "input_length": n, "output_length": 2 * n} for n in (5, 7)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert FromTrace("t.jsonl", "prompt").resolved(tmp_path) == Empirical((5.0, 7.0))
    assert FromTrace("t.jsonl", "output").resolved(tmp_path) == Empirical((10.0, 14.0))
    mixture = Mixture((MixturePart(1, FromTrace("t.jsonl", "output")), MixturePart(2, Fixed(3))))
    assert mixture.resolved(tmp_path) == Mixture((MixturePart(1, Empirical((10.0, 14.0))), MixturePart(2, Fixed(3))))
    with pytest.raises(TraceFileError, match="cannot be read"):
        FromTrace("absent.jsonl", "prompt").resolved(tmp_path)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Fixed(-1), "value"),
        (lambda: Fixed(math.nan), "value"),
        (lambda: Uniform(5, 4), "high must be at least low"),
        (lambda: Uniform(-1, 4), "low"),
        (lambda: Exponential(0), "mean"),
        (lambda: Exponential(10, max=0.01), "keeps only"),
        (lambda: Exponential(10, max=-1), "keeps only"),
        (lambda: Lognormal(0, 1), "mean"),
        (lambda: Lognormal(10, 0), "cv"),
        (lambda: Lognormal(100, 0.5, max=1), "keeps only"),
        (lambda: Lognormal(100, 0.5, max=-1), "max"),
        (lambda: Empirical(()), "must not be empty"),
        (lambda: Empirical((1.0, -2.0)), r"values\[1\]"),
        (lambda: FromTrace("x", "both"), "prompt or output"),
        (lambda: Mixture(()), "must not be empty"),
        (lambda: MixturePart(0, Fixed(1)), "weight"),
    ],
)
def test_impossible_ones_are_refused(make: Callable[[], object], words: str):
    with pytest.raises(ConfigError, match=words):
        make()
