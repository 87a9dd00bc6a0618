import asyncio

from argosy.fleet.gateway.local_ledger import LocalLedger
from argosy.fleet.policies.ledger import Denial, Lease
from argosy.fleet.policies.limits import Demand, Limits, Scope

KEY = Scope("key", "k")


async def test_a_thousand_at_once_against_limits_of_ten():
    ledger, scopes = LocalLedger(), ((KEY, Limits(rpm=10, max_parallel=10)),)

    async def request():
        await asyncio.sleep(0)
        return await ledger.acquire(scopes, Demand(10, 10), now_s=0.0)

    answers = await asyncio.gather(*(request() for _ in range(1000)))
    leases = [answer for answer in answers if isinstance(answer, Lease)]
    assert len(leases) == 10
    for lease in leases:
        await ledger.settle(lease, Demand(10, 5), now_s=1.0)
        await ledger.release(lease, now_s=1.0)
    ledger.ledger.check_invariants()
    assert ledger.ledger.num_leases == 0


async def test_a_request_counts_however_long_it_takes():
    ledger, scopes = LocalLedger(), ((KEY, Limits(max_parallel=1)),)
    lease = await ledger.acquire(scopes, Demand(1), now_s=0.0)
    assert isinstance(await ledger.acquire(scopes, Demand(1), now_s=1e6), Denial)
    await ledger.release(lease, now_s=1e6)


async def test_soft_limits_stretch_by_what_the_load_allows_at_the_moment():
    load = [2.0]
    ledger, scopes = LocalLedger(burst=lambda: load[0]), ((KEY, Limits(max_parallel=1, soft=True)),)
    leases = [await ledger.acquire(scopes, Demand(1), now_s=0.0) for _ in range(2)]
    load[0] = 1.0
    assert isinstance(await ledger.acquire(scopes, Demand(1), now_s=0.0), Denial)
    await ledger.release(leases[0], now_s=0.0)
    assert isinstance(await ledger.acquire(scopes, Demand(1), now_s=0.0), Denial)
    await ledger.release(leases[1], now_s=0.0)
    assert isinstance(await ledger.acquire(scopes, Demand(1), now_s=0.0), Lease)
