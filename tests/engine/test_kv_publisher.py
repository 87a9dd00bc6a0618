"""What the engine publishes of its prefix index, as a subscriber receives it."""

import time

import msgspec
import pytest
import zmq

from argosy.cli.serve_command import _is_local
from argosy.engine.args import EngineArgs
from argosy.engine.build import make_publisher
from argosy.engine.core.kv_events import BlockRemoved, BlockStored, CacheCleared
from argosy.engine.core.radix_index import Namespace
from argosy.engine.kv_publisher import BlockNames, KVPublisher, PublisherSettings, wire_events
from argosy.errors import ConfigError

SPACE = Namespace("", "", "float16")


def store(block_id, parent=None, tokens=(1, 2), space=SPACE):
    return BlockStored(block_id, parent, tokens, space)


@pytest.fixture
def publish(tmp_path):
    publishers = []

    def start(**settings):
        endpoint, replay_endpoint = (f"ipc://{tmp_path}/{len(publishers)}-{name}" for name in ("events", "replays"))
        publishers.append(KVPublisher(PublisherSettings(endpoint, replay_endpoint, **settings)))
        publishers[-1].start()
        return publishers[-1], endpoint, replay_endpoint

    yield start
    for publisher in publishers:
        publisher.close()


@pytest.fixture
def socket():
    context = zmq.Context()

    def connect(kind, endpoint, topic=b""):
        made = context.socket(kind)
        made.setsockopt(zmq.RCVTIMEO, 5000)
        if kind == zmq.SUB:
            made.subscribe(topic)
        made.connect(endpoint)
        return made

    yield connect
    context.destroy(linger=0)


def replay(socket, endpoint, first=0):
    """Every message from `first` on: {number: events}."""
    asking = socket(zmq.DEALER, endpoint)
    asking.send_multipart([b"", first.to_bytes(8, "big")])
    found = {}
    while True:
        empty, topic, number, payload = asking.recv_multipart()
        assert empty == b""
        if number == b"\xff" * 8:
            assert payload == b""
            return found
        seconds, events, rank = msgspec.msgpack.decode(payload)
        assert abs(seconds - time.time()) < 60
        assert rank is None
        found[int.from_bytes(number, "big")] = (topic, events)


def events_of(messages):
    return [event for _, events in messages.values() for event in events]


def until_has(socket, endpoint, num_blocks):
    deadline_s = time.monotonic() + 10
    while True:
        messages = replay(socket, endpoint)
        if sum(len(event.get("block_hashes", [1])) for event in events_of(messages)) >= num_blocks:
            return messages
        assert time.monotonic() < deadline_s


# ---- names and events ----


def test_blocks_that_follow_one_another_are_one_event():
    first, second = wire_events([store(0), store(1, 0, (3, 4)), store(2, 1, (5, 6)), store(9, 0, (7, 8))], BlockNames())
    assert first["token_ids"] == [1, 2, 3, 4, 5, 6]
    assert first["block_size"] == 2
    assert first["parent_block_hash"] is None
    assert first["extra_keys"] == [None, None, None]
    assert len(first["block_hashes"]) == 3
    assert (second["parent_block_hash"], second["token_ids"]) == (first["block_hashes"][0], [7, 8])


def test_names_tell_contents_and_not_places():
    here = wire_events([store(0), store(1, 0, (3, 4))], BlockNames())[0]["block_hashes"]
    there = wire_events([store(7), store(3, 7, (3, 4))], BlockNames())[0]["block_hashes"]
    assert here == there
    assert len(set(here)) == 2
    assert all(0 <= name < 2**64 for name in here)
    assert wire_events([store(0, tokens=(1, 3))], BlockNames())[0]["block_hashes"][0] != here[0]
    names = BlockNames()
    again = wire_events([store(0), BlockRemoved(0), store(0, tokens=(9, 9)), BlockRemoved(0)], names)
    assert again[1]["block_hashes"] == again[0]["block_hashes"] != again[2]["block_hashes"] == again[3]["block_hashes"]


def test_tenants_adapters_and_formats_share_no_name():
    spaces = [
        SPACE,
        Namespace("t1", "", "float16"),
        Namespace("t2", "", "float16"),
        Namespace("", "t1", "float16"),
        Namespace("", "", "int8"),
        Namespace("t", "1", "float16"),
    ]
    names = [wire_events([store(0, space=space), store(1, 0, (3, 4), space)], BlockNames())[0] for space in spaces]
    assert len({name for event in names for name in event["block_hashes"]}) == 2 * len(spaces)
    assert [event["extra_keys"] for event in names[:4]] == [
        [None, None],
        [["t1"], None],
        [["t2"], None],
        [["t1"], ["t1"]],
    ]
    assert [event["lora_name"] for event in names[2:4]] == [None, "t1"]


def test_removals_are_joined_and_a_clearance_forgets_the_names():
    names = BlockNames()
    written = wire_events([store(0), store(1, 0, (3, 4)), BlockRemoved(1), BlockRemoved(0), CacheCleared(), store(0)], names)
    assert [event["type"] for event in written] == ["BlockStored", "BlockRemoved", "AllBlocksCleared", "BlockStored"]
    assert written[1]["block_hashes"] == written[0]["block_hashes"][::-1]
    with pytest.raises(KeyError):
        wire_events([store(1, 5, (3, 4))], names)


