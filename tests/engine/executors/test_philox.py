from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.engine.executors.philox import philox4x32, token_uniforms

# Known answers published with Random123 (philox 4x32, 10 rounds): counter, key, result.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_published_known_answers(counter, key, expected):
    result = philox4x32(np.array([counter], dtype=np.uint32), np.array([key], dtype=np.uint32))
    assert tuple(result[0].tolist()) == expected


def uniforms(seeds, indices, positions):
    return token_uniforms(*(np.array(a, dtype=np.uint64) for a in (seeds, indices, positions)))


U64 = st.integers(0, 2**64 - 1)


@given(st.lists(st.tuples(U64, st.integers(0, 127), st.integers(0, 2**40)), min_size=1, max_size=9, unique=True))
def test_a_number_depends_on_its_own_key_only_and_all_of_it(rows):
    together = uniforms(*zip(*rows, strict=True))
    alone = [uniforms([seed], [index], [position])[0] for seed, index, position in rows]
    assert together.tolist() == alone
    assert len(set(alone)) == len(rows)
    assert all(0.0 <= u < 1.0 and u * 2**53 == int(u * 2**53) for u in alone)


def test_the_high_halves_of_seed_and_position_count():
    assert uniforms([1], [0], [5]) != uniforms([1 + 2**32], [0], [5])
    assert uniforms([1], [0], [5]) != uniforms([1], [0], [5 + 2**32])


def test_uniform_over_positions_and_seeds():
    for values in (
        uniforms(np.full(20_000, 3), np.zeros(20_000), np.arange(20_000)),
        uniforms(np.arange(20_000), np.zeros(20_000), np.full(20_000, 9)),
        uniforms(np.full(20_000, 3), np.arange(20_000), np.full(20_000, 9)),
    ):
        counts = np.bincount((values * 64).astype(int), minlength=64)
        chi_square = ((counts - 20_000 / 64) ** 2 / (20_000 / 64)).sum()
        assert chi_square < 117  # 63 degrees of freedom: exceeded with probability 4e-5; the draws are fixed
