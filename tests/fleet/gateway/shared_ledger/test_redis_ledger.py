import asyncio
import sys
from random import Random

import pytest

from argosy.errors import ConfigError, StoreUnavailable
from argosy.fleet.gateway.redis_channel import RedisChannel
from argosy.fleet.gateway.redis_scripts import HEARTBEAT
from argosy.fleet.policies.ledger import Denial, Lease, Ledger
from argosy.fleet.policies.limits import Demand, Limits, Scope
from argosy.fleet.policies.outcomes import Outcome

KEY, TEAM, ORG = Scope("key", "k"), Scope("team", "t"), Scope("org", "o")
TEN = Limits(rpm=10, tpm=10_000, max_parallel=10, kv_tokens=10_000, max_budget_usd=10.0)
SCOPES = ((KEY, TEN), (TEAM, TEN), (ORG, TEN))


def only(limits):
    return ((KEY, limits),)


def granted(answers):
    return [answer for answer in answers if isinstance(answer, Lease)]


async def test_a_thousand_at_once_against_limits_of_ten(server, make_ledger):
    ledger = make_ledger(server.url, timeout_s=10.0)
    answers = await asyncio.gather(*(ledger.acquire(SCOPES, Demand(10, 10, 0.001), now_s=0.0) for _ in range(1000)))
    assert len(granted(answers)) == 10
    assert {answer.outcome for answer in answers if isinstance(answer, Denial)} == {Outcome.REJECTED_RATE}
    for lease in granted(answers):
        await ledger.settle(lease, Demand(10, 5, 0.0005))
        await ledger.release(lease)
    usage = await ledger.usage(TEAM)
    assert (usage.parallel, usage.kv_tokens, usage.reserved_usd) == (0, 0, 0.0)
    assert (usage.requests, usage.tokens, usage.spent_usd) == (10, 150, 0.005)
    assert not ledger.live
    assert not ledger.unended


HAMMER = """
import asyncio, sys
from argosy.fleet.gateway.redis_channel import RedisChannel
from argosy.fleet.gateway.redis_ledger import RedisLedger
from argosy.fleet.policies.ledger import Lease
from argosy.fleet.policies.limits import Demand, Limits, Scope

async def main(url, owner, ttl_s):
    ledger = RedisLedger(RedisChannel(url, timeout_s=10.0), owner=owner, lease_ttl_s=ttl_s)
    scopes = ((Scope("key", owner), Limits(rpm=1000)), (Scope("team", "t"), Limits(max_parallel=10)))
    await ledger.heartbeat()
    print("ready", flush=True)
    sys.stdin.readline()
    answers = await asyncio.gather(*(ledger.acquire(scopes, Demand(1, 1), now_s=0.0) for _ in range(1000)))
    print(sum(isinstance(answer, Lease) for answer in answers), flush=True)
    sys.stdin.readline()

asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
"""


async def start_hammer(url, owner, ttl_s=60.0):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HAMMER, url, owner, str(ttl_s), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert await process.stdout.readline() == b"ready\n"
    return process


async def test_two_processes_share_limits_exactly_and_one_that_crashes_gives_its_leases_back(
    server, make_ledger, eventually
):
    processes = await asyncio.gather(start_hammer(server.url, "p1", 1.0), start_hammer(server.url, "p2", 1.0))
    for process in processes:
        process.stdin.write(b"go\n")
    passed = [int(await process.stdout.readline()) for process in processes]
    for process in processes:
        process.kill()
        await process.wait()
    assert sum(passed) == 10
    survivor = make_ledger(server.url, "survivor")
    assert (await survivor.usage(TEAM)).parallel == 10
    freed = 0
    async with asyncio.timeout(20.0):
        while freed < 10:
            freed += await survivor.heartbeat()
            await asyncio.sleep(0.05)
    assert (await survivor.usage(TEAM)).parallel == 0


