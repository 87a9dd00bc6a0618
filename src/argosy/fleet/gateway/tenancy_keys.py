"""The life of a key: made, shown once, rotated with a grace, blocked, expired, deleted. Calls block; see `StoreCalls`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, delete, func, or_, select, update
from sqlalchemy.exc import IntegrityError

from argosy.errors import InvalidRequest, Unauthorized, UnknownRecord
from argosy.fleet.gateway import store_schema as schema
from argosy.fleet.gateway import tenancy_records as records
from argosy.fleet.gateway.key_hash import KEY_PREFIX, KeyHasher, check_key, last_four, new_key
from argosy.fleet.gateway.store import Store
from argosy.fleet.gateway.tenancy import find_identity
from argosy.fleet.gateway.tenancy_changes import note_change
from argosy.fleet.gateway.tenancy_records import KEY, ORG, TEAM, Page
from argosy.fleet.policies.limits import NANO_USD_PER_USD


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A key at the only time it can be seen. `info` are the columns of its row."""

    key: str = field(repr=False)
    info: Mapping[str, Any]


class KeyRecords:
    """Keys of the database. A key is named by itself (`sk-…`) or by its id; neither errors nor rows ever hold the first."""

    def __init__(self, store: Store, hasher: KeyHasher, wall_clock: Callable[[], float] = time.time) -> None:
        self._store, self._hasher, self._wall_clock = store, hasher, wall_clock

    def create(self, values: Mapping[str, Any], key: str | None = None) -> IssuedKey:
        """Make a key with the columns `values`; `key` gives it a certain secret, otherwise it is random.

        Raises:
            InvalidRequest: a column is out of range, or the secret is weak or in use.
            UnknownRecord: it refers to a team, organisation, user or budget that does not exist.
        """
        key = new_key() if key is None else check_key(key)
        key_id, now_s = records.new_id(KEY), self._wall_clock()

        def work(connection: Connection) -> Mapping[str, Any]:
            columns = {**values, "org_id": self._org_of(connection, values.get("team_id"), values.get("org_id"))}
            columns |= {"last_four": last_four(key), "created_at_s": now_s, "updated_at_s": now_s}
            records.insert(connection, KEY, key_id, columns)
            self._add_secret(connection, key_id, key, now_s)
            records.open_budgets(self._store, connection, KEY, [key_id], now_s)
            return records.find(connection, KEY, key_id)

        return IssuedKey(key, self._store.write(work))

    def update(self, name: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Set columns; returns them all. Raises as `create`, and `UnknownRecord` for a key that does not exist."""
        now_s = self._wall_clock()

        def work(connection: Connection) -> Mapping[str, Any]:
            key_id = self._find_id(connection, name)
            columns = {**values, "updated_at_s": now_s}
            if "team_id" in values or "org_id" in values:
                before = records.find(connection, KEY, key_id)
                team_id = values.get("team_id", before["team_id"])
                org_id = values.get("org_id", None if "team_id" in values else before["org_id"])
                columns["org_id"] = self._org_of(connection, team_id, org_id)
            records.change(connection, KEY, key_id, columns)
            records.open_budgets(self._store, connection, KEY, [key_id], now_s)
            return records.find(connection, KEY, key_id)

        return self._store.write(work)

    def rotate(self, name: str, grace_s: float, key: str | None = None) -> IssuedKey:
        """Give the key another secret; those it has stay valid for `grace_s` seconds. Id, spend and limits stay.

        Raises:
            UnknownRecord, InvalidRequest: no such key; the new secret is weak or in use.
        """
        key = new_key() if key is None else check_key(key)
        now_s = self._wall_clock()

        def work(connection: Connection) -> Mapping[str, Any]:
            key_id = self._find_id(connection, name)
            secret = schema.key_secrets.c
            old = secret.key_id == key_id
            connection.execute(delete(schema.key_secrets).where(old, secret.valid_until_s <= now_s))
            lasting = or_(secret.valid_until_s.is_(None), secret.valid_until_s > now_s + grace_s)
            connection.execute(update(schema.key_secrets).where(old, lasting).values(valid_until_s=now_s + grace_s))
            self._add_secret(connection, key_id, key, now_s)
            records.change(connection, KEY, key_id, {"last_four": last_four(key), "updated_at_s": now_s})
            return records.find(connection, KEY, key_id)

        return IssuedKey(key, self._store.write(work))

    def set_blocked(self, name: str, blocked: bool) -> Mapping[str, Any]:
        """Block or unblock a key; returns its columns."""
        return self.update(name, {"blocked": blocked})

    def expire(self, name: str, at_s: float | None = None) -> Mapping[str, Any]:
        """End a key at a Unix time, or at once; returns its columns."""
        return self.update(name, {"expires_at_s": self._wall_clock() if at_s is None else at_s})

    def delete(self, names: Sequence[str]) -> list[str]:
        """Delete keys, all or none; returns their ids. What they spent stays in the reports."""

        def work(connection: Connection) -> list[str]:
            key_ids = [self._find_id(connection, name) for name in names]
            delete_keys(connection, key_ids)
            return key_ids

        return self._store.write(work)

    def info(self, name: str) -> Mapping[str, Any]:
        """The columns of a key, with `spend_usd` and the ends of the graces of its `old_secrets` (Unix seconds)."""

        def work(connection: Connection) -> Mapping[str, Any]:
            row = records.find(connection, KEY, self._find_id(connection, name))
            return with_spend(connection, [row])[0] | {"old_secrets_until_s": self._graces(connection, row["id"])}

        return self._store.read(work)

    def own_info(self, key: str) -> Mapping[str, Any]:
        """As `info`, for who presents the key. Raises `Unauthorized` if it may not be used."""
        now_s = self._wall_clock()
        described = self._hasher.describe(key)
        identity = self._store.read(lambda connection: find_identity(connection, self._hasher, key, now_s))
        if identity is None:
            raise Unauthorized(f"the API key {described} is not known; check it, or ask for one")
        return self.info(identity.check(described, now_s).key_id)

    def page(self, page: int = 1, size: int = 100, **where: Any) -> Page:
        """One page of keys with their spend; `where` bounds it by team_id, org_id, user_id or alias."""

        def work(connection: Connection) -> Page:
            found = records.list_page(connection, KEY, page, size, where)
            return Page(with_spend(connection, found.rows), found.total_count, found.page, found.size)

        return self._store.read(work)

    def _find_id(self, connection: Connection, name: str) -> str:
        """The id of a key that is named by itself, or by its id."""
        if not name.startswith(KEY_PREFIX):
            return str(records.find(connection, KEY, name)["id"])
        secret = schema.key_secrets.c
        key_id = connection.scalar(select(secret.key_id).where(secret.digest == self._hasher.digest(name)))
        if key_id is None:
            raise UnknownRecord(f"there is no key {self._hasher.describe(name)}", param="key")
        return str(key_id)

    def _add_secret(self, connection: Connection, key_id: str, key: str, now_s: float) -> None:
        try:
            with connection.begin_nested():
                row = {"digest": self._hasher.digest(key), "key_id": key_id, "created_at_s": now_s}
                connection.execute(schema.key_secrets.insert().values(**row))
        except IntegrityError:
            raise InvalidRequest("key is in use already; leave it out to have a random one made", param="key") from None

    def _graces(self, connection: Connection, key_id: str) -> Sequence[float]:
        secret = schema.key_secrets.c
        until = select(secret.valid_until_s).where(secret.key_id == key_id, secret.valid_until_s > self._wall_clock())
        return list(connection.scalars(until.order_by(secret.valid_until_s)))

    @staticmethod
    def _org_of(connection: Connection, team_id: str | None, org_id: str | None) -> str | None:
        """The organisation of a key: its team's. One that is given beside a team must be that one."""
        if org_id is not None:
            records.find(connection, ORG, org_id)
        if team_id is None:
            return org_id
        of_team = records.find(connection, TEAM, team_id)["org_id"]
        if org_id is not None and org_id != of_team:
            raise InvalidRequest("organization_id is not that of the team; leave it out", param="organization_id")
        return str(of_team) if of_team is not None else None


def delete_keys(connection: Connection, key_ids: Sequence[str]) -> None:
    """Delete keys and their secrets within the caller's transaction."""
    connection.execute(delete(schema.key_secrets).where(schema.key_secrets.c.key_id.in_(key_ids)))
    connection.execute(delete(schema.keys).where(schema.keys.c.id.in_(key_ids)))
    note_change(connection, [("key", key_id) for key_id in key_ids])


def with_spend(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of keys with `spend_usd`: of all time, as far as the database has it."""
    spend = schema.daily_spend.c
    totals = select(spend.key_id, func.sum(spend.cost_nano_usd)).where(spend.key_id.in_([row["id"] for row in rows]))
    nano_usd = {key_id: int(total) for key_id, total in connection.execute(totals.group_by(spend.key_id))}
    return [{**row, "spend_usd": nano_usd.get(row["id"], 0) / NANO_USD_PER_USD} for row in rows]
