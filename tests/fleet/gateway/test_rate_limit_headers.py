import pytest

from argosy.fleet.gateway.local_ledger import LocalLedger
from argosy.fleet.gateway.rate_limit_headers import go_duration
from argosy.fleet.policies.ledger import Ledger
from argosy.fleet.policies.limits import Demand, Limits, Scope

KEY, TEAM = Scope("key", "k"), Scope("team", "t")


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (-1.0, "0s"), (0.0, "0s"), (0.0001, "1ms"), (0.02, "20ms"), (1.0, "1s"), (1.5, "1.5s"), (59.9999, "1m0s"),
        (61.25, "1m1.25s"), (360.0, "6m0s"), (3600.0, "1h0m0s"), (90_061.0, "25h1m1s"),
    ],
)  # fmt: skip
def test_durations_are_written_as_openai_does(duration_s, text):
    assert go_duration(duration_s) == text


async def test_a_granted_request_is_told_the_tightest_scope_and_time_that_passed_meanwhile():
    ledger = LocalLedger(Ledger())
    scopes = ((KEY, Limits(rpm=10, tpm=1000)), (TEAM, Limits(rpm=3)))
    lease = await ledger.acquire(scopes, Demand(100, 50), now_s=20.0)
    assert ledger.headers(lease, now_s=30.5) == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "2",
        "x-ratelimit-reset-requests": "50.5s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "850",
        "x-ratelimit-reset-tokens": "50.5s",
    }
    await ledger.release(lease, now_s=31.0)


async def test_a_denied_request_is_told_of_the_limit_that_denied_and_of_no_other():
    ledger = LocalLedger(Ledger())
    scopes = ((KEY, Limits(rpm=100, tpm=10)), (TEAM, Limits(tpm=200)))
    denial = await ledger.acquire(scopes, Demand(50), now_s=0.0)
    assert set(ledger.headers(denial, now_s=0.0)) == {
        f"x-ratelimit-{word}-tokens" for word in ("limit", "remaining", "reset")
    }
    assert ledger.headers(denial, now_s=0.0)["x-ratelimit-limit-tokens"] == "10"
    lease = await ledger.acquire(((KEY, Limits(max_parallel=1)),), Demand(1), now_s=0.0)
    denial = await ledger.acquire(((KEY, Limits(max_parallel=1)),), Demand(1), now_s=0.0)
    assert ledger.headers(denial, now_s=0.0) == {}
    await ledger.release(lease, now_s=0.0)


async def test_nothing_limited_is_nothing_said():
    ledger = LocalLedger()
    lease = await ledger.acquire(((KEY, Limits()),), Demand(1), now_s=0.0)
    assert ledger.headers(lease, now_s=0.0) == {}
