import math
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.errors import ConfigError
from argosy.fleet.policies.ledger import Denial, Lease, Ledger
from argosy.fleet.policies.limits import Demand, Dimension, Limits, Scope
from argosy.fleet.policies.outcomes import Outcome

KEY, TEAM, ORG = Scope("key", "k"), Scope("team", "t"), Scope("org", "o")


def only(limits):
    return ((KEY, limits),)


def tokens(count):
    return Demand(input_tokens=count)


def cost(usd):
    return Demand(input_tokens=1, cost_usd_estimate=usd)


def granted(answers):
    return [answer for answer in answers if isinstance(answer, Lease)]


def test_tokens_are_reserved_before_the_answer_is_known():
    ledger = Ledger()
    answers = [ledger.acquire(only(Limits(tpm=100)), tokens(n), now_s=0.0) for n in (58, 80, 175, 30, 175)]
    assert [isinstance(answer, Lease) for answer in answers] == [True, False, False, True, False]
    assert {answer.outcome for answer in answers if isinstance(answer, Denial)} == {Outcome.REJECTED_TOKENS}
    assert [answer.retryable for answer in answers if isinstance(answer, Denial)] == [True, False, False]


def test_each_dimension_has_a_window_of_its_own():
    ledger, scopes = Ledger(), only(Limits(rpm=500, tpm=200))
    ledger.settle(ledger.acquire(scopes, tokens(150), now_s=0.0), tokens(150), now_s=1.0)
    assert isinstance(ledger.acquire(scopes, tokens(60), now_s=60.9), Denial)
    assert isinstance(ledger.acquire(scopes, tokens(60), now_s=61.0), Lease)


def test_a_denial_names_the_limit_and_the_time_after_which_it_lets_the_request_pass():
    ledger, scopes = Ledger(), ((KEY, Limits(rpm=100)), (TEAM, Limits(rpm=2)))
    for now_s in (0.0, 10.0):
        ledger.acquire(scopes, tokens(1), now_s=now_s)
    denial = ledger.acquire(scopes, tokens(1), now_s=30.0)
    assert (denial.outcome, denial.scope, denial.dimension) == (Outcome.REJECTED_RATE, TEAM, Dimension.REQUESTS)
    assert (denial.limit, denial.remaining, denial.retry_after_s) == (2, 0, 31.0)
    assert "requests limit of this team" in denial.message
    assert isinstance(ledger.acquire(scopes, tokens(1), now_s=60.99), Denial)
    assert isinstance(ledger.acquire(scopes, tokens(1), now_s=61.0), Lease)


def test_of_several_limits_the_one_that_holds_longest_is_named():
    ledger = Ledger()
    scopes = (
        (KEY, Limits(max_parallel=1)),
        (TEAM, Limits(tpm=10)),
        (ORG, Limits(max_budget_usd=1.0, budget_period_s=3600.0)),
    )
    ledger.acquire(scopes, Demand(10, 0, 1.0), now_s=0.0)
    denial = ledger.acquire(scopes, Demand(10, 0, 1.0), now_s=10.0)
    assert (denial.outcome, denial.scope, denial.retry_after_s) == (Outcome.REJECTED_BUDGET, ORG, 3590.0)
    assert ledger.acquire(scopes, Demand(10, 0, 0.0), now_s=10.0).outcome is Outcome.REJECTED_TOKENS


def test_a_budget_without_a_period_has_no_time_to_wait_for():
    ledger = Ledger()
    ledger.acquire(only(Limits(max_budget_usd=1.0)), cost(0.9), now_s=0.0)
    denial = ledger.acquire(only(Limits(max_budget_usd=1.0)), cost(0.2), now_s=0.0)
    assert denial.retry_after_s is None
    assert denial.remaining == pytest.approx(0.1)


def test_all_scopes_or_nothing():
    ledger = Ledger()
    scopes = ((KEY, Limits(rpm=10, tpm=100, max_parallel=5, kv_tokens=100)), (ORG, Limits(max_parallel=1)))
    lease = ledger.acquire(scopes, tokens(5), now_s=0.0)
    assert isinstance(ledger.acquire(scopes, tokens(5), now_s=0.0), Denial)
    for dimension, used in (
        (Dimension.REQUESTS, 1),
        (Dimension.TOKENS, 5),
        (Dimension.PARALLEL, 1),
        (Dimension.KV_TOKENS, 5),
    ):
        status = ledger.status(KEY, dimension, now_s=0.0)
        assert status.limit - status.remaining == used
    ledger.release(lease, now_s=0.0)
    ledger.check_invariants()


