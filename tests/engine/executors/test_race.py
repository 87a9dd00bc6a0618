from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.engine.executors.philox import token_keys
from argosy.engine.executors.race import draw

KEY = st.integers(0, 2**64 - 1)
WEIGHTS = st.lists(st.sampled_from([0.0, 1e-30, 0.1, 0.3, 7.0]), min_size=1, max_size=30).filter(any)


def keys_of(count: int, seed: int = 5) -> np.ndarray:
    return token_keys(
        np.full(count, seed, dtype=np.uint64), np.zeros(count, dtype=np.uint64), np.arange(count, dtype=np.uint64)
    )


def splitmix64(key: int, index: int) -> int:
    """Number `index` of the stream, in Python's own integers."""
    mask = 2**64 - 1
    z = (key + (index + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def plain_race(weights: list[float], key: int) -> int:
    """The token whose exponential clock rings first."""
    times = {}
    for i, weight in enumerate(np.array(weights, dtype=np.float32).tolist()):
        if weight > 0:
            times[i] = -math.log(((splitmix64(key, i) >> 11) + 0.5) * 2.0**-53) / weight
    return min(times, key=lambda i: times[i])


def test_the_stream_gives_the_published_numbers():
    # First outputs of SplitMix64 from the seed 1234567, as its authors and many ports print them.
    assert [splitmix64(1234567, i) for i in range(3)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(WEIGHTS, KEY), min_size=1, max_size=5))
def test_the_first_clock_to_ring_wins_whatever_the_other_rows_are(cases):
    vocab = max(len(weights) for weights, _ in cases)
    rows = torch.tensor([weights + [0.0] * (vocab - len(weights)) for weights, _ in cases])
    tokens = draw(rows, np.array([key for _, key in cases], dtype=np.uint64)).tolist()
    assert tokens == [plain_race(weights, key) for weights, key in cases]


@given(WEIGHTS, KEY, st.sampled_from([2.0**-20, 0.5, 4.0, 2.0**20]))
def test_scaling_a_row_changes_nothing(weights, key, factor):
    keys = np.array([key], dtype=np.uint64)
    assert draw(torch.tensor([weights]), keys).tolist() == draw(torch.tensor([weights]) * factor, keys).tolist()


@pytest.mark.parametrize("weights", [[1.0, 2.0, 3.0, 4.0], [0.001, 0.002, 10.0], [1.0] * 50])
def test_draws_follow_the_weights(weights):
    count = 20_000
    tokens = draw(torch.tensor([weights]).expand(count, -1), keys_of(count))
    expected = count * np.array(weights) / sum(weights)
    chi_square = ((np.bincount(tokens.numpy(), minlength=len(weights)) - expected) ** 2 / expected).sum()
    freedom = len(weights) - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom) + 8  # the draws are fixed


def test_rounding_of_the_logits_hardly_ever_changes_a_draw():
    """Errors of logits go together across a vocabulary. Inverting the cumulative distribution changes a fifth of these."""
    logits = torch.randn(400, 20_000, generator=torch.Generator().manual_seed(3))
    error = 1e-4 * torch.cos(torch.arange(20_000) / 20_000 * 6.283)
    first, second = (draw(torch.softmax(x, dim=-1), keys_of(400)) for x in (logits, logits + error))
    assert (first != second).sum() <= 1


def test_few_candidates_are_drawn_as_many_are():
    """The same race whether a row's losers are told apart by their probability or by their clock."""
    weights = torch.rand(64, 300, generator=torch.Generator().manual_seed(1))
    masked = weights.clone()
    masked[:, ::9] = 0.0
    padded = torch.nn.functional.pad(masked, (0, 5000))
    assert draw(padded, keys_of(64)).tolist() == draw(masked, keys_of(64)).tolist()