@pytest.mark.parametrize("seed", range(8))
async def test_it_answers_as_the_ledger_in_the_process_does(server, make_ledger, seed):
    rng, now = Random(seed), [1_000_000.0 + seed * 7.3]
    shared = make_ledger(server.url, prefix=f"p{seed}", server_clock=lambda: now[0])
    local = Ledger(lease_ttl_s=1e9)
    limits = {
        KEY: Limits(rpm=8, tpm=400, max_parallel=4, kv_tokens=350, max_budget_usd=0.5, budget_period_s=300.0),
        TEAM: Limits(rpm=12, max_parallel=5, max_budget_usd=1.5),
        ORG: Limits(tpm=600, kv_tokens=400, max_input_tokens=90, max_output_tokens=100),
    }
    live: list[tuple[Lease, Lease]] = []
    for _ in range(150):
        now[0] += rng.choice((0.0, 0.0, 0.3, 2.0, 17.0))
        if live and rng.random() < 0.45:
            theirs, ours = live.pop(rng.randrange(len(live)))
            actual = Demand(rng.randrange(150), rng.randrange(50), rng.randrange(20) / 100)
            if rng.random() < 0.3:
                actual = Demand()
            await shared.settle(theirs, actual)
            local.settle(ours, actual, now_s=now[0])
        else:
            scopes = tuple((scope, limits[scope]) for scope in limits if rng.random() < 0.8)
            demand = Demand(rng.randrange(100), rng.randrange(60), rng.randrange(15) / 100)
            theirs = await shared.acquire(scopes, demand, now_s=now[0])
            ours = local.acquire(scopes, demand, now_s=now[0])
            assert type(theirs) is type(ours)
            if isinstance(theirs, Denial):
                assert theirs.retry_after_s == pytest.approx(ours.retry_after_s, abs=1e-5)
                fields = ("outcome", "scope", "dimension", "limit", "remaining", "retryable")
                assert [getattr(theirs, field) for field in fields] == [getattr(ours, field) for field in fields]
            else:
                live.append((theirs, ours))
                for mine, other in ((ours.requests, theirs.requests), (ours.tokens, theirs.tokens)):
                    assert (mine is None) == (other is None)
                    if mine is not None:
                        assert (other.scope, other.limit, other.remaining) == (mine.scope, mine.limit, mine.remaining)
                        assert other.reset_s == pytest.approx(mine.reset_s, abs=1e-5)
        local.check_invariants()
    for scope in limits:
        usage, mine = await shared.usage(scope), [ours for _, ours in live if scope in dict(ours.scopes)]
        assert usage.parallel == len(mine)
        assert usage.kv_tokens == sum(lease.demand.total_tokens for lease in mine)
    assert (await shared.usage(TEAM)).spent_usd == pytest.approx(local.spent_usd(TEAM, now_s=now[0]))


async def test_a_process_that_was_suspended_counts_what_it_still_runs(server, make_ledger):
    now = [5000.0]
    mine, other = (make_ledger(server.url, owner, server_clock=lambda: now[0]) for owner in ("mine", "other"))
    scopes = only(Limits(max_parallel=3, max_budget_usd=10.0, tpm=1000))
    first, second = [await mine.acquire(scopes, Demand(10, 10, 1.0), now_s=0.0) for _ in range(2)]
    now[0] += 31.0
    assert await other.heartbeat() == 2
    usage = await other.usage(KEY)
    assert (usage.parallel, usage.reserved_usd, usage.spent_usd) == (0, 0.0, 2.0)
    await mine.settle(first, Demand(10, 5, 0.5))
    assert (await other.usage(KEY)).spent_usd == 2.0
    await mine.heartbeat()
    usage = await other.usage(KEY)
    assert (usage.parallel, usage.kv_tokens, usage.reserved_usd, usage.tokens) == (1, 20, 0.0, 40)
    await mine.settle(second, Demand(10, 5, 0.5))
    usage = await other.usage(KEY)
    assert (usage.parallel, usage.kv_tokens, usage.spent_usd) == (0, 0, 2.0)


async def test_leases_of_a_process_that_lives_do_not_end_however_long_they_last(server, make_ledger):
    now = [5000.0]
    mine, other = (make_ledger(server.url, owner, server_clock=lambda: now[0]) for owner in ("mine", "other"))
    lease = await mine.acquire(only(Limits(max_parallel=1)), Demand(1), now_s=0.0)
    for _ in range(40):
        now[0] += 10.0
        await mine.heartbeat()
        assert await other.heartbeat() == 0
    assert isinstance(await other.acquire(only(Limits(max_parallel=1)), Demand(1), now_s=0.0), Denial)
    await mine.release(lease)


