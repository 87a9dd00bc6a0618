"""What has been spent in the current period of each budget.

Periods of a length follow one another from the start of the Unix epoch, so every process knows without asking when one
begins: those of a day begin at 00:00 UTC, those of a week on Thursdays. Spend is kept per (scope, period): a period that
begins is a row that is not there yet. Nothing is reset, and nothing walks over keys.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, select, tuple_

from argosy.errors import InvalidRequest
from argosy.fleet.gateway import store_schema as schema
from argosy.fleet.policies.limits import NANO_USD_PER_USD, Limits, Scope

NO_PERIOD_S = 0.0
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"([1-9]\d{0,8})([smhdw])", re.ASCII)


@dataclass(frozen=True, slots=True)
class BudgetState:
    """Spend of one scope in the period that is on.

    Attributes:
        period_s: 0.0 for a budget without a period; period_start_s: Unix time, 0.0 without a period.
        age_s: time since the period began, so that it can be placed on another clock.
        spent_nano_usd: of requests that the database has.
    """

    scope: Scope
    period_s: float
    period_start_s: float
    age_s: float
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
    wanted = [
        (scope, limits.budget_period_s or NO_PERIOD_S, period_start_s(limits.budget_period_s, now_s))
        for scope, limits in scopes
        if limits.max_budget_usd is not None
    ]
    if not wanted:
        return ()
    spend = schema.budget_spend.c
    of_scopes = tuple_(spend.kind, spend.id, spend.period_s, spend.period_start_s).in_(
        [(scope.kind, scope.id, length_s, start_s) for scope, length_s, start_s in wanted]
    )
    rows = connection.execute(select(spend.kind, spend.id, spend.cost_nano_usd).where(of_scopes))
    spent = {(kind, record_id): cost for kind, record_id, cost in rows}
    return tuple(
        BudgetState(scope, length_s, start_s, now_s - start_s if length_s else 0.0, spent.get((scope.kind, scope.id), 0))
        for scope, length_s, start_s in wanted
    )


def spent_since(connection: Connection, scope: Scope, since_s: float) -> int:
    """Nano-dollars of a scope's requests from Unix time `since_s` on, counted one by one: for a period of a new length."""
    usage = schema.usage_records.c
    column = {"key": usage.key_id, "team": usage.team_id, "org": usage.org_id}[scope.kind]
    total = select(func.coalesce(func.sum(usage.cost_nano_usd), 0)).where(column == scope.id, usage.ended_at_s >= since_s)
    return int(connection.scalar(total) or 0)


def parse_duration_s(text: str, param: str) -> float:
    """Seconds of a duration such as 30s, 15m, 12h, 30d or 4w.

    Raises:
        InvalidRequest: another form; calendar months, which have no one length, are among them.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        hint = "; a month has no fixed length, write 30d" if text.endswith("mo") else ""
        raise InvalidRequest(f"{param} must be a number and a unit of s, m, h, d, w, such as 30d{hint}", param=param)
    return float(int(match[1]) * _UNIT_S[match[2]])
