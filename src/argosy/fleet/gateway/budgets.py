"""What has been spent in the current period of each budget.

Periods of a length follow one another from the start of the Unix epoch, so every process knows without asking when one
begins: those of a day begin at 00:00 UTC, those of a week on Thursdays. Spend is kept per (scope, period): a period that
begins is a row that is not there yet. Nothing is reset, and nothing walks over keys.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sqlalchemy import Connection, func, select, tuple_

from argosy.errors import InvalidRequest
from argosy.fleet.gateway import store_schema as schema
from argosy.fleet.policies.limits import NANO_USD_PER_USD, Limits, Scope

NO_PERIOD_S = 0.0
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LONGEST_S = 100_000 * 86400.0
_DURATION = re.compile(r"([1-9]\d{0,8})([smhdw])", re.ASCII)


@dataclass(frozen=True, slots=True)
class BudgetState:
    """Spend of one scope in the period that is on.

    Attributes:
        limits: those with the budget.
        period_start_s: Unix time, 0.0 for a budget without periods.
        spent_nano_usd: of requests that the database has.
    """

    scope: Scope
    limits: Limits
    period_start_s: float
    spent_nano_usd: int

    @property
    def spent_usd(self) -> float:
        """Dollars."""
        return self.spent_nano_usd / NANO_USD_PER_USD


def period_start_s(period_s: float | None, now_s: float) -> float:
    """Unix time at which the period that holds `now_s` began; 0.0 for a budget without periods."""
    return 0.0 if not period_s else now_s // period_s * period_s


def read_budget_states(
    connection: Connection, scopes: Sequence[tuple[Scope, Limits]], now_s: float
) -> tuple[BudgetState, ...]:
    """The states of those of `scopes` that have a budget, in one query; none is made if there are none."""
    wanted = [(scope, limits) for scope, limits in scopes if limits.max_budget_usd is not None]
    if not wanted:
        return ()
    starts = [period_start_s(limits.budget_period_s, now_s) for _, limits in wanted]
    spend = schema.budget_spend.c
    of_scopes = tuple_(spend.kind, spend.id, spend.period_s, spend.period_start_s).in_(
        [
            (scope.kind, scope.id, limits.budget_period_s or NO_PERIOD_S, start_s)
            for (scope, limits), start_s in zip(wanted, starts, strict=True)
        ]
    )
    rows = connection.execute(select(spend.kind, spend.id, spend.cost_nano_usd).where(of_scopes))
    spent = {(kind, record_id): cost for kind, record_id, cost in rows}
    return tuple(
        BudgetState(scope, limits, start_s, spent.get((scope.kind, scope.id), 0))
        for (scope, limits), start_s in zip(wanted, starts, strict=True)
    )


class SpendingLedger(Protocol):
    """The part of the admission ledger that budgets are restored through."""

    def spent_usd(self, scope: Scope, *, now_s: float) -> float:
        """Dollars spent in the current period, as far as the ledger knows."""
        ...

    def restore_spending(self, scope: Scope, limits: Limits, spent_usd: float, *, now_s: float) -> None:
        """Set that."""
        ...


def restore_spending(ledger: SpendingLedger, states: Sequence[BudgetState], *, now_s: float, unix_s: float) -> None:
    """Tell `ledger` what the database knows of spending, if that is more than it knows itself.

    The database lacks what is still on its way to it, the ledger lacks what other processes and earlier runs have spent.

    Args:
        now_s: on the ledger's clock; unix_s: the same moment as Unix time. A state of a period that is over is left out.
    """
    for state in states:
        if period_start_s(state.limits.budget_period_s, unix_s) == state.period_start_s:
            spent_usd = max(state.spent_usd, ledger.spent_usd(state.scope, now_s=now_s))
            ledger.restore_spending(state.scope, state.limits, spent_usd, now_s=now_s)


def spent_since(connection: Connection, scope: Scope, since_s: float) -> int:
    """Nano-dollars of a scope's requests from Unix time `since_s` on, counted one by one: for a period of a new length."""
    usage = schema.usage_records.c
    column = {"key": usage.key_id, "team": usage.team_id, "org": usage.org_id}[scope.kind]
    total = select(func.coalesce(func.sum(usage.cost_nano_usd), 0)).where(column == scope.id, usage.ended_at_s >= since_s)
    return int(connection.scalar(total) or 0)


def parse_duration_s(text: str, param: str) -> float:
    """Seconds of a duration such as 30s, 15m, 12h, 30d or 4w.

    Raises:
        InvalidRequest: another form; calendar months, which have no one length, are among them. Or more than 100000 days.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        hint = "; a month has no fixed length, write 30d" if text.endswith("mo") else ""
        raise InvalidRequest(f"{param} must be a number and a unit of s, m, h, d, w, such as 30d{hint}", param=param)
    duration_s = float(int(match[1]) * _UNIT_S[match[2]])
    if duration_s > _LONGEST_S:
        raise InvalidRequest(f"{param} must be at most {format_duration(_LONGEST_S)}; leave it out for no end", param=param)
    return duration_s


def format_duration(period_s: float) -> str:
    """A duration as `parse_duration_s` takes it, in the largest unit that divides it."""
    unit = next(unit for unit, unit_s in reversed(_UNIT_S.items()) if period_s % unit_s == 0 or unit == "s")
    return f"{round(period_s / _UNIT_S[unit])}{unit}"
