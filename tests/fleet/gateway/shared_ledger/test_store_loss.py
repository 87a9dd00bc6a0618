import asyncio
import time

import pytest

from argosy.errors import ConfigError
from argosy.fleet.gateway.live_readings import ledger_readings
from argosy.fleet.gateway.metric_list import METRIC_OF
from argosy.fleet.gateway.store_loss import GuardedLedger
from argosy.fleet.policies.ledger import Denial, Lease
from argosy.fleet.policies.limits import Demand, Limits, Scope
from argosy.fleet.policies.outcomes import Outcome

TIMEOUT_S = 0.1
KEY = Scope("key", "k")
SMALL = Demand(1, 1)
LOST, FOUND = "shared ledger lost", "shared ledger answers again"


def only(limits):
    return ((KEY, limits),)


async def acquire_many(ledger, count, limits, demand=SMALL):
    """As many requests at once; one that hung would end the test."""
    async with asyncio.timeout(20.0):
        return await asyncio.gather(*(ledger.acquire(only(limits), demand, now_s=0.0) for _ in range(count)))


def granted(answers):
    return [answer for answer in answers if isinstance(answer, Lease)]


async def end_all(ledger, answers):
    for lease in granted(answers):
        await ledger.release(lease, now_s=0.0)


def freeze(server):
    server.freeze()
    return server.thaw


def stop(server):
    server.stop()
    return server.start


def fill(server):
    server.command("CONFIG", "SET", "maxmemory", "1")
    return lambda: server.command("CONFIG", "SET", "maxmemory", "0")


def refuse(server):
    server.command("ACL", "SETUSER", "default", "-eval", "-evalsha", "-script")
    return lambda: server.command("ACL", "SETUSER", "default", "+eval", "+evalsha", "+script")


@pytest.mark.parametrize("fault", [freeze, stop, fill, refuse])
async def test_a_loss_is_bridged_by_this_process_s_share_and_found_by_itself(
    own_server, make_guarded, eventually, transitions, fault
):
    changes = []
    ledger = await make_guarded(own_server.url, replicas=2, on_change=changes.append)
    limits = Limits(max_parallel=10, max_budget_usd=100.0)
    before = await acquire_many(ledger, 3, limits, Demand(1, 1, 1.0))
    assert len(granted(before)) == 3
    mend = fault(own_server)
    during = await acquire_many(ledger, 200, limits, Demand(1, 1, 1.0))
    assert ledger.is_lost
    assert len(granted(during)) == 2  # a share of 5, of which 3 run
    await ledger.settle(before[0], Demand(1, 1, 0.5), now_s=0.0)
    await ledger.settle(granted(during)[0], Demand(1, 1, 0.25), now_s=0.0)
    again = await acquire_many(ledger, 200, limits)
    assert len(granted(again)) == 2
    await end_all(ledger, again)
    assert ledger.num_decided_without >= 200
    read = {reading.name: reading.value for reading in ledger_readings(ledger)}
    assert read["argosy_gateway_store_up"] == 0.0
    assert read["argosy_gateway_ledger_losses_total"] == 1.0
    assert read["argosy_gateway_ledger_leases"] == 3.0
    assert read["argosy_gateway_ledger_pending"] >= 2.0
    assert set(read) <= set(METRIC_OF)
    mend()
    await eventually(lambda: not ledger.is_lost)
    assert [line for line in transitions if line in (LOST, FOUND)] == [LOST, FOUND]
    assert changes == [False, True]
    usage = await ledger.shared.usage(KEY)
    assert usage.parallel == 3  # of those before the loss two, of those during it one
    assert usage.spent_usd >= 0.25
    if fault is not stop:  # whose data is gone
        assert usage.spent_usd == pytest.approx(0.75)
    await end_all(ledger, [*before, *during])
    await eventually(lambda: ledger.num_pending == 0)
    usage = await ledger.shared.usage(KEY)
    assert (usage.parallel, usage.kv_tokens, usage.reserved_usd) == (0, 0, 0.0)


