"""Reports of what was spent: request by request, and summed over days, models, keys, teams and organisations."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select

from argosy.errors import InvalidRequest
from argosy.fleet.gateway import store_schema as schema
from argosy.fleet.gateway.store import Store
from argosy.fleet.gateway.tenancy_records import MAX_PAGE
from argosy.fleet.gateway.usage_commit import COUNTED
from argosy.fleet.policies.limits import NANO_USD_PER_USD

GROUPS: Mapping[str, tuple[str, ...]] = {
    "day": ("day",),
    "model": ("model",),
    "api_key": ("key_id",),
    "team": ("team_id",),
    "organization": ("org_id",),
}
_SHOWN: Mapping[str, str] = {"org_id": "organization_id"}
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_FORMULA = re.compile(r"[=+\-@\t\r]")


def check_day(text: str | None, param: str) -> str | None:
    """`text` if it is a day such as 2026-01-31. Raises `InvalidRequest`."""
    if text is None:
        return None
    try:
        if _DAY.fullmatch(text) is None or date.fromisoformat(text) == date.max:
            raise ValueError
    except ValueError:
        raise InvalidRequest(f"{param} must be a day such as 2026-01-31", param=param) from None
    return text


def spend_report(
    store: Store,
    group_by: Sequence[str],
    *,
    start_day: str | None = None,
    end_day: str | None = None,
    where: Mapping[str, str | None] | None = None,
) -> list[dict[str, Any]]:
    """Sums per combination of `group_by` (of `GROUPS`; none is one total), UTC days from `start_day` to `end_day` included.

    Args:
        where: columns of `daily_spend` and the values to bound the report to; None is any.

    Raises:
        InvalidRequest: an unknown group, or days that run backwards.
    """
    for group in group_by:
        if group not in GROUPS:
            raise InvalidRequest(f"group_by must be of {', '.join(GROUPS)}", param="group_by")
    if start_day is not None and end_day is not None and end_day < start_day:
        raise InvalidRequest("end_date must not be before start_date", param="end_date")
    spend = schema.daily_spend.c
    columns = [spend[name] for group in dict.fromkeys(group_by) for name in GROUPS[group]]
    conditions: list[ColumnElement[bool]] = [spend[n] == value for n, value in (where or {}).items() if value is not None]
    if start_day is not None:
        conditions.append(spend.day >= start_day)
    if end_day is not None:
        conditions.append(spend.day <= end_day)
    sums = [func.coalesce(func.sum(spend[name]), 0).label(name) for name in COUNTED]
    report = select(*columns, *sums).where(*conditions).group_by(*columns).order_by(*columns)

    def work(connection: Connection) -> list[dict[str, Any]]:
        return [_in_dollars(row) for row in connection.execute(report).mappings()]

    return store.read(work)


def spend_logs(
    store: Store,
    *,
    start_s: float | None = None,
    end_s: float | None = None,
    where: Mapping[str, str | None] | None = None,
    page: int = 1,
    size: int = 100,
) -> list[dict[str, Any]]:
    """Requests, the latest first, that ended from Unix time `start_s` to before `end_s`; one page of them, from 1.

    `request_id` is that of the logs and of the answer's `x-request-id`, "" where none was recorded; `exchange_id` is unique.
    `where` holds columns of `usage_records` and the values to bound them to; None is any.
    """
    if page < 1 or not 1 <= size <= MAX_PAGE:
        raise InvalidRequest(f"page must be at least 1 and size from 1 to {MAX_PAGE}", param="page" if page < 1 else "size")
    usage = schema.usage_records.c
    conditions: list[ColumnElement[bool]] = [usage[n] == value for n, value in (where or {}).items() if value is not None]
    if start_s is not None:
        conditions.append(usage.ended_at_s >= start_s)
    if end_s is not None:
        conditions.append(usage.ended_at_s < end_s)
    others = [column for column in usage if column.name not in ("request_id", "x_request_id")]
    columns = [usage.x_request_id.label("request_id"), usage.request_id.label("exchange_id"), *others]
    logs = select(*columns).where(*conditions).order_by(usage.ended_at_s.desc(), usage.request_id)

    def work(connection: Connection) -> list[dict[str, Any]]:
        rows = connection.execute(logs.limit(size).offset((page - 1) * size)).mappings()
        return [_in_dollars(row) for row in rows]

    return store.read(work)


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV (RFC 4180) with a head line; a text that a spreadsheet would take for a formula gets a quote in front."""
    out = io.StringIO()
    if rows:
        writer = csv.DictWriter(out, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows({name: _inert(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _inert(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def _in_dollars(row: Mapping[Any, Any]) -> dict[str, Any]:
    # Sums come as Decimal from PostgreSQL.
    values: dict[str, Any] = {
        _SHOWN.get(n, str(n)): v if isinstance(v, str | float | bool) else int(v) for n, v in row.items()
    }
    nano_usd = values.pop("cost_nano_usd")
    return {**values, "spend": nano_usd / NANO_USD_PER_USD}
