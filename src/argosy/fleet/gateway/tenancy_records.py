"""Reading and changing the rows of tenants: what organisations, teams, users, budgets and keys have in common."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, RowMapping, Table, delete, func, select, update
from sqlalchemy.exc import IntegrityError

from argosy.errors import ConfigError, InvalidRequest, UnknownRecord
from argosy.fleet.gateway import store_schema as schema
from argosy.fleet.gateway.budgets import NO_PERIOD_S, period_start_s, spent_since
from argosy.fleet.gateway.store import Store
from argosy.fleet.gateway.tenancy_changes import note_change
from argosy.fleet.policies.limits import Limits, Scope, ScopeKind

JSON_COLUMNS = frozenset({"models", "aliases", "metadata", "allowed_routes"})
MAX_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of row: its table, and the word for it in messages and in the log of changes."""

    name: str
    table: Table
    word: str
    scope: ScopeKind | None = None


KEY = Kind("key", schema.keys, "key", "key")
TEAM = Kind("team", schema.teams, "team", "team")
ORG = Kind("org", schema.organisations, "organisation", "org")
USER = Kind("user", schema.users, "user")
BUDGET = Kind("budget", schema.budgets, "budget")
LIMITED = (KEY, TEAM, ORG)


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a list, in the order of creation. `rows` are the columns, JSON decoded."""

    rows: Sequence[Mapping[str, Any]]
    total_count: int
    page: int
    size: int

    @property
    def total_pages(self) -> int:
        """At least 1."""
        return max(1, -(-self.total_count // self.size))


def new_id(kind: Kind) -> str:
    """A random id that tells what it is of."""
    return f"{kind.name}_{secrets.token_hex(8)}"


def find(connection: Connection, kind: Kind, record_id: str) -> dict[str, Any]:
    """The columns of a row, JSON decoded. Raises `UnknownRecord`."""
    row = connection.execute(select(kind.table).where(kind.table.c.id == record_id)).mappings().first()
    if row is None:
        raise UnknownRecord(f"there is no {kind.word} {record_id[:80]!r}", param=f"{kind.name}_id")
    return decoded(row)


def insert(connection: Connection, kind: Kind, record_id: str, values: Mapping[str, Any]) -> None:
    """Add a row. Raises `InvalidRequest` if the id is taken, `UnknownRecord` for a reference to nothing."""
    check_references(connection, values)
    check_limits(values)
    try:
        with connection.begin_nested():
            connection.execute(kind.table.insert().values(id=record_id, **encoded(values)))
    except IntegrityError:
        raise InvalidRequest(f"the {kind.word} {record_id!r} exists already", param=f"{kind.name}_id") from None
    note_change(connection, [(kind.name, record_id)])


def change(connection: Connection, kind: Kind, record_id: str, values: Mapping[str, Any]) -> None:
    """Set columns of a row. Raises `UnknownRecord` for a row or reference that is not there."""
    check_references(connection, values)
    before = find(connection, kind, record_id)
    check_limits({name: values.get(name, before.get(name)) for name in schema.LIMIT_COLUMNS})
    if values:
        connection.execute(update(kind.table).where(kind.table.c.id == record_id).values(**encoded(values)))
    note_change(connection, [(kind.name, record_id)])


def remove(connection: Connection, kind: Kind, record_id: str) -> None:
    """Delete a row. Raises `UnknownRecord`."""
    find(connection, kind, record_id)
    connection.execute(delete(kind.table).where(kind.table.c.id == record_id))
    note_change(connection, [(kind.name, record_id)])


def list_page(connection: Connection, kind: Kind, page: int, size: int, where: Mapping[str, Any]) -> Page:
    """One page, from 1, of the rows whose columns have the values of `where` (None: any)."""
    if page < 1 or not 1 <= size <= MAX_PAGE:
        raise InvalidRequest(f"page must be at least 1 and size from 1 to {MAX_PAGE}", param="page" if page < 1 else "size")
    conditions = [kind.table.c[name] == value for name, value in where.items() if value is not None]
    total_count = connection.scalar(select(func.count()).select_from(kind.table).where(*conditions)) or 0
    rows = select(kind.table).where(*conditions).order_by(kind.table.c.created_at_s, kind.table.c.id)
    found = connection.execute(rows.limit(size).offset((page - 1) * size)).mappings()
    return Page([decoded(row) for row in found], total_count, page, size)


def check_references(connection: Connection, values: Mapping[str, Any]) -> None:
    """Raise `UnknownRecord` if a column refers to a row that does not exist."""
    for kind in (TEAM, ORG, USER, BUDGET):
        record_id = values.get(f"{kind.name}_id")
        if record_id is not None:
            find(connection, kind, record_id)


def check_limits(values: Mapping[str, Any]) -> None:
    """Raise `InvalidRequest` for limits that are out of range, or a period of no budget."""
    fields: dict[str, Any] = {name: values.get(name) for name in schema.LIMIT_COLUMNS}
    if fields["budget_period_s"] is not None and fields["max_budget_usd"] is None:
        raise InvalidRequest("budget_duration is the period of max_budget; give that too", param="budget_duration")
    try:
        Limits(**fields)
    except ConfigError as error:
        raise InvalidRequest(error.message) from None


def open_budgets(store: Store, connection: Connection, kind: Kind, record_ids: Iterable[str], now_s: float) -> None:
    """Give each of these keys, teams or organisations that has a budget the row of its period.

    A budget that is set within a period counts what was spent in it before, request by request, once.
    """
    if kind.scope is None:
        return
    for record_id in record_ids:
        row = find(connection, kind, record_id)
        if row["max_budget_usd"] is None and row["budget_id"] is not None:
            row = find(connection, BUDGET, row["budget_id"])
        if row["max_budget_usd"] is None:
            continue
        period_s = row["budget_period_s"] or NO_PERIOD_S
        start_s = period_start_s(period_s, now_s)
        key = {"kind": kind.scope, "id": record_id, "period_s": period_s, "period_start_s": start_s}
        columns = schema.budget_spend.c
        known = select(columns.id).where(*(columns[name] == value for name, value in key.items()))
        if connection.scalar(known) is None:
            spent = spent_since(connection, Scope(kind.scope, record_id), start_s)
            opened = store.insert(schema.budget_spend).values(**key, cost_nano_usd=spent)
            connection.execute(opened.on_conflict_do_nothing())


def encoded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Columns as the database holds them."""
    return {n: json.dumps(v) if n in JSON_COLUMNS and v is not None else v for n, v in values.items()}


def decoded(row: RowMapping) -> dict[str, Any]:
    """Columns as Python has them."""
    return {str(n): json.loads(v) if n in JSON_COLUMNS and v is not None else v for n, v in row.items()}
