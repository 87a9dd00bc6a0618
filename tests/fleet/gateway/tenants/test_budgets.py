"""Periods, what was spent in them, and how a ledger learns of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from argosy.errors import InvalidRequest
from argosy.fleet.gateway import store_schema as schema
from argosy.fleet.gateway.budgets import (
    BudgetState,
    format_duration,
    parse_duration_s,
    period_start_s,
    read_budget_states,
    restore_spending,
)
from argosy.fleet.gateway.key_hash import KeyHasher
from argosy.fleet.gateway.store import Store
from argosy.fleet.gateway.tenancy import Identity, find_identity
from argosy.fleet.gateway.tenancy_groups import GroupRecords
from argosy.fleet.gateway.tenancy_keys import KeyRecords
from argosy.fleet.gateway.tenancy_records import BUDGET
from argosy.fleet.gateway.usage_commit import commit_usage
from argosy.fleet.policies.ledger import Denial, Lease, Ledger
from argosy.fleet.policies.limits import Demand, Limits, Scope
from argosy.fleet.policies.outcomes import Outcome

DAY_S = 86_400.0
KEY = Scope("key", "key_a")


@pytest.mark.parametrize(
    ("text", "seconds"), [("1s", 1), ("15m", 900), ("12h", 43_200), ("30d", 2_592_000), ("2w", 1_209_600)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_s(text, "d") == seconds
    assert parse_duration_s(format_duration(seconds), "d") == seconds


@given(st.integers(1, 10**8))
def test_durations_are_shown_as_they_are_read(seconds: int) -> None:
    assert parse_duration_s(format_duration(float(seconds)), "d") == seconds


@pytest.mark.parametrize("text", ["", "30", "0d", "-1d", "1.5h", "1y", "1mo", "d", "1d ", "٣d"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="d must be a number and a unit") as caught:
        parse_duration_s(text, "d")
    assert ("30d" in caught.value.message.partition(";")[2]) == (text == "1mo")


@given(st.floats(1.0, 1e7), st.floats(0.0, 2e9))
def test_a_moment_is_in_its_period(period_s: float, now_s: float) -> None:
    start_s = period_start_s(period_s, now_s)
    assert start_s <= now_s
    assert now_s - start_s <= period_s * (1 + 1e-9)
    assert period_start_s(None, now_s) == 0.0


def spend(store: Store, kind: str, record_id: str, period_s: float, start_s: float, nano_usd: int) -> None:
    row = {"kind": kind, "id": record_id, "period_s": period_s, "period_start_s": start_s, "cost_nano_usd": nano_usd}
    store.write(lambda c: c.execute(schema.budget_spend.insert().values(row)))


def test_spend_is_that_of_the_scope_and_the_period_that_is_on(store: Store) -> None:
    limits = Limits(max_budget_usd=1.0, budget_period_s=DAY_S)
    now_s = 10.5 * DAY_S
    spend(store, "key", "a", DAY_S, 10 * DAY_S, 5)
    spend(store, "key", "a", DAY_S, 9 * DAY_S, 100)
    spend(store, "team", "a", DAY_S, 10 * DAY_S, 200)
    spend(store, "key", "a", 0.0, 0.0, 300)
    scopes = [(Scope("key", "a"), limits), (Scope("team", "b"), limits), (Scope("org", "c"), Limits(rpm=1))]
    states = store.read(lambda c: read_budget_states(c, scopes, now_s))
    assert [(state.scope.id, state.spent_nano_usd) for state in states] == [("a", 5), ("b", 0)]
    forever = store.read(lambda c: read_budget_states(c, [(Scope("key", "a"), Limits(max_budget_usd=1.0))], now_s))
    assert forever[0].spent_usd == 300e-9
    assert store.read(lambda c: read_budget_states(c, scopes, now_s + DAY_S))[0].spent_nano_usd == 0


def test_nothing_is_reset_when_periods_end(store: Store, make_record: Any) -> None:
    records = [make_record(ended_at_s=day * DAY_S + 1, budgets=(("key", "key_a", DAY_S),)) for day in (1, 1, 2)]
    commit_usage(store, records)
    rows = store.read(lambda c: c.execute(text("SELECT period_start_s, cost_nano_usd FROM budget_spend ORDER BY 1")).all())
    assert [tuple(row) for row in rows] == [(DAY_S, 14), (2 * DAY_S, 7)]


def find(store: Store, hasher: KeyHasher, key: str, now_s: float) -> Identity:
    identity = store.read(lambda c: find_identity(c, hasher, key, now_s))
    assert identity is not None
    return identity


def test_a_budget_counts_what_was_spent_in_its_period_before_it_was_set(
    store: Store, keys: KeyRecords, groups: GroupRecords, hasher: KeyHasher, wall_clock: Any, make_record: Any
) -> None:
    issued = keys.create({})
    key_id = issued.info["id"]
    now_s = wall_clock.now_s = 10.5 * DAY_S
    spent = [make_record(key_id=key_id, ended_at_s=now_s - age, cost_nano_usd=100) for age in (1.0, 2.0, DAY_S)]
    commit_usage(store, spent)
    budget = groups.create(BUDGET, {"max_budget_usd": 1.0, "budget_period_s": DAY_S})
    keys.update(key_id, {"budget_id": budget["id"]})
    assert find(store, hasher, issued.key, now_s).budgets[0].spent_nano_usd == 200
    groups.update(BUDGET, budget["id"], {"budget_period_s": None})
    assert find(store, hasher, issued.key, now_s).budgets[0].spent_nano_usd == 300
    more = make_record(key_id=key_id, ended_at_s=now_s, cost_nano_usd=1, budgets=(("key", key_id, 0.0),))
    commit_usage(store, [more])
    keys.update(key_id, {"alias": "x"})
    assert find(store, hasher, issued.key, now_s).budgets[0].spent_nano_usd == 301, "and that once"


def ask(ledger: Ledger, limits: Limits, cost_usd: float) -> Lease | Denial:
    return ledger.acquire([(KEY, limits)], Demand(cost_usd_estimate=cost_usd), now_s=0.0)


def state(limits: Limits, start_s: float, spent_usd: float) -> BudgetState:
    return BudgetState(KEY, limits, start_s, round(spent_usd * 1e9))


def test_a_ledger_that_starts_again_goes_on_where_the_database_is() -> None:
    limits = Limits(max_budget_usd=0.03, budget_period_s=DAY_S)
    unix_s = 10.5 * DAY_S
    ledger = Ledger(unix_offset_s=unix_s)
    restore_spending(ledger, [state(limits, 10 * DAY_S, 0.02)], now_s=0.0, unix_s=unix_s)
    lease = ask(ledger, limits, 0.01)
    assert isinstance(lease, Lease)
    ledger.settle(lease, Demand(cost_usd_estimate=0.01), now_s=0.0)
    denied = ask(ledger, limits, 0.01)
    assert isinstance(denied, Denial)
    assert denied.outcome is Outcome.REJECTED_BUDGET
    assert isinstance(ask(ledger, limits, 0.0), Lease), "a free model passes a budget that is spent"


def test_what_the_ledger_knows_beyond_the_database_is_kept() -> None:
    limits = Limits(max_budget_usd=0.03, budget_period_s=DAY_S)
    ledger = Ledger(unix_offset_s=0.5 * DAY_S)
    lease = ask(ledger, limits, 0.03)
    assert isinstance(lease, Lease)
    ledger.settle(lease, Demand(cost_usd_estimate=0.03), now_s=0.0)
    restore_spending(ledger, [state(limits, 0.0, 0.01)], now_s=0.0, unix_s=0.5 * DAY_S)
    assert isinstance(ask(ledger, limits, 0.01), Denial)


def test_a_state_of_a_period_that_is_over_is_left_out() -> None:
    limits = Limits(max_budget_usd=0.03, budget_period_s=DAY_S)
    ledger = Ledger(unix_offset_s=11.0 * DAY_S)
    restore_spending(ledger, [state(limits, 10 * DAY_S, 0.03)], now_s=0.0, unix_s=11.0 * DAY_S)
    assert isinstance(ask(ledger, limits, 0.01), Lease)
