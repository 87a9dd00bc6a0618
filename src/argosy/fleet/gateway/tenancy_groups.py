"""Organisations, teams, users and budget objects of the database. Calls block; see `StoreCalls`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, func, select, update

from argosy.errors import InvalidRequest
from argosy.fleet.gateway import store_schema as schema
from argosy.fleet.gateway import tenancy_records as records
from argosy.fleet.gateway.store import Store
from argosy.fleet.gateway.tenancy_keys import delete_keys
from argosy.fleet.gateway.tenancy_records import BUDGET, LIMITED, ORG, TEAM, USER, Kind, Page
from argosy.fleet.policies.limits import NANO_USD_PER_USD

ROLES = ("admin", "user")


class GroupRecords:
    """What keys belong to."""

    def __init__(self, store: Store, wall_clock: Callable[[], float] = time.time) -> None:
        self._store, self._wall_clock = store, wall_clock

    def create(self, kind: Kind, values: Mapping[str, Any], record_id: str | None = None) -> Mapping[str, Any]:
        """Add a row with the columns `values`, under a random id if none is given; returns all columns.

        Raises:
            InvalidRequest: the id is taken, or a column is out of range.
            UnknownRecord: it refers to a row that does not exist.
        """
        record_id = record_id or records.new_id(kind)
        now_s = self._wall_clock()
        times = {"created_at_s": now_s, "updated_at_s": now_s} if kind in LIMITED else {"created_at_s": now_s}

        def work(connection: Connection) -> Mapping[str, Any]:
            records.insert(connection, kind, record_id, {**values, **times})
            records.open_budgets(self._store, connection, kind, [record_id], now_s)
            return records.find(connection, kind, record_id)

        return self._store.write(work)

    def update(self, kind: Kind, record_id: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Set columns; returns them all. Raises as `create`."""
        now_s = self._wall_clock()

        def work(connection: Connection) -> Mapping[str, Any]:
            columns = {**values, "updated_at_s": now_s} if kind in LIMITED else values
            records.change(connection, kind, record_id, columns)
            if kind is TEAM and "org_id" in values:
                self._move_keys(connection, record_id, values["org_id"])
            holders = self._holders(connection, record_id) if kind is BUDGET else [(kind, [record_id])]
            for holder, ids in holders:
                records.open_budgets(self._store, connection, holder, ids, now_s)
            return records.find(connection, kind, record_id)

        return self._store.write(work)

    def info(self, kind: Kind, record_id: str) -> Mapping[str, Any]:
        """The columns of a row; of a team or organisation also `spend_usd`, of a team its `members`."""

        def work(connection: Connection) -> Mapping[str, Any]:
            row = records.find(connection, kind, record_id)
            if kind in (TEAM, ORG):
                row["spend_usd"] = _spend_usd(connection, kind, record_id)
            if kind is TEAM:
                row["members"] = _members(connection, record_id)
            if kind is USER:
                row["teams"] = _teams_of(connection, record_id)
            return row

        return self._store.read(work)

    def page(self, kind: Kind, page: int = 1, size: int = 100, **where: Any) -> Page:
        """One page of rows; `where` bounds it by columns."""
        return self._store.read(lambda connection: records.list_page(connection, kind, page, size, where))

    def delete(self, kind: Kind, record_ids: Sequence[str]) -> int:
        """Delete rows, all or none; returns how many keys went with them: those of a team go with it.

        Raises:
            InvalidRequest: an organisation still has teams or keys, a budget is in use, a user still has keys.
            UnknownRecord: one does not exist.
        """
        return self._store.write(lambda connection: sum(_delete(connection, kind, name) for name in record_ids))

    def add_member(self, team_id: str, user_id: str, role: str) -> Mapping[str, Any]:
        """Make a user a member of a team, or change the role; returns the team."""
        if role not in ROLES:
            raise InvalidRequest(f"role must be one of {', '.join(ROLES)}", param="role")

        def work(connection: Connection) -> None:
            records.check_references(connection, {"team_id": team_id, "user_id": user_id})
            member = self._store.insert(schema.team_members).values(team_id=team_id, user_id=user_id, role=role)
            changed = member.on_conflict_do_update(index_elements=["team_id", "user_id"], set_={"role": role})
            connection.execute(changed)

        self._store.write(work)
        return self.info(TEAM, team_id)

    @staticmethod
    def _move_keys(connection: Connection, team_id: str, org_id: str | None) -> None:
        connection.execute(update(schema.keys).where(schema.keys.c.team_id == team_id).values(org_id=org_id))

    @staticmethod
    def _holders(connection: Connection, budget_id: str) -> list[tuple[Kind, Sequence[str]]]:
        """Who has a budget object."""
        found: list[tuple[Kind, Sequence[str]]] = []
        for kind in LIMITED:
            holders = select(kind.table.c.id).where(kind.table.c.budget_id == budget_id)
            found.append((kind, list(connection.scalars(holders))))
        return found


def _delete(connection: Connection, kind: Kind, record_id: str) -> int:
    key_ids: Sequence[str] = []
    if kind is TEAM:
        key_ids = list(connection.scalars(select(schema.keys.c.id).where(schema.keys.c.team_id == record_id)))
        delete_keys(connection, key_ids)
    else:
        _check_unused(connection, kind, record_id)
    if kind in (TEAM, USER):
        column = schema.team_members.c[f"{kind.name}_id"]
        connection.execute(schema.team_members.delete().where(column == record_id))
    records.remove(connection, kind, record_id)
    return len(key_ids)


def _check_unused(connection: Connection, kind: Kind, record_id: str) -> None:
    for holder in LIMITED:
        column = holder.table.c.get(f"{kind.name}_id")
        if column is not None and connection.scalar(select(holder.table.c.id).where(column == record_id).limit(1)):
            raise InvalidRequest(
                f"the {kind.word} {record_id!r} still has a {holder.word}; change or delete that first",
                param=f"{kind.name}_id",
            )


def _spend_usd(connection: Connection, kind: Kind, record_id: str) -> float:
    spend = schema.daily_spend.c
    total = select(func.coalesce(func.sum(spend.cost_nano_usd), 0)).where(spend[f"{kind.name}_id"] == record_id)
    return int(connection.scalar(total) or 0) / NANO_USD_PER_USD


def _members(connection: Connection, team_id: str) -> list[dict[str, str]]:
    members = schema.team_members.c
    rows = connection.execute(select(members.user_id, members.role).where(members.team_id == team_id))
    return [{"user_id": user_id, "role": role} for user_id, role in rows]


def _teams_of(connection: Connection, user_id: str) -> list[str]:
    members = schema.team_members.c
    return list(connection.scalars(select(members.team_id).where(members.user_id == user_id)))