async def test_a_frozen_server_is_waited_for_once(own_server, make_guarded, monkeypatch):
    ledger = await make_guarded(own_server.url, on_loss="open")
    asked = []
    real = ledger.shared.acquire
    monkeypatch.setattr(ledger.shared, "acquire", lambda *a, **k: asked.append(1) or real(*a, **k))
    own_server.freeze()
    first = await acquire_many(ledger, 50, Limits(rpm=10))
    assert len(asked) == 50
    for _ in range(20):
        first += await acquire_many(ledger, 10, Limits(rpm=10))
    assert len(asked) == 50
    assert ledger.num_losses == 1
    assert len(granted(first)) == 250
    await end_all(ledger, first)


async def test_a_process_too_busy_to_look_does_not_take_the_server_for_silent(own_server, make_guarded):
    ledger = await make_guarded(own_server.url, timeout_s=TIMEOUT_S)
    loop = asyncio.get_running_loop()
    is_busy = True

    def be_busy():
        time.sleep(0.5 * TIMEOUT_S)
        if is_busy:
            loop.call_soon(be_busy)

    loop.call_soon(be_busy)
    answers = await acquire_many(ledger, 100, Limits(rpm=10))
    is_busy = False
    assert (ledger.num_losses, len(granted(answers))) == (0, 10)
    await end_all(ledger, answers)


async def test_a_frozen_server_is_noticed_by_a_busy_process(own_server, make_guarded):
    ledger = await make_guarded(own_server.url, timeout_s=TIMEOUT_S, on_loss="open")
    own_server.freeze()
    asking = asyncio.ensure_future(acquire_many(ledger, 10, Limits(rpm=10)))
    rounds = 0
    while not asking.done():
        time.sleep(TIMEOUT_S / 2.0)
        rounds += 1
        await asyncio.sleep(0)
    own_server.thaw()
    assert ledger.num_losses == 1
    assert rounds < 60
    await end_all(ledger, await asking)


async def test_a_request_that_was_given_up_holds_nothing_when_the_server_goes_on(own_server, make_guarded, eventually):
    ledger = await make_guarded(own_server.url, on_loss="closed")
    own_server.freeze()
    await acquire_many(ledger, 20, Limits(max_parallel=30))
    own_server.thaw()
    await eventually(lambda: not ledger.is_lost and ledger.num_pending == 0)
    assert (await ledger.shared.usage(KEY)).parallel == 0


async def test_closed_refuses_what_has_limits(own_server, make_guarded):
    ledger = await make_guarded(own_server.url, on_loss="closed")
    own_server.stop()
    answers = await acquire_many(ledger, 5, Limits(rpm=10))
    assert {answer.outcome for answer in answers} == {Outcome.FAILED_STORE}
    assert all(answer.retry_after_s is not None for answer in answers)
    lease = await ledger.acquire(only(Limits()), Demand(1), now_s=0.0)
    assert isinstance(lease, Lease)
    await ledger.release(lease, now_s=0.0)


@pytest.mark.parametrize("on_loss", ["closed", "open", "local_share"])
async def test_the_bounds_of_one_request_need_no_server(own_server, make_guarded, on_loss):
    ledger = await make_guarded(own_server.url, on_loss=on_loss)
    own_server.stop()
    for _ in range(2):
        denial = await ledger.acquire(only(Limits(rpm=10, max_input_tokens=5)), Demand(6), now_s=0.0)
        assert denial.outcome is Outcome.REJECTED_TOO_LARGE
        await end_all(ledger, await acquire_many(ledger, 1, Limits(rpm=10)))


