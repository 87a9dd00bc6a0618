import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.fleet.gateway.kv_events import AllCleared, BlocksRemoved, BlocksStored
from argosy.fleet.gateway.kv_wire import EventReader, MalformedEvent, read_sequence, split_events

TOKENS = list(range(12))


def read(*events, reader=None):
    return (reader or EventReader()).read(msgspec.msgpack.encode([1.0, list(events), 0]))


def test_maps_and_arrays_say_the_same(stored):
    as_map = stored(1, 2, 3, tokens=TOKENS, parent=9)
    as_array = ["BlockStored", [1, 2, 3], 9, TOKENS, 4, None, "GPU", None, None]
    expected = [BlocksStored((1, 2, 3), 9, tuple(TOKENS))]
    assert read(as_map) == read(as_array) == read(as_array[:6]) == expected, "the oldest form ends with lora_id"
    assert read({"type": "BlockRemoved", "block_hashes": [3], "medium": "GPU"}) == [BlocksRemoved((3,))]
    assert read(["BlockRemoved", [3]]) == [BlocksRemoved((3,))]
    assert read({"type": "AllBlocksCleared"}, ["AllBlocksCleared"]) == [AllCleared()] * 2


def test_a_batch_may_leave_the_rank_out_and_say_more_than_is_known(stored):
    event = stored(1, 2, 3, tokens=TOKENS, session_id="s", ownership=None, of_the_future={"a": 1})
    assert EventReader().read(msgspec.msgpack.encode([1.0, [event]])) == [BlocksStored((1, 2, 3), None, tuple(TOKENS))]
    assert read([*["BlockRemoved", [3], "GPU", None, None, None], "of the future"]) == [BlocksRemoved((3,))]


def test_hashes_may_be_bytes(stored):
    digest = bytes(range(32))
    name = int.from_bytes(digest[:8], "big")
    assert read(stored(digest, tokens=TOKENS[:4])) == [BlocksStored((name,), None, tuple(TOKENS[:4]))]
    assert read(stored(5, tokens=TOKENS[:4], parent=digest))[0].parent_block_id == name


def test_the_salt_and_the_adapter_are_read(stored):
    first = stored(1, 2, 3, tokens=TOKENS, extra_keys=[["tenant-salt"], None, None])
    assert read(first)[0].cache_salt == "tenant-salt"
    both = stored(1, 2, 3, tokens=TOKENS, lora_name="ad", extra_keys=[["ad", "salt"], ["ad"], ["ad"]])
    assert (read(both)[0].cache_salt, read(both)[0].adapter_id) == ("salt", "ad")
    plain = stored(1, 2, 3, tokens=TOKENS, lora_name="ad", extra_keys=[["ad"]] * 3)
    assert (read(plain)[0].cache_salt, read(plain)[0].adapter_id) == ("", "ad")


def test_what_is_no_text_ends_what_is_known(stored):
    image = stored(1, 2, 3, tokens=TOKENS, extra_keys=[["salt"], [["image-hash", 0]], None])
    assert read(image) == [BlocksStored((1,), None, tuple(TOKENS[:4]), "salt")]
    embeddings = stored(1, 2, 3, tokens=TOKENS, parent=7, extra_keys=[["digest"], None, None])
    assert read(embeddings) == [], "a text without a name at the start of a prompt is a salt, elsewhere it is a digest"


def test_blocks_out_of_reach_and_of_other_groups_do_not_count(stored):
    assert (
        read(stored(1, tokens=TOKENS[:4], medium="CPU"), {"type": "BlockRemoved", "block_hashes": [1], "medium": "CPU"})
        == []
    )
    assert read(stored(1, tokens=TOKENS[:4], locality="REMOTE")) == []
    reader = EventReader()
    window = stored(1, tokens=TOKENS[:4], group_idx=0, kv_cache_spec_kind="sliding_window")
    whole = stored(1, tokens=TOKENS[:4], group_idx=1, kv_cache_spec_kind="full_attention")
    second = stored(1, tokens=TOKENS[:4], group_idx=2, kv_cache_spec_kind="full_attention")
    assert len(read(window, whole, second, reader=reader)) == 1
    assert read({"type": "BlockRemoved", "block_hashes": [1], "group_idx": 0}, reader=reader) == []
    assert read({"type": "BlockRemoved", "block_hashes": [1], "group_idx": 1}, reader=reader) == [BlocksRemoved((1,))]