def test_a_budget_is_a_budget_wherever_it_stands():
    ledger = Ledger()
    scopes = ((KEY, Limits()), (TEAM, Limits(max_budget_usd=0.01)))
    outcomes = []
    for _ in range(3):
        answer = ledger.acquire(scopes, cost(0.01), now_s=0.0)
        outcomes.append(isinstance(answer, Lease))
        if isinstance(answer, Lease):
            ledger.settle(answer, cost(0.01), now_s=0.0)
    assert outcomes == [True, False, False]


def test_without_a_budget_nothing_is_refused_for_money_and_a_free_model_never():
    ledger = Ledger()
    assert isinstance(ledger.acquire(only(Limits(rpm=5)), cost(1e6), now_s=0.0), Lease)
    team = ((TEAM, Limits(max_budget_usd=0.0)),)
    denial = ledger.acquire(team, cost(0.01), now_s=0.0)
    assert denial.outcome is Outcome.REJECTED_BUDGET
    assert "budget limit of this team reached: limit $0, remaining $0;" in denial.message
    assert isinstance(ledger.acquire(team, cost(0.0), now_s=0.0), Lease)
    overspent = only(Limits(max_budget_usd=1.0))
    ledger.settle(ledger.acquire(overspent, cost(0.9), now_s=0.0), cost(1.5), now_s=0.0)
    assert isinstance(ledger.acquire(overspent, cost(0.0), now_s=0.0), Lease)


def test_budgets_begin_anew_with_the_period_and_spending_counts_where_it_is_settled():
    ledger = Ledger(unix_offset_s=50.0)
    scopes = only(Limits(max_budget_usd=1.0, budget_period_s=100.0))
    lease = ledger.acquire(scopes, cost(0.6), now_s=0.0)
    ledger.settle(ledger.acquire(scopes, cost(0.4), now_s=0.0), cost(0.4), now_s=0.0)
    assert isinstance(ledger.acquire(scopes, cost(0.1), now_s=49.0), Denial)
    second = ledger.acquire(scopes, cost(0.4), now_s=50.0)
    assert isinstance(second, Lease)
    ledger.settle(lease, cost(0.5), now_s=51.0)
    assert ledger.spent_usd(KEY, now_s=51.0) == pytest.approx(0.5)
    ledger.release(second, now_s=52.0)
    assert isinstance(ledger.acquire(scopes, cost(0.5), now_s=52.0), Lease)


def test_spending_that_a_store_remembers_counts():
    ledger, limits = Ledger(), Limits(max_budget_usd=1.0, budget_period_s=100.0)
    ledger.restore_spending(KEY, limits, 0.95, now_s=210.0)
    assert isinstance(ledger.acquire(only(limits), cost(0.1), now_s=299.0), Denial)
    assert isinstance(ledger.acquire(only(limits), cost(0.1), now_s=300.0), Lease)


def test_unset_is_unlimited():
    ledger = Ledger()
    answers = [ledger.acquire(only(Limits(rpm=50)), tokens(100_000), now_s=0.0) for _ in range(50)]
    assert len(granted(answers)) == 50
    assert isinstance(ledger.acquire(only(Limits()), tokens(10**9), now_s=0.0), Lease)
    assert ledger.status(KEY, Dimension.TOKENS, now_s=0.0) is None


@pytest.mark.parametrize(
    ("demand", "dimension"),
    [
        (Demand(input_tokens=11), Dimension.INPUT_TOKENS),
        (Demand(output_tokens_estimate=21), Dimension.OUTPUT_TOKENS),
        (Demand(output_tokens_estimate=5, max_output_tokens=21), Dimension.OUTPUT_TOKENS),
    ],
)
def test_the_bounds_of_one_request(demand, dimension):
    denial = Ledger().acquire(only(Limits(max_input_tokens=10, max_output_tokens=20, rpm=0)), demand, now_s=0.0)
    assert (denial.outcome, denial.dimension, denial.retryable) == (Outcome.REJECTED_TOO_LARGE, dimension, False)


def test_settling_gives_back_what_was_not_used_and_counts_what_was_used_beyond():
    ledger, scopes = Ledger(), only(Limits(tpm=100))
    ledger.settle(ledger.acquire(scopes, tokens(80), now_s=0.0), tokens(30), now_s=5.0)
    assert ledger.status(KEY, Dimension.TOKENS, now_s=5.0).remaining == 70
    ledger.settle(ledger.acquire(scopes, tokens(10), now_s=5.0), tokens(60), now_s=40.0)
    assert ledger.status(KEY, Dimension.TOKENS, now_s=40.0).remaining == 10
    assert ledger.status(KEY, Dimension.TOKENS, now_s=70.0).remaining == 50  # the excess counts from its settlement
    assert ledger.status(KEY, Dimension.TOKENS, now_s=101.0).remaining == 100


