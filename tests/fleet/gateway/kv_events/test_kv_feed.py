import logging

import pytest

from argosy.fleet.gateway.kv_events import AllCleared, BlocksRemoved, BlocksStored, KvFeed, KvSource
from argosy.fleet.policies.routing.event_or_sent_index import EventOrSentIndex
from argosy.fleet.policies.routing.kv_event_index import KvEventIndex
from argosy.fleet.policies.routing.prefix_index import ApproximatePrefixIndex
from argosy.fleet.policies.routing.request import RoutingRequest, chain_root, token_block_hashes

TOKENS = tuple(range(12))


@pytest.fixture
def feed() -> KvFeed:
    return KvFeed(EventOrSentIndex(KvEventIndex(block_tokens=4), ApproximatePrefixIndex()))


def trusted(feed, backend_id, **settings) -> KvSource:
    source = KvSource(backend_id, **{"max_blocks": 100, **settings})
    feed.trust(source)
    return source


def held(feed, *, salt: str = "", tokens: tuple[int, ...] = TOKENS) -> dict[str, int]:
    blocks = token_block_hashes(tokens, 4, chain_root(salt))
    return feed.index.match(RoutingRequest("r", prefix_blocks=blocks, prefix_block_tokens=4), 0.0)


def test_blocks_stored_together_or_one_after_the_other_are_found(feed):
    a, b = trusted(feed, "a"), trusted(feed, "b")
    feed.apply(a, [BlocksStored((1, 2, 3), None, TOKENS)])
    feed.apply(b, [BlocksStored((7,), None, TOKENS[:4]), BlocksStored((8,), 7, TOKENS[4:8])])
    assert held(feed) == {"a": 12, "b": 8}
    feed.apply(a, [BlocksRemoved((3,)), BlocksRemoved((99,))])
    assert held(feed) == {"a": 8, "b": 8}
    feed.apply(b, [AllCleared()])
    assert held(feed) == {"a": 8}
    assert (feed.num_blocks_of(a), feed.num_blocks_of(b)) == (2, 0)


def test_a_block_that_is_told_twice_counts_once(feed):
    a = trusted(feed, "a")
    feed.apply(a, [BlocksStored((1, 2, 3), None, TOKENS)] * 2)
    assert feed.num_blocks_of(a) == 3
    feed.apply(a, [BlocksRemoved((1, 2, 3))])
    assert held(feed) == {}


def test_salts_and_adapters_keep_prefixes_apart(feed):
    feed.apply(trusted(feed, "a"), [BlocksStored((1, 2, 3), None, TOKENS, cache_salt="t1")])
    feed.apply(trusted(feed, "b"), [BlocksStored((1, 2, 3), None, TOKENS, adapter_id="ad")])
    assert held(feed) == {}
    assert held(feed, salt="t1") == {"a": 12}
    assert held(feed, salt="t2") == {}


def test_a_gap_drops_all_that_was_known_of_that_backend_alone(feed):
    a, b = trusted(feed, "a"), trusted(feed, "b")
    for source in (a, b):
        feed.apply(source, [BlocksStored((1, 2, 3), None, TOKENS)])
    feed.gap(a)
    assert held(feed) == {"b": 12}
    feed.apply(a, [BlocksStored((4,), 3, (1, 2, 3, 4))])
    assert feed.num_blocks_of(a) == 0, "a block after one that is not known is of no use"
    feed.apply(a, [BlocksStored((1, 2, 3), None, TOKENS)])
    assert held(feed) == {"a": 12, "b": 12}
    feed.gap(b, malformed=True)
    assert (a.num_gaps, a.num_malformed, b.num_gaps, b.num_malformed) == (1, 0, 0, 1)


def test_events_say_nothing_before_they_are_trusted_and_after_they_are_lost(feed):
    source = KvSource("a", 100)
    feed.apply(source, [BlocksStored((1, 2, 3), None, TOKENS)])
    assert held(feed) == {}
    feed.trust(source)
    assert held(feed) == {"a": 12}
    feed.lose(source)
    assert held(feed) == {}
    assert not feed.index.is_told("a")
    feed.trust(source)
    assert held(feed) == {}


def test_what_comes_from_a_subscription_that_has_ended_is_ignored(feed):
    old = trusted(feed, "a")
    feed.close(old)
    new = trusted(feed, "a")
    feed.apply(new, [BlocksStored((1, 2, 3), None, TOKENS)])
    feed.apply(old, [AllCleared()])
    feed.gap(old)
    feed.lose(old)
    feed.close(old)
    assert held(feed) == {"a": 12}


def test_no_more_blocks_are_kept_than_may_be(feed):
    source = trusted(feed, "a", max_blocks=2)
    feed.apply(source, [BlocksStored((1, 2, 3), None, TOKENS)])
    assert held(feed) == {"a": 8}
    assert source.num_left_out == 1
    feed.apply(source, [BlocksStored((1, 2), None, TOKENS[:8])])
    assert source.num_left_out == 1, "what is known already needs no room"
    feed.apply(source, [BlocksRemoved((2,)), BlocksStored((5,), 1, (9, 9, 9, 9))])
    assert feed.num_blocks_of(source) == 2
    assert held(feed, tokens=(0, 1, 2, 3, 9, 9, 9, 9)) == {"a": 8}


def test_blocks_of_another_size_are_left_out_and_told_once(feed, caplog):
    source = trusted(feed, "a")
    with caplog.at_level(logging.ERROR, "argosy.gateway.kv_events"):
        for _ in range(2):
            feed.apply(source, [BlocksStored((1, 2), None, TOKENS)])
    assert feed.num_blocks_of(source) == 0
    assert source.num_left_out == 4
    assert len(caplog.records) == 1
    assert "block_tokens" in caplog.text
