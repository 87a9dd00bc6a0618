"""The subscriber against a publisher that speaks as vLLM does, over real sockets."""

import asyncio
import logging

import msgspec
import pytest

from argosy.fleet.gateway.kv_events import AllCleared, BlocksRemoved, BlocksStored
from argosy.fleet.gateway.kv_subscriber import KvSubscriber, SubscriptionLimits

LIMITS = SubscriptionLimits(replay_timeout_s=0.3, replay_pause_s=0.0, pause_s=0.02, heartbeat_s=2.0)
TOKENS = list(range(8))


class Known:
    """A sink: the ids of the blocks that are known, as an index would hold them."""

    def __init__(self):
        self.blocks = set()
        self.num_took = self.num_gaps = self.num_malformed = self.num_lost = self.largest = 0
        self.is_trusted = False
        self.pause_s = 0.0

    async def apply(self, events):
        await asyncio.sleep(self.pause_s)
        self.largest = max(self.largest, sum(len(getattr(event, "block_ids", ())) for event in events))
        for event in events:
            if isinstance(event, BlocksStored):
                self.blocks |= set(event.block_ids)
            elif isinstance(event, BlocksRemoved):
                self.blocks -= set(event.block_ids)
            else:
                assert isinstance(event, AllCleared)
                self.blocks.clear()

    async def took(self):
        self.num_took += 1
        self.is_trusted = True

    async def gap(self, *, malformed):
        self.num_gaps += not malformed
        self.num_malformed += malformed
        self.blocks.clear()

    async def lose(self):
        self.num_lost += 1
        self.is_trusted = False
        self.blocks.clear()


@pytest.fixture
async def subscribe():
    tasks = []

    def begin(publisher, *, replays=True, topic="", limits=LIMITS):
        sink = Known()
        replay_endpoint = publisher.replays if replays else None
        one = KvSubscriber("b", publisher.endpoint, sink, replay_endpoint=replay_endpoint, topic=topic, limits=limits)
        tasks.append(asyncio.create_task(one.run()))
        return sink

    yield begin
    for task in tasks:
        task.cancel()
    for error in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(error, asyncio.CancelledError), error


@pytest.fixture
def store(stored):
    """Stores one block of a prompt of its own."""
    return lambda number: [stored(number, tokens=[number] * 4)]