def test_a_lease_ends_once():
    ledger, scopes = Ledger(), only(Limits(max_parallel=2, tpm=100, max_budget_usd=1.0))
    lease = ledger.acquire(scopes, Demand(10, 10, 0.1), now_s=0.0)
    other = ledger.acquire(scopes, Demand(10, 10, 0.1), now_s=0.0)
    assert ledger.settle(lease, Demand(10, 5, 0.05), now_s=1.0)
    assert not ledger.release(lease, now_s=1.0)
    assert not ledger.settle(lease, Demand(10, 5, 0.05), now_s=1.0)
    assert ledger.status(KEY, Dimension.PARALLEL, now_s=1.0).remaining == 1
    assert ledger.spent_usd(KEY, now_s=1.0) == pytest.approx(0.05)
    ledger.release(other, now_s=1.0)
    assert ledger.status(KEY, Dimension.TOKENS, now_s=1.0).remaining == 85
    ledger.check_invariants()


def test_a_lease_without_a_sign_of_life_ends_as_if_it_had_taken_its_estimate():
    ledger, scopes = Ledger(lease_ttl_s=30.0), only(Limits(max_parallel=1, max_budget_usd=1.0))
    lease = ledger.acquire(scopes, cost(0.3), now_s=0.0, owner="gone")
    assert isinstance(ledger.acquire(scopes, cost(0.3), now_s=29.9), Denial)
    assert isinstance(ledger.acquire(scopes, cost(0.3), now_s=30.0), Lease)
    assert ledger.spent_usd(KEY, now_s=30.0) == pytest.approx(0.3)
    assert not ledger.settle(lease, cost(0.3), now_s=31.0)
    assert ledger.num_expired == 1


def test_a_long_request_counts_as_long_as_its_owner_lives():
    ledger, scopes = Ledger(lease_ttl_s=30.0), only(Limits(max_parallel=2))
    mine = ledger.acquire(scopes, tokens(1), now_s=0.0, owner="alive")
    single = ledger.acquire(scopes, tokens(1), now_s=0.0, owner="other")
    for now_s in range(10, 360, 10):
        assert ledger.heartbeat("alive", now_s=now_s) == 1
        assert ledger.renew(single, now_s=now_s)
    assert isinstance(ledger.acquire(scopes, tokens(1), now_s=360.0), Denial)
    assert ledger.release(mine, now_s=361.0)
    assert ledger.expire(now_s=380.0) == 1
    assert not ledger.renew(single, now_s=381.0)


def test_soft_limits_stretch_and_hard_ones_do_not():
    def most(limits, burst):
        ledger = Ledger()
        return len(granted(ledger.acquire(only(limits), cost(0.1), now_s=0.0, burst=burst) for _ in range(50)))

    assert most(Limits(rpm=10, soft=True), 2.0) == 20
    assert most(Limits(tpm=10, soft=True), 1.5) == 15
    assert most(Limits(max_parallel=10, soft=True), 1.25) == 12
    assert most(Limits(kv_tokens=10, soft=True), 1.0) == 10
    assert most(Limits(rpm=10), 2.0) == 10
    assert most(Limits(max_budget_usd=1.0, soft=True), 2.0) == 10


def test_a_lease_says_where_the_tightest_scope_stands():
    ledger = Ledger()
    lease = ledger.acquire(((KEY, Limits(rpm=10, tpm=1000)), (TEAM, Limits(rpm=100, tpm=50))), tokens(20), now_s=0.5)
    assert (lease.requests.scope, lease.requests.limit, lease.requests.remaining) == (KEY, 10, 9)
    assert (lease.tokens.scope, lease.tokens.limit, lease.tokens.remaining) == (TEAM, 50, 30)
    assert lease.tokens.reset_s == 60.5
    assert ledger.acquire(only(Limits(max_parallel=3)), tokens(1), now_s=0.0).requests is None


def test_limits_may_change_while_requests_run():
    ledger = Ledger()
    lease = ledger.acquire(only(Limits(rpm=10)), Demand(5, 5, 0.1), now_s=0.0)
    limited = Limits(max_parallel=1, tpm=10, max_budget_usd=1.0)
    assert ledger.acquire(only(limited), tokens(1), now_s=0.0).outcome is Outcome.REJECTED_CONCURRENCY
    ledger.settle(lease, Demand(5, 50, 0.1), now_s=0.0)
    ledger.check_invariants()
    assert isinstance(ledger.acquire(only(limited), tokens(10), now_s=0.0), Lease)


