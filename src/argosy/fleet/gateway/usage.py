"""What one request took and cost, as it is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

import orjson

from argosy.fleet.gateway.budgets import NO_PERIOD_S
from argosy.fleet.gateway.exchange import Exchange
from argosy.fleet.gateway.prices import PriceTable

MAX_NAME_CHARACTERS = 256
MAX_REQUEST_ID_CHARACTERS = 128
MAX_TOKENS = 10**9  # of one request; a backend that reports more is wrong, and sums must stay within 64 bits


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """One request that reached a backend, whole or aborted.

    Attributes:
        request_id: unique over all processes and restarts, never the client's: what counts a request once.
        x_request_id: the one in logs and in the answer's header, which a client may have chosen and used twice; at most 128
            characters.
        model: the pool that answered; backend: which of its backends.
        started_at_s, ended_at_s: Unix seconds; the day and the budget period are those of the end.
        cached_tokens: those of `input_tokens` that the backend had in its prefix cache.
        streamed: as events.
        estimated: the backend reported no usage, or an impossible one: these tokens are not as it said.
        budgets: (kind, id, period_s) of the scopes whose budget it is charged to; period 0.0 is none.
    """

    request_id: str
    key_id: str
    team_id: str
    org_id: str
    model: str
    backend: str
    started_at_s: float
    ended_at_s: float
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    cost_nano_usd: int
    status: int
    outcome: str
    streamed: bool
    estimated: bool
    budgets: tuple[tuple[str, str, float], ...] = ()
    x_request_id: str = ""

    def row(self) -> dict[str, Any]:
        """The columns of `usage_records`."""
        return dict(zip(COLUMNS, _COLUMN_VALUES(self), strict=True))

    def line(self) -> bytes:
        """The record as a line of a journal, newline included."""
        return orjson.dumps(self, option=orjson.OPT_APPEND_NEWLINE)


COLUMNS = tuple(field.name for field in fields(UsageRecord) if field.name != "budgets")
_COLUMN_VALUES = attrgetter(*COLUMNS)


def day_of(time_s: float) -> str:
    """UTC day of a Unix time, as 2026-01-31."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d")


def record_from_line(line: bytes) -> UsageRecord:
    """The record that `line` was made from. Raises `ValueError` for anything else."""
    values: Mapping[str, Any] = orjson.loads(line)
    try:
        budgets: Sequence[Sequence[Any]] = values["budgets"]
        charged = tuple((str(kind), str(record_id), float(period_s)) for kind, record_id, period_s in budgets)
        return UsageRecord(**{**values, "budgets": charged})
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a usage record: {error}") from None


def usage_of(exchange: Exchange, prices: PriceTable, *, process_id: str, now_s: float) -> UsageRecord | None:
    """The record of a request that has ended at Unix time `now_s`; None if no backend was called for it.

    Args:
        process_id: unique to this run of the process; with the exchange's id it names the request for ever.
    """
    if exchange.attempts == 0 or exchange.principal is None:
        return None
    caller, usage = exchange.principal, exchange.usage
    input_tokens, output_tokens = _plausible(usage.input_tokens), _plausible(usage.output_tokens)
    cached_tokens = min(_plausible(usage.cached_tokens), input_tokens)
    is_as_reported = (
        input_tokens == usage.input_tokens and cached_tokens == usage.cached_tokens and output_tokens == usage.output_tokens
    )
    price = prices.price(exchange.pool, exchange.backend_id)
    org_id = next((scope.id for scope, _ in caller.scopes if scope.kind == "org"), "")
    return UsageRecord(
        request_id=f"{process_id}-{exchange.exchange_id}",
        key_id=caller.key_id,
        team_id=caller.team,
        org_id=org_id,
        model=exchange.pool[:MAX_NAME_CHARACTERS],
        backend=exchange.backend_id[:MAX_NAME_CHARACTERS],
        started_at_s=now_s - max(0.0, exchange.finished_s - exchange.received_s),
        ended_at_s=now_s,
        input_tokens=input_tokens,
        cached_tokens=cached_tokens,
        output_tokens=output_tokens,
        cost_nano_usd=price.cost_nano_usd(input_tokens, cached_tokens, output_tokens),
        status=exchange.status,
        outcome="" if exchange.outcome is None else str(exchange.outcome),
        streamed=exchange.stream,
        estimated=not (usage.is_reported and is_as_reported),
        budgets=tuple(
            (scope.kind, scope.id, limits.budget_period_s or NO_PERIOD_S)
            for scope, limits in caller.scopes
            if limits.max_budget_usd is not None
        ),
        x_request_id=exchange.request_id[:MAX_REQUEST_ID_CHARACTERS],
    )


def _plausible(tokens: int) -> int:
    return min(max(tokens, 0), MAX_TOKENS)
