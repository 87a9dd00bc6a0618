"""How a database of any earlier version becomes one of today's: steps in order, each applied once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from sqlalchemy import Column, Connection, Double, Integer, MetaData, Table, func, select, text

from argosy.errors import ConfigError
from argosy.fleet.gateway import store_schema as schema

schema_version = Table(
    "schema_version",
    MetaData(),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("applied_at_s", Double, nullable=False),
)
LOCK_ID = 0x4152474F  # any number that all processes agree on
FIRST_VERSION = 1

Step = Callable[[Connection], None]


def _request_ids_of_logs(connection: Connection) -> None:
    # With a default: processes of the version before go on inserting while they are being replaced.
    connection.execute(text("ALTER TABLE usage_records ADD COLUMN x_request_id VARCHAR(128) NOT NULL DEFAULT ''"))


STEPS: Mapping[int, Step] = MappingProxyType({2: _request_ids_of_logs})
"""Version to what makes it of the one before. A step is SQL of its own: `store_schema` has moved on since."""


def migrate(connection: Connection, steps: Mapping[int, Step] = STEPS) -> int:
    """Bring the database to the last version within the caller's transaction; returns the version it had (0: empty).

    An empty database gets the tables as they are at the last version. Processes that start together wait for one another:
    PostgreSQL by an advisory lock, SQLite by its write lock.

    Raises:
        ConfigError: the database was made by a later version of this package.
    """
    latest = max(steps, default=FIRST_VERSION)
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:id)"), {"id": LOCK_ID})
    schema_version.create(connection, checkfirst=True)
    found: int = connection.scalar(select(func.max(schema_version.c.version))) or 0
    if found > latest:
        raise ConfigError(
            f"the database has schema version {found}, this argosy knows versions up to {latest}; update argosy, or give "
            "it another database"
        )
    if found == 0:
        schema.METADATA.create_all(connection)
        connection.execute(schema.tenancy_version.insert().values(id=1, version=0))
        _note(connection, latest)
    for version in range(found + 1, latest + 1) if found else ():
        steps[version](connection)
        _note(connection, version)
    return found


def _note(connection: Connection, version: int) -> None:
    connection.execute(schema_version.insert().values(version=version, applied_at_s=time.time()))
