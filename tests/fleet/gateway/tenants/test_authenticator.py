"""The cache of identities: bounded, coherent between processes, and useful while the database is away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from argosy.errors import ConfigError, StoreUnavailable, Unauthorized
from argosy.fleet.gateway.authenticator import AuthenticationConfig, StoreAuthenticator
from argosy.fleet.gateway.budgets import BudgetState
from argosy.fleet.gateway.exchange import Endpoint, Exchange
from argosy.fleet.gateway.key_hash import KeyHasher, new_key
from argosy.fleet.gateway.store import Store
from argosy.fleet.gateway.store_calls import StoreCalls
from argosy.fleet.gateway.tenancy_groups import GroupRecords
from argosy.fleet.gateway.tenancy_keys import KeyRecords
from argosy.fleet.gateway.tenancy_records import TEAM
from argosy.fleet.policies.outcomes import Outcome, RequestDropped


class WatchedStore:
    """A store that counts its reads, and can be made to fail or to wait."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.config = store.config
        self.num_reads = 0
        self.is_down = False

    def read(self, work: Callable[..., Any]) -> Any:
        self.num_reads += 1
        if self.is_down:
            raise StoreUnavailable("down")
        return self._store.read(work)

    def interrupt(self, thread_id: int) -> None:
        self._store.interrupt(thread_id)


class Process:
    """One gateway process: a cache of its own on the same database."""

    def __init__(self, store: Store, hasher: KeyHasher, wall_clock: Any, **config: Any) -> None:
        self.store = WatchedStore(store)
        self.now_s = 100.0
        self.states: list[tuple[BudgetState, ...]] = []
        self.calls = StoreCalls(self.store, clock=lambda: self.now_s)  # type: ignore[arg-type]
        self.authenticator = StoreAuthenticator(
            self.calls,
            hasher,
            AuthenticationConfig(**config),
            on_budgets=self.states.append,
            clock=lambda: self.now_s,
            wall_clock=wall_clock,
        )
        self._exchange = Exchange(Endpoint("/v1/score", "passthrough"), "POST", "/", {}, b"", "r", "e", 0.0)

    async def authenticate(self, key: str | None) -> Any:
        return await self.authenticator.authenticate(key, self._exchange)

    async def settle(self) -> None:
        """Let refreshes in the background end."""
        while self.authenticator._looking_up:
            await asyncio.sleep(0.005)


MakeProcess = Callable[..., Process]


@pytest.fixture
def store(open_store: Callable[..., Store], sqlite_url: str) -> Store:
    return open_store(sqlite_url)


@pytest.fixture
def make_process(store: Store, hasher: KeyHasher, wall_clock: Any) -> Iterator[MakeProcess]:
    made: list[Process] = []

    def make(**config: Any) -> Process:
        made.append(Process(store, hasher, wall_clock, **config))
        return made[-1]

    yield make
    for process in made:
        process.calls.close()


async def test_a_cached_key_asks_no_database(make_process: MakeProcess, keys: KeyRecords) -> None:
    process, issued = make_process(), keys.create({})
    for _ in range(5):
        assert (await process.authenticate(issued.key)).key_id == issued.info["id"]
    assert process.store.num_reads == 1


async def test_requests_that_wait_for_the_same_key_ask_once(make_process: MakeProcess, keys: KeyRecords) -> None:
    process, issued = make_process(), keys.create({})
    found = await asyncio.gather(*(process.authenticate(issued.key) for _ in range(50)))
    assert {principal.key_id for principal in found} == {issued.info["id"]}
    assert process.store.num_reads == 1


async def test_a_client_that_leaves_does_not_end_the_look_up_of_others(make_process: MakeProcess, keys: KeyRecords) -> None:
    process, issued = make_process(), keys.create({})
    leaving = asyncio.create_task(process.authenticate(issued.key))
    staying = asyncio.create_task(process.authenticate(issued.key))
    await asyncio.sleep(0)
    leaving.cancel()
    assert (await staying).key_id == issued.info["id"]