# ---- sockets ----


def test_a_subscriber_hears_of_everything_in_order(publish, socket):
    publisher, endpoint, replay_endpoint = publish(topic="kv")
    hearing = socket(zmq.SUB, endpoint, b"kv")
    time.sleep(0.2)  # until the subscription is there: a PUB socket does not tell
    for number in range(50):
        publisher(store(number, tokens=(number, number)))
    blocks, numbers = 0, []
    while blocks < 50:
        topic, number, payload = hearing.recv_multipart()
        assert topic == b"kv"
        numbers.append(int.from_bytes(number, "big"))
        blocks += sum(len(event["block_hashes"]) for event in msgspec.msgpack.decode(payload)[1])
    assert numbers == list(range(len(numbers)))
    remembered = replay(socket, replay_endpoint)
    assert list(remembered) == numbers
    assert {topic for topic, _ in remembered.values()} == {b"kv"}
    assert list(replay(socket, replay_endpoint, first=numbers[-1] + 1)) == []


def test_only_so_many_messages_are_remembered(publish, socket):
    publisher, _, replay_endpoint = publish(max_remembered=2)
    for number in range(4):
        publisher(store(number, tokens=(number, number)))
        time.sleep(0.1)
    assert list(replay(socket, replay_endpoint)) in ([2, 3], [1, 2])


def test_a_wrong_request_for_a_replay_is_passed_over(publish, socket):
    publisher, _, replay_endpoint = publish()
    publisher(store(0))
    asking = socket(zmq.DEALER, replay_endpoint)
    for parts in ([b"", b"1"], [b"x"], [b"", b"", b""]):
        asking.send_multipart(parts)
    assert len(until_has(socket, replay_endpoint, 1)) == 1


def test_one_that_is_behind_skips_a_number_and_forgets_what_came_before(publish, socket):
    publisher, _, replay_endpoint = publish(max_waiting=0)
    publisher(store(0))
    until_has(socket, replay_endpoint, 1)
    for number in range(1, 30_000):
        publisher(store(number, tokens=(number, number)))
    deadline_s = time.monotonic() + 20
    while publisher._inbox.qsize() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    publisher(store(30_000, tokens=(7, 9)))
    time.sleep(0.2)
    messages = replay(socket, replay_endpoint)
    assert publisher.num_dropped > 0
    assert min(messages) >= 2, "0 came before the loss, 1 is the number that was skipped"
    assert events_of(messages)[-1]["token_ids"] == [7, 9]


def test_a_fault_ends_the_publishing_and_not_the_engine(publish, socket, caplog):
    publisher, _, _ = publish()
    publisher(BlockRemoved(5))
    publisher._thread.join(5)
    assert not publisher._thread.is_alive()
    assert "published no more" in caplog.text
    publisher(store(0))
    assert publisher._inbox.qsize() == 0
    publisher.close()


def test_an_address_that_is_taken_is_refused(publish):
    first = KVPublisher(PublisherSettings("tcp://127.0.0.1:*"))
    taken = first._events.getsockopt_string(zmq.LAST_ENDPOINT)
    with pytest.raises(ConfigError, match="choose another") as refused:
        KVPublisher(PublisherSettings(taken))
    assert refused.value.param == "kv_events_endpoint"
    first.close()
    first.close()


# ---- settings ----


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"kv_events_endpoint": "127.0.0.1:5557"}, "kv_events_endpoint"),
        ({"kv_events_endpoint": "tcp://127.0.0.1:1", "enable_prefix_caching": False}, "kv_events_endpoint"),
        ({"kv_events_endpoint": "tcp://127.0.0.1:1", "kv_events_replay_endpoint": "x"}, "kv_events_replay_endpoint"),
        ({"kv_events_replay_endpoint": "tcp://127.0.0.1:1"}, "kv_events_replay_endpoint"),
        ({"kv_events_topic": "kv"}, "kv_events_topic"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, param):
    with pytest.raises(ConfigError) as refused:
        EngineArgs(model="m", **settings)
    assert refused.value.param == param


def test_nothing_is_published_unless_asked_for(tmp_path):
    assert make_publisher(EngineArgs(model="m")) is None
    publisher = make_publisher(EngineArgs(model="m", kv_events_endpoint=f"ipc://{tmp_path}/events", kv_events_topic="kv"))
    assert publisher is not None
    publisher.close()
    assert not publisher._thread.is_alive()


@pytest.mark.parametrize(
    ("endpoint", "local"),
    [
        ("tcp://127.0.0.1:5557", True),
        ("tcp://localhost:5557", True),
        ("tcp://[::1]:5557", True),
        ("ipc:///run/events", True),
        ("tcp://*:5557", False),
        ("tcp://0.0.0.0:5557", False),
        ("tcp://10.0.0.1:5557", False),
    ],
)
def test_addresses_that_others_can_reach_are_known(endpoint, local):
    assert _is_local(endpoint) is local