async def test_live_messages_come_in(make_publisher, subscribe, store, wait_until):
    publisher = await make_publisher()
    sink = subscribe(publisher, replays=False)
    await publisher.until_subscribed()
    assert not sink.is_trusted, "what the backend held before is not known"
    await publisher.send(41, store(1))
    await publisher.send(42, [*store(2), {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"}])
    await wait_until(lambda: sink.blocks == {2})
    assert sink.is_trusted
    await publisher.send(43, [{"type": "AllBlocksCleared"}])
    await wait_until(lambda: sink.blocks == set())
    assert (sink.num_took, sink.num_gaps, sink.num_lost) == (3, 0, 0)


@pytest.mark.parametrize("old_replies", [False, True])
async def test_what_was_published_before_is_had_by_a_replay(make_publisher, subscribe, store, wait_until, old_replies):
    publisher = await make_publisher()
    publisher.old_replies = old_replies
    for number in range(3):
        await publisher.send(number, store(number), publish=False)
    sink = subscribe(publisher)
    await publisher.until_subscribed()
    await wait_until(lambda: sink.blocks == {0, 1, 2} and sink.is_trusted)
    await publisher.send(2, store(2))
    await publisher.send(3, store(3))
    await wait_until(lambda: sink.blocks == {0, 1, 2, 3})
    assert (sink.num_gaps, publisher.num_replays) == (0, 1)


async def test_an_engine_that_has_stored_nothing_is_known_to_hold_nothing(make_publisher, subscribe, wait_until):
    publisher = await make_publisher()
    sink = subscribe(publisher)
    await wait_until(lambda: sink.is_trusted)
    assert sink.blocks == set()


async def test_a_gap_is_filled_by_a_replay(make_publisher, subscribe, store, wait_until):
    publisher = await make_publisher()
    sink = subscribe(publisher)
    await publisher.until_subscribed()
    await publisher.send(0, store(0))
    await wait_until(lambda: sink.blocks == {0})
    await publisher.send(1, store(1), publish=False)
    await publisher.send(2, store(2), publish=False)
    await publisher.send(3, store(3))
    await wait_until(lambda: sink.blocks == {0, 1, 2, 3})
    assert sink.num_gaps == 0
    await publisher.send(4, store(4))
    await wait_until(lambda: 4 in sink.blocks)
    assert publisher.num_replays == 2


@pytest.mark.parametrize("why", ["nowhere to ask", "no answer", "forgotten", "forgotten in part"])
async def test_a_gap_that_stays_drops_what_was_known(make_publisher, subscribe, store, wait_until, why):
    publisher = await make_publisher()
    sink = subscribe(publisher, replays=why != "nowhere to ask")
    await publisher.until_subscribed()
    await wait_until(lambda: publisher.num_replays == (why != "nowhere to ask"))
    publisher.answers_replays = why != "no answer"
    await publisher.send(0, store(0), remember=False)
    await wait_until(lambda: sink.blocks == {0})
    if why == "forgotten in part":
        await publisher.send(2, store(2), publish=False)
    await publisher.send(3, store(3), remember=False)
    await wait_until(lambda: sink.blocks == ({2, 3} if why == "forgotten in part" else {3}))
    assert sink.num_gaps == 1
    await publisher.send(4, store(4), remember=False)
    await wait_until(lambda: 4 in sink.blocks)
    assert sink.num_gaps == 1


async def test_numbers_that_go_back_are_of_a_publisher_that_began_anew(make_publisher, subscribe, store, wait_until):
    publisher = await make_publisher()
    sink = subscribe(publisher, replays=False)
    await publisher.until_subscribed()
    for number in (5, 6, 7):
        await publisher.send(number, store(number))
    await wait_until(lambda: sink.blocks == {5, 6, 7})
    await publisher.send(6, store(16))
    await wait_until(lambda: sink.blocks == {16})
    await publisher.send(7, store(17))
    await wait_until(lambda: sink.blocks == {16, 17})
    assert sink.num_gaps == 1


async def test_messages_out_of_order_leave_nothing_stale(make_publisher, subscribe, store, wait_until):
    publisher = await make_publisher()
    sink = subscribe(publisher, replays=False)
    await publisher.until_subscribed()
    await publisher.send(0, store(1))
    await publisher.send(2, [{"type": "BlockRemoved", "block_hashes": [2]}])
    await publisher.send(1, store(2))
    await publisher.send(3, store(3))
    await wait_until(lambda: 3 in sink.blocks)
    assert 1 not in sink.blocks
    assert sink.num_gaps >= 2


async def test_a_restart_is_noticed_and_read_from_the_beginning(make_publisher, subscribe, store, wait_until):
    publisher = await make_publisher()
    sink = subscribe(publisher)
    await publisher.until_subscribed()
    await publisher.send(0, store(0))
    await wait_until(lambda: sink.blocks == {0})
    publisher.stop()
    await wait_until(lambda: sink.num_lost == 1)
    assert sink.blocks == set()
    assert not sink.is_trusted
    await publisher.start_anew()
    # Read from 1 on, where the first one ended, its messages would pass for those of that one.
    await publisher.send(0, store(10), publish=False)
    await publisher.send(1, store(11), publish=False)
    await wait_until(lambda: sink.blocks == {10, 11} and sink.is_trusted, 10.0)


@pytest.mark.parametrize(
    "parts",
    [
        (b"", (1).to_bytes(8, "big")),
        (b"", b"1", b""),
        (b"", b"\xff" * 8, b"\x80"),
        (b"", (1).to_bytes(8, "big"), b"\xc1"),
        (b"", (1).to_bytes(8, "big"), b""),
        (b"", (1).to_bytes(8, "big"), msgspec.msgpack.encode([1.0, [{"type": "BlockMoved"}], 0])),
        (b"", (1).to_bytes(8, "big"), msgspec.msgpack.encode([1.0, [["BlockStored", [1], None, [1], 2, None]], 0])),
        (b"", (1).to_bytes(8, "big"), b"\x80", b"more"),
    ],
)
async def test_what_is_not_understood_ends_the_trust_in_what_was_known(
    make_publisher, subscribe, store, wait_until, caplog, parts
):
    publisher = await make_publisher()
    sink = subscribe(publisher, replays=False)
    await publisher.until_subscribed()
    await publisher.send(0, store(0))
    with caplog.at_level(logging.WARNING, "argosy.gateway.kv_events"):
        await publisher.send_parts(*parts)
        await wait_until(lambda: sink.num_malformed == 1)
        assert sink.blocks == set()
        await publisher.send(2, store(2))
        await wait_until(lambda: sink.blocks == {2})
    assert "not understood" in caplog.text


async def test_messages_of_another_topic_are_not_those_of_the_backend(make_publisher, subscribe, store, wait_until):
    publisher = await make_publisher(b"kv-events@one")
    sink, other = subscribe(publisher, topic="kv-events"), subscribe(publisher, topic="something")
    await publisher.until_subscribed()
    await publisher.until_subscribed()
    await publisher.send(0, store(0))
    await wait_until(lambda: sink.blocks == {0})
    await publisher.send(1, store(1))
    await wait_until(lambda: sink.blocks == {0, 1})
    assert other.blocks == set()


async def test_a_replay_of_another_topic_is_not_taken(make_publisher, subscribe, store, wait_until):
    publisher = await make_publisher(b"mine")
    await publisher.send(0, store(0), publish=False)
    sink = subscribe(publisher, topic="yours")
    await wait_until(lambda: sink.num_malformed == 1)
    assert not sink.is_trusted


async def test_a_huge_message_is_taken_in_small_portions(make_publisher, subscribe, stored, wait_until):
    publisher = await make_publisher()
    sink = subscribe(publisher, replays=False)
    await publisher.until_subscribed()
    num_blocks = 20_000
    await publisher.send(0, [stored(*range(num_blocks), tokens=[1] * (16 * num_blocks))])
    await wait_until(lambda: sink.blocks == set(range(num_blocks)), 10.0)
    assert sink.largest <= 256


async def test_one_that_is_too_large_breaks_the_connection_and_nothing_else(make_publisher, subscribe, store, wait_until):
    publisher = await make_publisher()
    limits = SubscriptionLimits(max_message_bytes=10_000, pause_s=0.02)
    sink = subscribe(publisher, replays=False, limits=limits)
    await publisher.until_subscribed()
    await publisher.send(0, store(0))
    await wait_until(lambda: sink.blocks == {0})
    await publisher.send_parts(b"", (1).to_bytes(8, "big"), b"\x00" * 20_000)
    await wait_until(lambda: sink.num_lost == 1)
    for number in range(2, 500):
        await publisher.send(number, store(number))
        await asyncio.sleep(0.01)
        if sink.blocks:
            break
    assert sink.blocks


async def test_who_reads_too_slowly_loses_messages_and_notices(make_publisher, subscribe, store, wait_until):
    publisher = await make_publisher()
    limits = SubscriptionLimits(max_messages=4, replay_timeout_s=1.0, pause_s=0.02)
    sink = subscribe(publisher, replays=False, limits=limits)
    await publisher.until_subscribed()
    await publisher.send(0, store(0))
    await wait_until(lambda: sink.blocks == {0})
    sink.pause_s = 0.3
    payload = [*store(1), {"type": "BlockRemoved", "block_hashes": list(range(10_000))}]
    for number in range(1, 400):
        await publisher.send(number, payload)
    sink.pause_s = 0.0
    await asyncio.sleep(0.5)
    await publisher.send(1000, store(7))
    await wait_until(lambda: sink.blocks == {7}, 10.0)
    assert sink.num_gaps >= 1


async def test_an_address_where_nobody_is_does_not_stop_the_wait(make_publisher, subscribe, store, wait_until):
    publisher = await make_publisher()
    publisher.stop()
    sink = subscribe(publisher)
    await asyncio.sleep(0.1)
    await publisher.start_anew()
    await publisher.send(0, store(0), publish=False)
    await wait_until(lambda: sink.blocks == {0}, 10.0)