async def test_wrong_keys_are_refused_untold_and_remembered_within_bounds(make_process: MakeProcess) -> None:
    process = make_process(max_unknown_keys=10)
    key = "sk-CANARY" + "x" * 40
    for _ in range(3):
        with pytest.raises(Unauthorized) as caught:
            await process.authenticate(key)
        assert "CANARY" not in caught.value.message
    assert process.store.num_reads == 1
    for _ in range(30):
        with pytest.raises(Unauthorized):
            await process.authenticate(new_key())
    assert len(process.authenticator._unknown) == 10
    process.now_s += 10.0
    with pytest.raises(Unauthorized):
        await process.authenticate(key)
    assert process.store.num_reads == 32


async def test_no_key_and_absurd_keys_ask_no_database(make_process: MakeProcess) -> None:
    process = make_process()
    for key in (None, "", "sk-" + "x" * 1000):
        with pytest.raises(Unauthorized):
            await process.authenticate(key)
    assert process.store.num_reads == 0


async def test_guesses_push_no_good_key_out_and_the_cache_is_bounded(make_process: MakeProcess, keys: KeyRecords) -> None:
    process = make_process(max_keys=3, max_unknown_keys=2)
    made = [keys.create({}) for _ in range(5)]
    for issued in made:
        await process.authenticate(issued.key)
    assert process.authenticator.num_cached == 3
    for _ in range(5):
        with pytest.raises(Unauthorized):
            await process.authenticate(new_key())
    reads = process.store.num_reads
    await process.authenticate(made[-1].key)
    assert process.store.num_reads == reads


async def test_a_change_reaches_other_processes_and_only_what_it_concerns(
    make_process: MakeProcess, keys: KeyRecords, groups: GroupRecords
) -> None:
    one, other = make_process(), make_process()
    team = groups.create(TEAM, {})
    in_team, alone = keys.create({"team_id": team["id"]}), keys.create({})
    for process in (one, other):
        await process.authenticator.follow_changes()
        await process.authenticate(in_team.key)
        await process.authenticate(alone.key)
    groups.update(TEAM, team["id"], {"blocked": True})
    for process in (one, other):
        await process.authenticate(in_team.key)  # not known yet
        await process.authenticator.follow_changes()
        reads = process.store.num_reads
        with pytest.raises(Unauthorized, match="blocked"):
            await process.authenticate(in_team.key)
        assert process.store.num_reads == reads + 1
        await process.authenticate(alone.key)
        assert process.store.num_reads == reads + 1, "the other key is not read again"


async def test_a_key_made_after_it_was_guessed_works_at_once(make_process: MakeProcess, keys: KeyRecords) -> None:
    process, key = make_process(), new_key()
    await process.authenticator.follow_changes()
    with pytest.raises(Unauthorized):
        await process.authenticate(key)
    keys.create({}, key)
    await process.authenticator.follow_changes()
    await process.authenticate(key)


async def test_a_cached_key_expires_on_time(make_process: MakeProcess, keys: KeyRecords, wall_clock: Any) -> None:
    process, issued = make_process(), keys.create({"expires_at_s": wall_clock.now_s + 5.0})
    await process.authenticate(issued.key)
    wall_clock.now_s += 5.0
    with pytest.raises(Unauthorized, match="expired"):
        await process.authenticate(issued.key)
    assert process.store.num_reads == 1


async def test_after_its_time_an_identity_is_read_again_behind_the_request(
    make_process: MakeProcess, keys: KeyRecords
) -> None:
    process, issued = make_process(ttl_s=60.0), keys.create({"max_budget_usd": 1.0})
    await process.authenticate(issued.key)
    process.now_s += 61.0
    await process.authenticate(issued.key)
    await process.settle()
    assert process.store.num_reads == 2
    assert [states[0].spent_nano_usd for states in process.states] == [0, 0], "with its spend"


