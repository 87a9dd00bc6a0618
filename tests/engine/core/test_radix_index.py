"""The prefix tree against a plain set of prefixes."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.engine.core.radix_index import Namespace, RadixIndex

HOME = Namespace("", "", "float32")


def insert_path(index, namespace, tokens, block_ids, size):
    """Publish every whole block of `tokens`; blocks that stand there already are kept."""
    parent = None
    for begin in range(0, len(tokens) - size + 1, size):
        key = tuple(tokens[begin : begin + size])
        parent = index.child(namespace, parent, key) or index.insert(namespace, parent, key, next(block_ids), 0)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.sampled_from([1, 2, 3]))
def test_matches_the_longest_published_prefix(seed, size):
    rng, index, block_ids = Random(seed), RadixIndex(size), iter(range(10**6))
    published = set()
    for _ in range(30):
        namespace = Namespace(rng.choice("ab"), "", "float32")
        tokens = [rng.randint(0, 2) for _ in range(rng.randint(0, 9))]
        if rng.random() < 0.6:
            insert_path(index, namespace, tokens, block_ids, size)
            published |= {(namespace, tuple(tokens[:end])) for end in range(size, len(tokens) + 1, size)}
        limit = rng.randint(0, 9 // size)
        matched = index.match(namespace, tokens, min(limit, len(tokens) // size))
        expected = 0
        while expected < limit and (namespace, tuple(tokens[: (expected + 1) * size])) in published:
            if (expected + 1) * size > len(tokens):
                break
            expected += 1
        assert len(matched) == expected
        assert [n.depth for n in matched] == list(range(1, expected + 1))
        assert [t for n in matched for t in n.tokens] == tokens[: expected * size]
    assert len(index) == len(published)


def test_an_empty_namespace_is_forgotten():
    index = RadixIndex(2)
    for salt in "abc":
        insert_path(index, Namespace(salt, "", "float32"), [1, 2, 3, 4], iter([ord(salt), ord(salt) + 100]), 2)
    assert len(list(index.roots())) == 3
    leaf = index.node_of(ord("b") + 100)
    parent = index.remove(leaf)
    assert parent is index.node_of(ord("b"))
    assert index.remove(parent) is None
    assert {namespace.cache_salt for namespace, _ in index.roots()} == {"a", "c"}
    assert index.match(Namespace("b", "", "float32"), [1, 2], 1) == []


def test_only_leaves_can_be_removed():
    index = RadixIndex(2)
    insert_path(index, HOME, [1, 2, 3, 4], iter([0, 1]), 2)
    with pytest.raises(AssertionError):
        index.remove(index.node_of(0))


def test_a_block_stands_in_one_place():
    index = RadixIndex(1)
    index.insert(HOME, None, (1,), 0, 0)
    with pytest.raises(AssertionError):
        index.insert(HOME, None, (2,), 0, 0)
    with pytest.raises(AssertionError):
        index.insert(HOME, None, (1,), 1, 0)