async def test_of_a_budget_there_is_this_process_s_part_of_what_was_left(own_server, make_guarded):
    ledger = await make_guarded(own_server.url, replicas=2)
    limits = Limits(max_budget_usd=1.0)
    for cost in (0.6, 0.0):
        lease = await ledger.acquire(only(limits), Demand(1, 0, cost), now_s=0.0)
        await ledger.settle(lease, Demand(1, 0, cost), now_s=0.0)
    own_server.stop()
    answers = await acquire_many(ledger, 30, limits, Demand(1, 0, 0.01))
    assert len(granted(answers)) == 20
    await end_all(ledger, answers)


async def test_a_server_that_is_away_at_the_start_is_found_when_it_comes(own_server, make_guarded, eventually, transitions):
    own_server.stop()
    ledger = await make_guarded(own_server.url)
    assert ledger.is_lost
    answers = await acquire_many(ledger, 20, Limits(max_parallel=4))
    assert len(granted(answers)) == 4
    await end_all(ledger, answers)
    own_server.start()
    await eventually(lambda: not ledger.is_lost)
    assert transitions == [LOST, FOUND]
    answers = await acquire_many(ledger, 20, Limits(max_parallel=4))
    assert len(granted(answers)) == 4
    assert (await ledger.shared.usage(KEY)).parallel == 4
    await end_all(ledger, answers)


async def test_a_restart_between_two_requests_is_no_loss_and_what_runs_is_counted_again(
    own_server, make_guarded, eventually, transitions
):
    ledger = await make_guarded(own_server.url, lease_ttl_s=0.6)
    before = await acquire_many(ledger, 2, Limits(max_parallel=3))
    own_server.stop()
    own_server.start()
    lease = await ledger.acquire(only(Limits(max_parallel=3)), Demand(1), now_s=0.0)
    assert isinstance(lease, Lease)
    assert transitions == []
    await ledger.release(lease, now_s=0.0)
    async with asyncio.timeout(20.0):
        while (await ledger.shared.usage(KEY)).parallel < 2:
            await asyncio.sleep(0.05)
    assert isinstance((await acquire_many(ledger, 2, Limits(max_parallel=2)))[0], Denial)
    await end_all(ledger, before)


async def test_a_slow_server_is_used_until_it_is_too_slow(own_server, make_guarded, slow_proxy, eventually):
    proxy = slow_proxy(own_server.port)
    await proxy.start()
    ledger = await make_guarded(proxy.url)
    proxy.delay_s = 0.05
    answers = await acquire_many(ledger, 20, Limits(max_parallel=4))
    assert not ledger.is_lost
    proxy.delay_s = 3.0
    answers += await acquire_many(ledger, 20, Limits(max_parallel=4))
    assert ledger.is_lost
    assert len(granted(answers)) == 4
    proxy.delay_s = 0.0
    await eventually(lambda: not ledger.is_lost)
    await end_all(ledger, answers)
    await eventually(lambda: ledger.num_pending == 0)
    assert (await ledger.shared.usage(KEY)).parallel == 0
    await proxy.stop()


async def test_a_lease_ends_once_and_ending_it_is_kept_for_later_if_it_is_cancelled(own_server, make_guarded, eventually):
    ledger = await make_guarded(own_server.url)
    first, second = await acquire_many(ledger, 2, Limits(max_parallel=5, max_budget_usd=1.0), Demand(1, 1, 0.1))
    await ledger.settle(first, Demand(1, 1, 0.05), now_s=0.0)
    await ledger.settle(first, Demand(1, 1, 0.05), now_s=0.0)
    await ledger.release(first, now_s=0.0)
    ending = asyncio.create_task(ledger.settle(second, Demand(1, 1, 0.05), now_s=0.0))
    await asyncio.sleep(0)
    ending.cancel()
    await eventually(lambda: ledger.num_pending == 0)
    usage = await ledger.shared.usage(KEY)
    assert (usage.parallel, usage.spent_usd) == (0, pytest.approx(0.1))


@pytest.mark.parametrize("settings", [{"on_loss": "perhaps"}, {"replicas": 0}, {"retry_s": 0.0}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ConfigError):
        GuardedLedger(None, **settings)
