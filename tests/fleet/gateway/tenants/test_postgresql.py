"""A PostgreSQL server that is stopped, frozen, slow or restarted while the gateway works."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from argosy.errors import StoreUnavailable
from argosy.fleet.gateway.authenticator import AuthenticationConfig, StoreAuthenticator
from argosy.fleet.gateway.exchange import Endpoint, Exchange
from argosy.fleet.gateway.key_hash import KeyHasher
from argosy.fleet.gateway.store import Store
from argosy.fleet.gateway.store_calls import StoreCalls
from argosy.fleet.gateway.tenancy_keys import KeyRecords
from argosy.fleet.gateway.usage_journal import UsageJournal
from argosy.fleet.gateway.usage_writer import UsageConfig, UsageWriter
from argosy.fleet.policies.outcomes import RequestDropped

TIMEOUT_S = 0.5
BOUND_S = 8.0
"""Far above what a call may take (its turn and the call, `TIMEOUT_S` each), far below what a hang would."""


def one(connection: Any) -> int:
    return int(connection.scalar(text("SELECT 1")))


@pytest.fixture
def store(open_store: Callable[..., Store], postgres_server: Any) -> Store:
    return open_store(postgres_server.new_database(), timeout_s=TIMEOUT_S)


@pytest.fixture
def calls(store: Store) -> Iterator[StoreCalls]:
    made = StoreCalls(store, retry_s=0.1)
    yield made
    made.close()


@pytest.fixture
def authenticator(calls: StoreCalls, hasher: KeyHasher, wall_clock: Any) -> StoreAuthenticator:
    return StoreAuthenticator(calls, hasher, AuthenticationConfig(), wall_clock=wall_clock)


def exchange() -> Exchange:
    return Exchange(Endpoint("/v1/score", "passthrough"), "POST", "/", {}, b"", "r", "e", 0.0)


async def ask(calls: StoreCalls) -> int:
    return await calls.run(lambda: calls.store.read(one))


async def until_it_answers(calls: StoreCalls) -> None:
    deadline_s = time.monotonic() + 30.0
    while True:
        try:
            assert await ask(calls) == 1
            return
        except StoreUnavailable:
            assert time.monotonic() < deadline_s, "the restarted database is not found"
            await asyncio.sleep(0.05)


async def test_more_requests_than_connections_are_served_in_turn(
    authenticator: StoreAuthenticator, keys: KeyRecords, store: Store
) -> None:
    issued = [keys.create({}) for _ in range(20)]
    found = await asyncio.gather(*(authenticator.authenticate(i.key, exchange()) for i in issued * 10))
    assert [principal.key_id for principal in found] == [i.info["id"] for i in issued * 10]
    assert store._engine.pool.checkedout() == 0  # type: ignore[attr-defined]


async def test_a_frozen_server_holds_nobody_up_and_is_found_again(
    authenticator: StoreAuthenticator,
    calls: StoreCalls,
    keys: KeyRecords,
    postgres_server: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    known, unknown = keys.create({}), keys.create({})
    await authenticator.authenticate(known.key, exchange())
    frozen = postgres_server.freeze()
    started_s = time.monotonic()
    try:
        refused = await asyncio.gather(
            *(authenticator.authenticate(unknown.key, exchange()) for _ in range(50)),
            *(ask(calls) for _ in range(50)),
            return_exceptions=True,
        )
        assert all(isinstance(outcome, RequestDropped | StoreUnavailable) for outcome in refused)
        assert calls.is_lost
        for _ in range(100):
            await authenticator.authenticate(known.key, exchange())
            with pytest.raises(RequestDropped):
                await authenticator.authenticate(unknown.key, exchange())
        assert time.monotonic() - started_s < BOUND_S, "while it is lost, calls fail at once"
    finally:
        postgres_server.thaw(frozen)
    await until_it_answers(calls)
    await authenticator.authenticate(unknown.key, exchange())
    messages = [record.getMessage() for record in caplog.records]
    assert messages.count("database lost") == 1
    assert messages.count("database answers again") == 1


async def test_the_threads_of_calls_given_up_come_back(calls: StoreCalls, postgres_server: Any) -> None:
    await ask(calls)
    frozen = postgres_server.freeze()
    try:
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await ask(calls)
            await asyncio.sleep(0.15)
        deadline_s = time.monotonic() + 15.0
        while calls.store._in_use:
            assert time.monotonic() < deadline_s, "a thread waits for the frozen server"
            await asyncio.sleep(0.05)
    finally:
        postgres_server.thaw(frozen)


async def test_a_restarted_server_is_found_again(calls: StoreCalls, postgres_server: Any) -> None:
    await asyncio.gather(*(ask(calls) for _ in range(8)))  # several connections in the pool
    postgres_server.stop()
    try:
        with pytest.raises(StoreUnavailable):
            await ask(calls)
    finally:
        postgres_server.start()
    await until_it_answers(calls)
    assert await asyncio.gather(*(ask(calls) for _ in range(8))) == [1] * 8


async def test_a_slow_statement_is_ended(calls: StoreCalls) -> None:
    started_s = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await calls.run(lambda: calls.store.read(lambda c: c.execute(text("SELECT pg_sleep(60)"))))
    assert time.monotonic() - started_s < BOUND_S


async def test_a_lock_is_not_waited_for_longer(calls: StoreCalls, keys: KeyRecords, store: Store) -> None:
    issued = keys.create({})
    with store._engine.begin() as other:
        other.execute(text("SELECT * FROM tenancy_version FOR UPDATE"))
        with pytest.raises(StoreUnavailable):
            await calls.run(lambda: keys.set_blocked(issued.key, True))
    await asyncio.sleep(0.2)
    assert (await calls.run(lambda: keys.info(issued.key)))["blocked"] is False


async def test_usage_is_complete_after_a_crash_of_the_server(
    store: Store, postgres_server: Any, tmp_path: Path, make_record: Any
) -> None:
    journal = UsageJournal(tmp_path / "journal")
    writer = UsageWriter(store, journal, UsageConfig(max_queued=50, max_batch=10, flush_interval_s=0.01, retry_s=0.05))
    writer.start()
    for number in range(200):
        if number == 100:
            await asyncio.to_thread(postgres_server.stop)
        writer.record(make_record())
    await asyncio.to_thread(postgres_server.start)
    deadline_s = time.monotonic() + 30.0
    while writer.num_open:
        assert time.monotonic() < deadline_s, "usage is not written after the restart"
        await asyncio.sleep(0.05)
    assert await asyncio.to_thread(writer.stop)
    journal.close()
    totals = store.read(lambda c: c.execute(text("SELECT count(*), sum(cost_nano_usd) FROM usage_records")).one())
    assert (totals[0], int(totals[1])) == (200, 1400)
    assert store.read(lambda c: c.scalar(text("SELECT sum(requests) FROM daily_spend"))) == 200


async def test_the_writer_stops_in_time_before_a_frozen_server(
    store: Store, postgres_server: Any, tmp_path: Path, make_record: Any
) -> None:
    folder = tmp_path / "journal"
    journal = UsageJournal(folder)
    writer = UsageWriter(store, journal, UsageConfig(flush_interval_s=0.01))
    frozen = postgres_server.freeze()
    try:
        writer.start()
        for _ in range(5):
            writer.record(make_record())
        started_s = time.monotonic()
        assert not await asyncio.to_thread(writer.stop, 0.5)
        assert time.monotonic() - started_s < BOUND_S
        journal.close()
        assert sum(path.read_bytes().count(b"\n") for path in folder.iterdir()) == 5, "the next process brings them"
    finally:
        postgres_server.thaw(frozen)
