from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.kernels.attention_block import locate_keys
from argosy.kernels.attention_tiles import BLOCK_KEYS


@settings(deadline=None)
@given(
    block=st.integers(0, 3),
    count=st.integers(1, BLOCK_KEYS),
    block_size=st.sampled_from([1, 3, 16, 100]),
    seed=st.integers(0, 1000),
)
def test_keys_lie_where_the_block_table_says_and_absent_ones_with_the_last(block, count, block_size, seed):
    """Entries of the table behind the sequence's end are never followed."""
    first = block * BLOCK_KEYS
    used = -(-(first + count) // block_size)
    table = np.concatenate([np.random.default_rng(seed).integers(0, 900, used), np.full(BLOCK_KEYS, 10**9)])
    offsets = np.full(BLOCK_KEYS, -1, np.int64)
    locate_keys(block, first + count, table.ctypes.data, block_size, 24, offsets.ctypes.data)
    positions = np.minimum(np.arange(first, first + BLOCK_KEYS), first + count - 1)
    expected = (table[positions // block_size] * block_size + positions % block_size) * 24
    np.testing.assert_array_equal(offsets, expected)