async def test_hundreds_of_leases_of_a_dead_process_end(server, make_ledger):
    now = [5000.0]
    dead, other = (make_ledger(server.url, owner, server_clock=lambda: now[0]) for owner in ("dead", "other"))
    limits = only(Limits(max_parallel=1000))
    await asyncio.gather(*(dead.acquire(limits, Demand(1), now_s=0.0) for _ in range(350)))
    now[0] += 31.0
    idle = make_ledger(server.url, "idle", server_clock=lambda: now[0] - 100.0)
    await idle.heartbeat()
    assert await other.heartbeat() == 350
    assert server.command("ZCARD", "{argosy}:owners") == b":1\r\n"
    assert (await other.usage(KEY)).parallel == 0
    dead.live.clear()


async def test_a_call_that_is_cancelled_leaves_nothing_behind(server, make_ledger):
    ledger, scopes = make_ledger(server.url), only(Limits(max_parallel=5, rpm=10))
    await ledger.heartbeat()
    for turns in range(6):
        call = asyncio.create_task(ledger.acquire(scopes, Demand(1), now_s=0.0))
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait({call})
        assert call.cancelled()
    await asyncio.sleep(0.2)
    await ledger.end_unended()
    usage = await ledger.usage(KEY)
    assert (usage.parallel, usage.requests) == (0, 0)
    assert not ledger.unended


async def test_what_reaches_the_server_after_its_caller_gave_up_is_not_carried_out(server, make_ledger, monkeypatch):
    ledger, scopes = make_ledger(server.url), only(Limits(max_parallel=5))
    await ledger.heartbeat()
    monkeypatch.setattr(RedisChannel, "longest_wait_s", -60.0)
    with pytest.raises(StoreUnavailable, match="too late"):
        await ledger.acquire(scopes, Demand(1), now_s=0.0)
    monkeypatch.undo()
    assert (await ledger.usage(KEY)).parallel == 0


async def test_what_was_sent_too_late_by_a_process_under_load_is_sent_again(server, make_ledger, monkeypatch):
    ledger, scopes = make_ledger(server.url), only(Limits(max_parallel=5))
    await ledger.heartbeat()
    waits_s = [-60.0, -60.0, 1.5]
    monkeypatch.setattr(RedisChannel, "longest_wait_s", property(lambda _: waits_s.pop(0)))
    assert isinstance(await ledger.acquire(scopes, Demand(1), now_s=0.0), Lease)
    assert (await ledger.usage(KEY)).parallel == 1


async def test_limits_of_several_prefixes_have_nothing_in_common(server, make_ledger):
    one, two = make_ledger(server.url, prefix="one"), make_ledger(server.url, prefix="two")
    for ledger in (one, two):
        lease = await ledger.acquire(only(Limits(max_parallel=1)), Demand(1), now_s=0.0)
        assert isinstance(lease, Lease)
        await ledger.release(lease)


async def test_scopes_of_which_nothing_counts_expire_on_the_server(server, make_ledger):
    ledger = make_ledger(server.url, window_s=0.2)
    idle = await ledger.acquire(only(Limits(rpm=5)), Demand(1), now_s=0.0)
    spent = await ledger.acquire(((TEAM, Limits(max_budget_usd=1.0)),), Demand(1, 0, 0.1), now_s=0.0)
    held = await ledger.acquire(((ORG, Limits(rpm=5)),), Demand(1), now_s=0.0)
    await ledger.settle(idle, Demand(1))
    await ledger.settle(spent, Demand(1, 0, 0.1))
    await asyncio.sleep(0.4)
    found = server.command("KEYS", "{argosy}:scope:*")
    assert b"key:k" not in found
    assert b"team:t" in found
    assert b"org:o" in found
    await ledger.release(held)


async def test_spending_that_a_store_remembers_counts_and_is_never_lowered(server, make_ledger):
    ledger, limits = make_ledger(server.url), Limits(max_budget_usd=1.0, budget_period_s=86_400.0)
    await ledger.restore_spending(KEY, limits, 0.95)
    await ledger.restore_spending(KEY, limits, 0.5)
    denial = await ledger.acquire(only(limits), Demand(1, 0, 0.1), now_s=0.0)
    assert (denial.outcome, denial.remaining) == (Outcome.REJECTED_BUDGET, pytest.approx(0.05))
    assert 0.0 < denial.retry_after_s <= 86_400.0


