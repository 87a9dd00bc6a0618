"""Usage records into the database: each counted once, however often it is brought."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Table

from argosy.fleet.gateway import store_schema as schema
from argosy.fleet.gateway.budgets import period_start_s
from argosy.fleet.gateway.store import Store
from argosy.fleet.gateway.usage import UsageRecord, day_of

DAY_S = 86_400
# Each number of rows is a statement of its own, which the driver keeps: many large ones would take 100 MB.
_ROWS_PER_STATEMENT = 32

COUNTED = ("requests", "input_tokens", "cached_tokens", "output_tokens", "cost_nano_usd")


def commit_usage(store: Store, records: Sequence[UsageRecord]) -> int:
    """Store `records` and add those that are not there yet to all sums, in one transaction; returns how many they were.

    Rows are written in the order of their keys: two processes that add to the same sums wait for each other and never in
    a circle.

    Raises:
        StoreUnavailable: nothing of it is known to be stored; bring the same records again.
    """
    return store.write(lambda connection: _commit(store, connection, records)) if records else 0


def _commit(store: Store, connection: Connection, records: Sequence[UsageRecord]) -> int:
    by_id = {record.request_id: record for record in records}
    insert = store.insert(schema.usage_records).on_conflict_do_nothing(index_elements=["request_id"])
    stored = connection.scalars(
        insert.returning(schema.usage_records.c.request_id),
        [by_id[name].row() for name in sorted(by_id)],
        execution_options={"insertmanyvalues_page_size": _ROWS_PER_STATEMENT},
    )
    fresh = [by_id[request_id] for request_id in stored]
    if fresh:
        _add(store, connection, schema.daily_spend, _per_day(fresh), COUNTED)
        _add(store, connection, schema.budget_spend, _per_budget(fresh), ("cost_nano_usd",))
    return len(fresh)


def _per_day(records: Iterable[UsageRecord]) -> dict[tuple[Any, ...], list[int]]:
    sums: dict[tuple[Any, ...], list[int]] = {}
    days: dict[int, str] = {}
    for record in records:
        number = int(record.ended_at_s // DAY_S)
        day = days.get(number) or days.setdefault(number, day_of(record.ended_at_s))
        key = (day, record.key_id, record.team_id, record.org_id, record.model)
        amounts = (1, record.input_tokens, record.cached_tokens, record.output_tokens, record.cost_nano_usd)
        sums[key] = [total + amount for total, amount in zip(sums.get(key, [0] * 5), amounts, strict=True)]
    return sums


def _per_budget(records: Iterable[UsageRecord]) -> dict[tuple[Any, ...], list[int]]:
    sums: dict[tuple[Any, ...], list[int]] = {}
    for record in records:
        for kind, record_id, period_s in record.budgets:
            key = (kind, record_id, period_s, period_start_s(period_s, record.ended_at_s))
            sums[key] = [sums.get(key, [0])[0] + record.cost_nano_usd]
    return sums


def _add(
    store: Store, connection: Connection, table: Table, sums: dict[tuple[Any, ...], list[int]], counted: Sequence[str]
) -> None:
    if not sums:
        return
    names = [column.name for column in table.primary_key]
    insert = store.insert(table)
    added = {name: table.c[name] + insert.excluded[name] for name in counted}
    rows = [dict(zip((*names, *counted), (*key, *sums[key]), strict=True)) for key in sorted(sums)]
    connection.execute(insert.on_conflict_do_update(index_elements=names, set_=added), rows)
