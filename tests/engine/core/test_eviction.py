"""The lazy heap gives the same order as sorting the live candidates."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.engine.core.eviction import EvictionQueue, make_policy
from argosy.engine.core.radix_index import Node


@settings(max_examples=100, deadline=None)
@given(
    policy=st.sampled_from(["lru", "size", "priority"]),
    moves=st.lists(
        st.tuples(st.sampled_from(["add", "discard", "pop"]), st.integers(0, 9), st.integers(0, 5)), max_size=300
    ),
)
def test_pops_in_the_order_of_the_policy(policy, moves):
    policy_object = make_policy(policy)
    queue = EvictionQueue(policy_object)
    nodes = [Node(i, (i,), None, depth=i % 4, priority=i % 3) for i in range(10)]
    live, order = set(), {}
    for count, (move, which, used) in enumerate(moves):
        node = nodes[which]
        if move == "add" and which not in live:
            node.last_used = used
            queue.add(node)
            live.add(which)
            order[which] = (policy_object.key(node), count)
        elif move == "discard":
            queue.discard(node)
            live.discard(which)
        elif move == "pop" and live:
            expected = min(live, key=order.__getitem__)
            assert queue.pop().block_id == expected
            live.remove(expected)
        assert len(queue) == len(live)
        assert {n.block_id for n in queue.candidates()} == live


def test_stale_entries_do_not_pile_up():
    queue, node = EvictionQueue(make_policy("lru")), Node(0, (0,), None, 1)
    for _ in range(10_000):
        queue.add(node)
        queue.discard(node)
    assert len(queue._heap) <= 128


def test_a_candidate_cannot_be_added_twice():
    queue, node = EvictionQueue(make_policy("lru")), Node(0, (0,), None, 1)
    queue.add(node)
    with pytest.raises(AssertionError):
        queue.add(node)