async def test_while_the_database_is_away_known_keys_work_for_the_stated_time(
    make_process: MakeProcess, keys: KeyRecords, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    process, issued, other = make_process(ttl_s=60.0, max_stale_s=600.0), keys.create({}), keys.create({})
    await process.authenticate(issued.key)
    process.store.is_down = True
    process.now_s += 599.0
    for _ in range(20):
        await process.authenticate(issued.key)
        await process.settle()
    assert process.authenticator.is_ready
    with pytest.raises(RequestDropped) as caught:
        await process.authenticate(other.key)
    assert caught.value.outcome is Outcome.FAILED_STORE
    assert caught.value.http_status == 503
    process.now_s += 1.0
    with pytest.raises(RequestDropped):
        await process.authenticate(issued.key)
    assert [record.getMessage() for record in caplog.records].count("database lost") == 1
    process.store.is_down = False
    process.now_s += 5.0
    await process.authenticate(other.key)
    await process.authenticate(issued.key)
    assert [record.getMessage() for record in caplog.records].count("database answers again") == 1


async def test_keys_that_must_be_vouched_for_do_not_outlive_the_database(
    make_process: MakeProcess, keys: KeyRecords
) -> None:
    process, issued = make_process(ttl_s=60.0, serve_on_store_loss=False), keys.create({})
    await process.authenticate(issued.key)
    process.store.is_down = True
    process.now_s += 59.0
    await process.authenticate(issued.key)
    process.now_s += 2.0
    with pytest.raises(RequestDropped):
        await process.authenticate(issued.key)
    assert not process.authenticator.is_ready


async def test_a_key_known_to_have_changed_is_not_served_without_the_database(
    make_process: MakeProcess, keys: KeyRecords
) -> None:
    process, issued = make_process(), keys.create({})
    await process.authenticator.follow_changes()
    await process.authenticate(issued.key)
    keys.set_blocked(issued.key, True)
    await process.authenticator.follow_changes()
    process.store.is_down = True
    with pytest.raises(RequestDropped):
        await process.authenticate(issued.key)


async def test_a_change_during_a_look_up_is_not_missed(make_process: MakeProcess, keys: KeyRecords) -> None:
    process, issued = make_process(), keys.create({})
    await process.authenticator.follow_changes()
    looking_up = asyncio.create_task(process.authenticate(issued.key))
    await asyncio.sleep(0)
    keys.set_blocked(issued.key, True)
    await process.authenticator.follow_changes()
    await asyncio.wait([looking_up])  # it may have come before the change or after it
    looking_up.exception()
    with pytest.raises(Unauthorized):
        await process.authenticate(issued.key)


async def test_the_watch_goes_on_after_a_loss(make_process: MakeProcess, keys: KeyRecords) -> None:
    process, issued = make_process(poll_s=0.01), keys.create({})
    watch = asyncio.create_task(process.authenticator.watch())
    try:
        await process.authenticate(issued.key)
        process.store.is_down = True
        await asyncio.sleep(0.05)
        process.store.is_down = False
        keys.set_blocked(issued.key, True)
        for _ in range(500):
            process.now_s += 1.0
            await asyncio.sleep(0.01)
            try:
                await process.authenticate(issued.key)
            except RequestDropped:
                continue  # a call that finds out whether the database is back is on its way
            except Unauthorized:
                break
        else:
            pytest.fail("the block was never heeded")
    finally:
        watch.cancel()


async def test_the_unique_keys_of_a_flood_do_not_make_the_database_count_as_lost(
    make_process: MakeProcess, keys: KeyRecords
) -> None:
    process, issued = make_process(), keys.create({})
    outcomes = await asyncio.gather(*(process.authenticate(new_key()) for _ in range(1500)), return_exceptions=True)
    assert all(isinstance(outcome, Unauthorized | RequestDropped) for outcome in outcomes)
    assert not process.calls.is_lost
    await process.authenticate(issued.key)


@pytest.mark.parametrize("setting", ["max_keys", "max_unknown_keys", "poll_s"])
def test_settings_out_of_range_are_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match=setting):
        AuthenticationConfig(**{setting: 0})


async def test_what_is_cached_is_small_whatever_the_tenant_keeps_in_it(make_process: MakeProcess, keys: KeyRecords) -> None:
    process = make_process()
    issued = keys.create({"metadata": {"notes": "x" * 10_000}, "alias": "a" * 200})
    await process.authenticate(issued.key)
    (cached,) = process.authenticator._known.values()
    assert "xxx" not in repr(cached.identity)
    assert len(repr(cached.identity)) < 2000
