from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.engine.executors.philox import philox4x32, token_keys

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


def keys(seeds, indices, positions):
    return token_keys(*(np.array(a, dtype=np.uint64) for a in (seeds, indices, positions)))


U64 = st.integers(0, 2**64 - 1)


@given(st.lists(st.tuples(U64, st.integers(0, 127), st.integers(0, 2**40)), min_size=1, max_size=9, unique=True))
def test_a_number_depends_on_its_own_key_only_and_all_of_it(rows):
    together = keys(*zip(*rows, strict=True))
    alone = [int(keys([seed], [index], [position])[0]) for seed, index, position in rows]
    assert together.tolist() == alone
    assert len(set(alone)) == len(rows)


def test_the_high_halves_of_seed_and_position_count():
    assert keys([1], [0], [5]) != keys([1 + 2**32], [0], [5])
    assert keys([1], [0], [5]) != keys([1], [0], [5 + 2**32])


def test_uniform_over_positions_and_seeds():
    for values in (
        keys(np.full(20_000, 3), np.zeros(20_000), np.arange(20_000)),
        keys(np.arange(20_000), np.zeros(20_000), np.full(20_000, 9)),
        keys(np.full(20_000, 3), np.arange(20_000), np.full(20_000, 9)),
    ):
        for shift in (np.uint64(58), np.uint64(20)):
            counts = np.bincount((values >> shift).astype(np.int64) & 63, minlength=64)
            chi_square = ((counts - 20_000 / 64) ** 2 / (20_000 / 64)).sum()
            assert chi_square < 117  # 63 degrees of freedom: exceeded with probability 4e-5; the draws are fixed
