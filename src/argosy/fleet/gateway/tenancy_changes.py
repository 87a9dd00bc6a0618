"""The version of the tenants: how a change made by one process reaches the caches of all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, delete, select, update

from argosy.fleet.gateway import store_schema as schema

KEPT_CHANGES = 1000


@dataclass(frozen=True, slots=True)
class ChangesSince:
    """What has changed between two versions.

    Attributes:
        is_complete: False if older changes are not kept any more: anything may have changed.
        records: (kind, id) of the rows that changed.
    """

    version: int
    is_complete: bool
    records: frozenset[tuple[str, str]]


def note_change(connection: Connection, records: Iterable[tuple[str, str]]) -> None:
    """Note within the transaction that makes it that `records` (kind, id) have changed.

    The version's row stays locked until the transaction ends, so that no version becomes visible before a lower one.
    """
    for kind, record_id in sorted(set(records)):
        raised = update(schema.tenancy_version).values(version=schema.tenancy_version.c.version + 1)
        version = connection.scalar(raised.returning(schema.tenancy_version.c.version))
        assert version is not None, "the database has no row of the tenants' version"
        connection.execute(schema.tenancy_changes.insert().values(version=version, kind=kind, id=record_id))
        connection.execute(delete(schema.tenancy_changes).where(schema.tenancy_changes.c.version <= version - KEPT_CHANGES))


def read_changes(connection: Connection, since: int | None) -> ChangesSince:
    """What has changed after version `since`; None asks for the version alone."""
    version = int(connection.scalar(select(schema.tenancy_version.c.version)) or 0)
    if since is None or since == version:
        return ChangesSince(version, True, frozenset())
    changes = schema.tenancy_changes.c
    rows = connection.execute(select(changes.version, changes.kind, changes.id).where(changes.version > since)).all()
    is_complete = version > since and version - since <= len(rows)
    return ChangesSince(max([version, *(row.version for row in rows)]), is_complete, frozenset((r.kind, r.id) for r in rows))
