import asyncio

import pytest

from argosy.fleet.gateway.kv_events import AllCleared, KvSource
from argosy.fleet.gateway.kv_routing import _LoopSink


class HeldLoop:
    """A loop that is busy until `go`."""

    def __init__(self):
        self._waiting = []

    def call_soon_threadsafe(self, function, *args):
        self._waiting.append((function, args))

    def go(self):
        while self._waiting:
            function, args = self._waiting.pop(0)
            function(*args)


class Feed:
    def __init__(self):
        self.applied = []

    def apply(self, source, events):
        if events == ["a fault"]:
            raise RuntimeError("a fault")
        self.applied += events


@pytest.fixture
def parts():
    feed, loop = Feed(), HeldLoop()
    return feed, loop, _LoopSink(feed, KvSource("b", 10), loop)


async def test_a_subscription_goes_no_faster_than_the_data_path(parts):
    feed, loop, sink = parts
    task = asyncio.create_task(sink.apply([AllCleared()]))
    await asyncio.sleep(0.01)
    assert not task.done()
    assert not feed.applied
    loop.go()
    await task
    assert feed.applied == [AllCleared()]


async def test_one_that_ends_meanwhile_leaves_no_fault_on_the_data_path(parts):
    feed, loop, sink = parts
    task = asyncio.create_task(sink.apply([AllCleared()]))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(0)
    loop.go()
    assert feed.applied == []


async def test_a_fault_of_the_index_ends_the_subscription(parts):
    _, loop, sink = parts
    task = asyncio.create_task(sink.apply(["a fault"]))
    await asyncio.sleep(0.01)
    with pytest.raises(RuntimeError):
        loop.go()
    with pytest.raises(RuntimeError):
        await task
