"""Counting blocks."""

import pytest

from argosy.engine.core.block_pool import BlockPool


def test_every_block_is_given_out_once():
    pool = BlockPool(5)
    assert sorted(pool.take() for _ in range(5)) == [0, 1, 2, 3, 4]
    assert pool.num_free == 0


def test_a_block_is_free_only_after_its_last_holder():
    pool = BlockPool(2)
    block_id = pool.take()
    assert pool.hold(block_id) == 2
    assert pool.drop(block_id) == 1
    with pytest.raises(AssertionError):
        pool.free(block_id)
    assert pool.drop(block_id) == 0
    pool.free(block_id)
    assert pool.num_free == 2


def test_dropping_more_than_was_held_is_a_bug():
    pool = BlockPool(1)
    pool.drop(pool.take())
    with pytest.raises(AssertionError):
        pool.drop(0)