@pytest.mark.parametrize(
    "event",
    [
        {},
        [],
        7,
        {"type": "Other", "block_hashes": []},
        ["Other", [1]],
        {"type": 3},
        {"type": "BlockStored", "block_hashes": [1]},
        {"type": "BlockRemoved", "block_hashes": ["x"]},
        {"type": "BlockRemoved", "block_hashes": [True]},
        {"type": "BlockRemoved", "block_hashes": 3},
        ["BlockStored", [1], None, [1, 2, 3, 4]],
        ["BlockStored", [1, 2], None, [1, 2, 3], 2, None],
        ["BlockStored", [1], None, [1, "2"], 2, None],
        ["BlockStored", [1], None, [1, True], 2, None],
        ["BlockStored", [1], None, [], 0, None],
        ["BlockStored", [1], None, [1, 2], True, None],
        ["BlockStored", [1], "parent", [1, 2], 2, None],
        ["BlockStored", [1], None, [1, 2], 2, None, "GPU", None, [None, None]],
        ["BlockStored", [1], None, [1, 2], 2, None, "GPU", None, [3]],
        ["BlockStored", [1], None, [1, 2], 2, None, ["GPU"]],
    ],
)
def test_events_that_cannot_be_understood(event):
    with pytest.raises(MalformedEvent):
        read(event)


@pytest.mark.parametrize("batch", [None, 3, [], [1.0], [1.0, None], [1.0, {}], {"events": []}])
def test_messages_that_are_no_batches(batch):
    with pytest.raises(MalformedEvent):
        EventReader().read(msgspec.msgpack.encode(batch))


@given(st.binary(max_size=40))
def test_no_bytes_do_anything_but_be_read_or_refused(payload):
    with contextlib.suppress(MalformedEvent):
        EventReader().read(payload)


def test_a_tower_of_arrays_is_refused():
    with pytest.raises(MalformedEvent):
        EventReader().read(b"\x91" * 100_000)


def test_sequence_numbers():
    assert read_sequence((5).to_bytes(8, "big")) == 5
    assert read_sequence(b"\xff" * 8) == -1
    for frame in (b"", b"\x00" * 7, b"\x00" * 9, b"\xff" * 7 + b"\xfe", b"\x7f" + b"\xff" * 7):
        with pytest.raises(MalformedEvent):
            read_sequence(frame)


events = st.lists(
    st.one_of(
        st.just(AllCleared()),
        st.lists(st.integers(0, 99), max_size=9).map(lambda ids: BlocksRemoved(tuple(ids))),
        st.integers(1, 9).map(lambda n: BlocksStored(tuple(range(n)), 77, tuple(range(2 * n)), "s", "a")),
    ),
    max_size=6,
)


@given(events, st.integers(1, 5))
def test_portions_are_small_and_say_the_same_in_order(given_events, max_blocks):
    def steps(event):
        if isinstance(event, AllCleared):
            return ["clear"]
        if isinstance(event, BlocksRemoved):
            return [("remove", block) for block in event.block_ids]
        parents = (event.parent_block_id, *event.block_ids)
        size = len(event.token_ids) // len(event.block_ids)
        return [
            ("store", block, parents[n], event.token_ids[n * size : (n + 1) * size], event.cache_salt, event.adapter_id)
            for n, block in enumerate(event.block_ids)
        ]

    portions = list(split_events(given_events, max_blocks))
    assert all(sum(len(steps(event)) for event in portion) <= max_blocks for portion in portions)
    assert [s for p in portions for e in p for s in steps(e)] == [s for e in given_events for s in steps(e)]
