import pytest

from argosy.fleet.gateway.kv_events import AllCleared, BlocksRemoved, BlocksStored, KvEventFeed, MalformedEvent, decode_event
from argosy.fleet.policies.routing.kv_event_index import KvEventIndex
from argosy.fleet.policies.routing.request import RoutingRequest, chain_root, token_block_hashes

TOKENS = tuple(range(12))


def make() -> tuple[KvEventFeed, KvEventIndex]:
    index = KvEventIndex(block_tokens=4)
    return KvEventFeed(index), index


def held(index: KvEventIndex, *, salt: str = "", tokens: tuple[int, ...] = TOKENS) -> dict[str, int]:
    blocks = token_block_hashes(tokens, 4, chain_root(salt))
    return index.match(RoutingRequest("r", prefix_blocks=blocks, prefix_block_tokens=4), 0.0)


def stored(*block_ids: int, parent: int | None = None, tokens: tuple[int, ...] = TOKENS, **fields) -> dict:
    return {
        "type": "BlockStored",
        "block_hashes": list(block_ids),
        "parent_block_hash": parent,
        "token_ids": list(tokens),
        "block_size": 4,
        **fields,
    }


def test_blocks_stored_together_or_one_after_the_other_are_found():
    feed, index = make()
    assert feed.on_batch("a", 0, [stored(1, 2, 3)])
    assert feed.on_batch("b", 0, [stored(7, tokens=TOKENS[:4]), stored(8, parent=7, tokens=TOKENS[4:8])])
    assert held(index) == {"a": 12, "b": 8}
    assert feed.on_batch("a", 1, [{"type": "BlockRemoved", "block_hashes": [3]}])
    assert held(index) == {"a": 8, "b": 8}
    assert feed.on_batch("b", 1, [{"type": "AllBlocksCleared"}])
    assert held(index) == {"a": 8}
    feed.forget("a")
    assert held(index) == {}
    assert index.num_blocks == 0


def test_salts_and_adapters_keep_prefixes_apart():
    feed, index = make()
    feed.on_batch("a", 0, [stored(1, 2, 3, cache_salt="t1")])
    feed.on_batch("b", 0, [stored(1, 2, 3, lora_name="ad")])
    assert held(index) == {}
    assert held(index, salt="t1") == {"a": 12}


def test_a_gap_drops_all_that_was_known_and_asks_for_more():
    feed, index = make()
    feed.on_batch("a", 5, [stored(1, 2, 3)])
    assert feed.on_batch("a", 5, [{"type": "AllBlocksCleared"}]), "a batch that came twice changes nothing"
    assert held(index) == {"a": 12}
    assert not feed.on_batch("a", 7, [stored(9, parent=3, tokens=(1, 2, 3, 4))])
    assert held(index) == {}
    assert index.num_blocks == 0, "a block after one that is not known is of no use"
    assert feed.num_gaps == 1
    assert feed.on_batch("a", 8, [stored(1, 2, 3)])
    assert held(index) == {"a": 12}


def test_a_backend_that_starts_anew_has_lost_its_cache():
    feed, index = make()
    feed.on_batch("a", 41, [stored(1, 2, 3)])
    feed.on_batch("a", 0, [stored(4, tokens=TOKENS[:4])])
    assert held(index) == {"a": 4}


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"type": "Other", "block_hashes": []},
        {"type": "BlockStored", "block_hashes": [1]},
        {"type": "BlockRemoved", "block_hashes": ["x"]},
        {"type": "BlockRemoved", "block_hashes": 3},
        stored(1, 2),
        stored(True, 2, 3),
        stored(1, 2, 3, block_size="many"),
    ],
)
def test_events_that_cannot_be_understood_are_refused_and_end_the_trust(event):
    with pytest.raises(MalformedEvent):
        decode_event(event)
    feed, index = make()
    feed.on_batch("a", 0, [stored(1, 2, 3)])
    assert not feed.on_batch("a", 1, [event])
    assert held(index) == {}


def test_bytes_name_blocks_too_and_decoded_events_may_come_directly():
    assert decode_event({"type": "BlockRemoved", "block_hashes": [b"\x00" * 7 + b"\x05rest"]}) == BlocksRemoved((5,))
    assert decode_event({"type": "AllBlocksCleared"}) == AllCleared()
    feed, index = make()
    feed.on_batch("a", 0, [BlocksStored((1, 2, 3), None, TOKENS)])
    assert held(index) == {"a": 12}


def test_blocks_of_another_size_and_more_than_are_allowed_are_not_kept():
    feed, index = make()
    feed.on_batch("a", 0, [BlocksStored((1, 2), None, TOKENS)])
    assert index.num_blocks == 0
    bounded = KvEventFeed(index, max_blocks_per_backend=3)
    bounded.on_batch("a", 0, [stored(1, 2, 3)])
    bounded.on_batch("a", 1, [stored(4, parent=3, tokens=(1, 2, 3, 4))])
    assert index.num_blocks_of("a") <= 3
    assert bounded.num_gaps == 1