def test_forgotten_is_only_what_does_not_count():
    ledger = Ledger(lease_ttl_s=math.inf, max_scopes=20)
    budget = Limits(rpm=5, max_budget_usd=1.0)
    ledger.settle(ledger.acquire(((ORG, budget),), cost(0.9), now_s=0.0), cost(0.9), now_s=0.0)
    running = ledger.acquire(only(Limits(max_parallel=1)), tokens(1), now_s=0.0)
    for i in range(1000):
        scopes = ((Scope("key", f"k{i}"), Limits(rpm=5)),)
        ledger.release(ledger.acquire(scopes, tokens(1), now_s=i * 10.0), now_s=i * 10.0)
        ledger.check_invariants()
    assert ledger.num_scopes <= 20
    assert isinstance(ledger.acquire(((ORG, budget),), cost(0.2), now_s=9999.0), Denial)
    assert isinstance(ledger.acquire(only(Limits(max_parallel=1)), tokens(1), now_s=9999.0), Denial)
    assert ledger.release(running, now_s=9999.0)


def test_a_ledger_that_is_full_denies_and_forgets_nothing():
    ledger = Ledger(max_scopes=3, max_leases=2)
    leases = [ledger.acquire(((Scope("key", str(i)), Limits(rpm=5)),), tokens(1), now_s=0.0) for i in range(2)]
    assert ledger.acquire(only(Limits()), tokens(1), now_s=0.0).outcome is Outcome.REJECTED_CAPACITY
    ledger.release(leases[0], now_s=0.0)
    assert isinstance(ledger.acquire(only(Limits(rpm=1)), tokens(1), now_s=0.0), Lease)
    ledger.release(leases[1], now_s=0.0)
    denial = ledger.acquire(((TEAM, Limits(rpm=5)),), tokens(1), now_s=0.0)
    assert (denial.outcome, denial.scope) == (Outcome.REJECTED_CAPACITY, None)
    ledger.check_invariants()
    assert isinstance(ledger.acquire(((TEAM, Limits(rpm=5)),), tokens(1), now_s=61.0), Lease)


def test_work_per_request_does_not_grow_with_the_number_of_scopes(monkeypatch):
    ledger, looked_at = Ledger(window_s=1.0), []
    for i in range(5000):
        scopes = ((Scope("key", str(i)), Limits(rpm=5)),)
        ledger.release(ledger.acquire(scopes, tokens(1), now_s=0.0), now_s=0.0)
    usage = type(next(iter(ledger._scopes.values())))
    is_idle = usage.is_idle
    monkeypatch.setattr(usage, "is_idle", lambda self, now_s: looked_at.append(self) or is_idle(self, now_s))
    for i in range(10):
        assert isinstance(ledger.acquire(only(Limits(rpm=100)), tokens(1), now_s=100.0 + i / 5), Lease)
    assert len(looked_at) <= 10


