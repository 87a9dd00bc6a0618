from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import text

from argosy.errors import StoreUnavailable
from argosy.fleet.gateway.store import Store
from argosy.fleet.gateway.store_calls import MAX_CALLS, StoreCalls

SLOW = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def calls(open_store: Callable[..., Store], sqlite_url: str, clock: Clock) -> Iterator[StoreCalls]:
    made = StoreCalls(open_store(sqlite_url, timeout_s=0.2), retry_s=1.0, num_threads=2, clock=clock)
    yield made
    made.close()


def fail() -> None:
    raise StoreUnavailable("down")


async def test_results_and_errors_come_through(calls: StoreCalls) -> None:
    assert await calls.run(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        await calls.run(lambda: 1 // 0)
    assert not calls.is_lost, "a fault of the caller says nothing about the database"


async def test_a_call_that_takes_too_long_fails_and_its_thread_comes_back(calls: StoreCalls) -> None:
    with pytest.raises(StoreUnavailable, match="did not answer within"):
        await calls.run(lambda: calls.store.read(lambda c: c.execute(text(SLOW)).all()))
    assert calls.is_lost
    for _ in range(500):
        if not calls.store._in_use:
            break
        await asyncio.sleep(0.01)
    assert calls.store._in_use == {}


async def test_while_it_is_lost_one_call_at_a_time_finds_out(calls: StoreCalls, clock: Clock) -> None:
    tried: list[int] = []

    def work() -> None:
        tried.append(1)
        fail()

    with pytest.raises(StoreUnavailable):
        await calls.run(work)
    for _ in range(5):
        with pytest.raises(StoreUnavailable, match="try again"):
            await calls.run(work)
    assert len(tried) == 1
    clock.now_s = 1.0
    outcomes = await asyncio.gather(*(calls.run(work) for _ in range(5)), return_exceptions=True)
    assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
    assert len(tried) == 2
    clock.now_s = 2.0
    assert await calls.run(lambda: 1) == 1
    assert not calls.is_lost


async def test_waiting_for_a_turn_is_bounded_and_says_nothing_about_the_database(calls: StoreCalls) -> None:
    gate = threading.Event()
    try:
        holding = [asyncio.create_task(calls.run(lambda: gate.wait(10.0))) for _ in range(2)]
        await asyncio.sleep(0.05)
        with pytest.raises(StoreUnavailable, match="too many"):
            await calls.run(lambda: 1)
    finally:
        gate.set()
    await asyncio.gather(*holding, return_exceptions=True)


async def test_only_so_many_calls_wait(calls: StoreCalls) -> None:
    gate = threading.Event()
    try:
        waiting = [asyncio.create_task(calls.run(lambda: gate.wait(10.0))) for _ in range(MAX_CALLS)]
        await asyncio.sleep(0)
        with pytest.raises(StoreUnavailable, match="too many"):
            await calls.run(lambda: 1)
    finally:
        gate.set()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_caller_that_leaves_frees_its_turn_when_the_call_ends(calls: StoreCalls) -> None:
    gate = threading.Event()
    leaving = [asyncio.create_task(calls.run(lambda: gate.wait(10.0))) for _ in range(2)]
    await asyncio.sleep(0.05)
    for task in leaving:
        task.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)
    gate.set()
    assert await calls.run(lambda: 5) == 5