async def test_requests_without_limits_or_beyond_those_of_one_do_not_ask_the_server(make_ledger):
    ledger = make_ledger("redis://127.0.0.1:1/0")
    lease = await ledger.acquire(only(Limits()), Demand(1), now_s=0.0)
    assert isinstance(lease, Lease)
    await ledger.settle(lease, Demand(1))
    denial = await ledger.acquire(only(Limits(rpm=5, max_input_tokens=5)), Demand(6), now_s=0.0)
    assert denial.outcome is Outcome.REJECTED_TOO_LARGE


async def test_soft_limits_stretch(server, make_ledger):
    ledger = make_ledger(server.url, burst=lambda: 2.0)
    scopes = ((KEY, Limits(rpm=2, soft=True)), (TEAM, Limits(rpm=100)))
    answers = [await ledger.acquire(scopes, Demand(1), now_s=0.0) for _ in range(5)]
    assert len(granted(answers)) == 4
    assert (answers[-1].limit, answers[-1].remaining) == (2, 0)


async def test_a_server_that_forgets_scripts_or_refuses_their_digests_is_sent_the_text(
    server, make_server, make_ledger, transitions
):
    ledger = make_ledger(server.url)
    await ledger.heartbeat()
    server.command("SCRIPT", "FLUSH")
    answers = await asyncio.gather(*(ledger.acquire(SCOPES, Demand(1, 1), now_s=0.0) for _ in range(50)))
    assert len(granted(answers)) == 10
    assert transitions == []
    proxied = make_server("--rename-command", "EVALSHA", "", "--rename-command", "SCRIPT", "")
    ledger = make_ledger(proxied.url)
    for _ in range(3):
        answers = await asyncio.gather(*(ledger.acquire(SCOPES, Demand(1, 1), now_s=0.0) for _ in range(50)))
    assert transitions == ["redis refuses EVALSHA, scripts are sent whole"]
    assert (await ledger.usage(KEY)).parallel == 10


async def test_free_models_pass_a_budget_that_is_overspent(server, make_ledger):
    ledger, scopes = make_ledger(server.url), only(Limits(max_budget_usd=1.0))
    await ledger.settle(await ledger.acquire(scopes, Demand(1, 0, 0.9), now_s=0.0), Demand(1, 0, 1.5))
    lease = await ledger.acquire(scopes, Demand(1), now_s=0.0)
    assert isinstance(lease, Lease)
    await ledger.release(lease)


async def test_what_waits_behind_a_silent_server_fails_with_the_first(own_server, monkeypatch):
    channel = RedisChannel(own_server.url, timeout_s=0.3, max_batch=1, max_exchanges=1)
    exchange, sent = channel._exchange, []
    monkeypatch.setattr(channel, "_exchange", lambda batch: sent.append(batch) or exchange(batch))
    own_server.freeze()
    call = (HEARTBEAT, ("{x}:owners", "{x}:leases:a"), ("", 60.0, "a", 30.0, "{x}:leases:"))
    errors = await asyncio.gather(*(channel.run(*call) for _ in range(50)), return_exceptions=True)
    assert len(sent) == 1
    assert {type(error) for error in errors} == {StoreUnavailable}
    own_server.thaw()
    assert (await channel.run(*call))[0] == 1
    await channel.aclose()


async def test_errors_of_the_store_tell_no_password(own_server):
    own_server.stop()
    channel = RedisChannel(own_server.url.replace("//", "//:s3cret@"), timeout_s=1.0)
    with pytest.raises(StoreUnavailable) as caught:
        await channel.run(HEARTBEAT, ("{x}:owners", "{x}:leases:a"), ("", 60.0, "a", 30.0, "{x}:leases:"))
    assert "s3cret" not in str(caught.value)
    await channel.aclose()


def test_a_url_that_is_none_is_a_mistake_of_the_configuration():
    with pytest.raises(ConfigError, match="url of redis"):
        RedisChannel("http://localhost")