@pytest.mark.parametrize("settings", [{"lease_ttl_s": 0.0}, {"window_s": -1.0}, {"max_scopes": 0}, {"max_leases": 0}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ConfigError):
        Ledger(**settings)


def test_a_thousand_threads_at_once_against_limits_of_ten():
    ledger = Ledger()
    limits = Limits(rpm=10, tpm=10_000, max_parallel=10, kv_tokens=10_000, max_budget_usd=10.0)
    scopes = ((KEY, limits), (TEAM, limits), (ORG, limits))
    answers, barrier = [], threading.Barrier(20)

    def hammer():
        barrier.wait()
        answers.extend([ledger.acquire(scopes, Demand(10, 10, 0.001), now_s=0.0) for _ in range(50)])

    threads = [threading.Thread(target=hammer) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 1000
    assert len(granted(answers)) == 10
    ledger.check_invariants()
    for lease in granted(answers):
        ledger.release(lease, now_s=1.0)
    ledger.check_invariants()
    assert ledger.num_leases == 0


SCOPES = {
    KEY: Limits(rpm=6, tpm=300, max_parallel=3, kv_tokens=250, max_budget_usd=0.5, budget_period_s=600.0),
    TEAM: Limits(rpm=9, max_parallel=4, max_budget_usd=0.4),
    ORG: Limits(tpm=400, kv_tokens=300, max_input_tokens=90),
}
operations = st.lists(
    st.one_of(
        st.tuples(
            st.just("acquire"), st.integers(1, 7), st.integers(0, 120), st.integers(0, 60), st.integers(0, 12),
        ),
        st.tuples(st.just("settle"), st.integers(0, 20), st.integers(0, 100), st.integers(0, 100)),
        st.tuples(st.just("release"), st.integers(0, 20)),
        st.tuples(st.just("wait"), st.floats(0.0, 40.0)),
        st.tuples(st.just("heartbeat")),
    ),
    max_size=60,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(operations)
def test_any_order_of_events_keeps_every_limit_and_leaks_nothing(steps):
    ledger, now_s = Ledger(lease_ttl_s=50.0), 0.0
    live: dict[int, tuple[Lease, float]] = {}  # lease and when it expires
    admitted: list[tuple[float, Lease]] = []
    charged = dict.fromkeys(SCOPES, 0.0)

    def charge(lease, usd):
        for scope, _ in lease.scopes:
            charged[scope] += usd

    for step in steps:
        if step[0] == "wait":
            now_s += step[1]
        elif step[0] == "heartbeat":
            ledger.expire(now_s=now_s)
            assert ledger.heartbeat("local", now_s=now_s) == len([1 for _, until in live.values() if until > now_s])
        for lease, until in list(live.values()):
            if until <= now_s:
                charge(lease, lease.demand.cost_usd_estimate)
                del live[lease.id]
            elif step[0] == "heartbeat":
                live[lease.id] = (lease, now_s + 50.0)
        if step[0] == "acquire":
            chosen = tuple((scope, SCOPES[scope]) for i, scope in enumerate(SCOPES) if step[1] & 1 << i)
            answer = ledger.acquire(chosen, Demand(step[2], step[3], step[4] / 100), now_s=now_s)
            if isinstance(answer, Lease):
                live[answer.id] = (answer, now_s + 50.0)
                admitted.append((now_s, answer))
            else:
                assert 0.0 <= answer.remaining <= answer.limit
        elif step[0] in ("settle", "release") and live:
            lease = list(live.values())[step[1] % len(live)][0]
            ledger.expire(now_s=now_s)
            if step[0] == "release":
                assert ledger.release(lease, now_s=now_s)
            else:
                demand = lease.demand
                actual = Demand(
                    demand.input_tokens,
                    demand.output_tokens_estimate * step[2] // 100,
                    demand.cost_usd_estimate * step[3] / 100,
                )
                assert ledger.settle(lease, actual, now_s=now_s)
                charge(lease, actual.cost_usd_estimate)
            del live[lease.id]
            assert not ledger.release(lease, now_s=now_s)
        ledger.expire(now_s=now_s)
        ledger.check_invariants()
        assert ledger.num_leases == len(live)
        for scope, limits in SCOPES.items():
            mine = [lease for lease, _ in live.values() if scope in dict(lease.scopes)]
            assert limits.max_parallel is None or len(mine) <= limits.max_parallel
            assert limits.kv_tokens is None or sum(lease.demand.total_tokens for lease in mine) <= limits.kv_tokens
            recent = [lease for t, lease in admitted if now_s - t < 60.0 and scope in dict(lease.scopes)]
            assert limits.rpm is None or len(recent) <= limits.rpm
            if limits.tpm is not None:
                assert sum(lease.demand.total_tokens for lease in recent if lease.id in live) <= limits.tpm
            if limits.max_budget_usd is not None and limits.budget_period_s is None:
                assert charged[scope] <= limits.max_budget_usd + 1e-9
                assert math.isclose(ledger.spent_usd(scope, now_s=now_s), charged[scope], abs_tol=1e-7)
    for lease, _ in live.values():
        ledger.release(lease, now_s=now_s)
    ledger.check_invariants()
    assert ledger.num_leases == 0
    for scope in SCOPES:
        parallel = ledger.status(scope, Dimension.PARALLEL, now_s=now_s)
        assert parallel is None or parallel.remaining == parallel.limit


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.floats(0.0, 3.0)), min_size=1, max_size=40))
def test_spending_beyond_a_budget_is_at_most_what_was_underestimated(requests):
    """Every request costs up to three times its estimate; the sum of reserved and spent never lets a further one in."""
    ledger, limits = Ledger(), Limits(max_budget_usd=1.0)
    for cents, factor in requests:
        answer = ledger.acquire(only(limits), cost(cents / 100), now_s=0.0)
        if isinstance(answer, Lease):
            assert ledger.spent_usd(KEY, now_s=0.0) + cents / 100 <= 1.0 + 1e-9
            ledger.settle(answer, cost(cents / 100 * factor), now_s=0.0)
        else:
            assert ledger.spent_usd(KEY, now_s=0.0) + cents / 100 > 1.0 - 1e-9
