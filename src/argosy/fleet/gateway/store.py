"""The gateway's database: SQLite in a file by default, PostgreSQL when given. All calls here block and have a bound.

Calls of the event loop go through `store_calls.StoreCalls`. SQLite runs in WAL mode, so readers and the one writer do not
wait for each other. What a server that is stopped, frozen or cut off can cost is bounded on our side: by the driver's
connect timeout, by `statement_timeout` on the server, and by `interrupt`, which closes the socket under a call that waits
for a server that no longer answers (libpq has no read timeout).
"""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, Table, create_engine, event, make_url, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from argosy.errors import ConfigError, StoreUnavailable
from argosy.fleet.gateway import store_schema as schema
from argosy.fleet.gateway.store_migrations import migrate

Result = TypeVar("Result")
READ_ONLY = "argosy_read_only"


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Where the gateway keeps its tenants and their usage.

    Attributes:
        url: `sqlite:///path/to/file` or `postgresql://user:password@host:port/database`. Never shown in a log or error.
        timeout_s: bound on one call: connecting, waiting for a lock, and each statement.
        pool_size: most connections of one process.
    """

    url: str = field(repr=False)
    timeout_s: float = 2.0
    pool_size: int = 8

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        if not self.timeout_s > 0:
            raise ConfigError(f"store.timeout_s must be above 0, got {self.timeout_s}")
        if self.pool_size < 3:
            raise ConfigError(f"store.pool_size must be at least 3 (requests, administration, usage), got {self.pool_size}")
        parse_url(self.url)


def parse_url(text_url: str) -> URL:
    """The URL with the driver that this package uses.

    Raises:
        ConfigError: another kind of database, or none; the message does not repeat the URL, which may hold a password.
    """
    try:
        url = make_url(text_url)
    except ArgumentError:
        raise ConfigError("store.url is not a database URL; write sqlite:///file or postgresql://user@host/name") from None
    backend = url.get_backend_name() if url.drivername in _DRIVERS else url.drivername
    if backend == "sqlite" and url.database and url.database != ":memory:":
        return url.set(drivername="sqlite+pysqlite")
    if backend == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    if backend == "sqlite":
        raise ConfigError("store.url needs a file, such as sqlite:////var/lib/argosy/gateway.db")
    raise ConfigError(f"store.url names {backend[:40]!r}; sqlite:///file and postgresql://user@host/name are supported")


def check_folder(url: URL) -> None:
    """Raise `ConfigError` where the folder of SQLite's file is missing."""
    folder = Path(str(url.database)).absolute().parent
    if url.get_backend_name() == "sqlite" and not folder.is_dir():
        raise ConfigError(f"store.url: there is no folder {folder}; make it, or name another file")


_DRIVERS = ("sqlite", "sqlite+pysqlite", "postgresql", "postgresql+psycopg")


class Store:
    """One process's connections to the database. Thread-safe. `open` before use, `close` at the end."""

    def __init__(self, config: StoreConfig) -> None:
        self.config = config
        self.url = parse_url(config.url)
        self.dialect = self.url.get_backend_name()
        self._engine = self._create_engine()
        self._in_use: dict[int, Any] = {}
        self._file: tuple[int, int] | None = None

    def open(self, key_fingerprint: str) -> None:
        """Make or migrate the tables, and check that the database belongs to this secret of the keys.

        Raises:
            ConfigError: another secret than that of the keys in the database, or a database of a later version.
            StoreUnavailable: it cannot be reached or opened.
        """
        if self.dialect == "sqlite":
            check_folder(self.url)
            _make_private(Path(str(self.url.database)))
        found = self.write(lambda connection: self._prepare(connection, key_fingerprint))
        if found != key_fingerprint:
            raise ConfigError(
                f"the keys in the database were hashed with another secret (fingerprint {found}, here {key_fingerprint}); "
                "copy the secret file of the gateway that made them"
            )

    def read(self, work: Callable[[Connection], Result]) -> Result:
        """The result of `work` on one snapshot, without taking a write lock.

        Raises:
            StoreUnavailable: no answer in time, or no connection.
        """
        return self._run(work, read_only=True)

    def write(self, work: Callable[[Connection], Result]) -> Result:
        """The result of `work`, committed; whatever it raises rolls everything back.

        Raises:
            StoreUnavailable: no answer in time, or no connection. A commit whose answer was lost may have happened.
        """
        return self._run(work, read_only=False)

    def insert(self, table: Table) -> postgresql.Insert | sqlite.Insert:
        """An INSERT that can say ON CONFLICT, in the words of this database."""
        return postgresql.insert(table) if self.dialect == "postgresql" else sqlite.insert(table)

    def interrupt(self, thread_id: int) -> None:
        """End the call that runs in another thread: it raises `StoreUnavailable` there. No call there, no effect."""
        connection = self._in_use.get(thread_id)
        if isinstance(connection, sqlite3.Connection):
            connection.interrupt()
        elif connection is not None:
            _shut_down_socket(connection)

    def close(self) -> None:
        """Close all connections. Idempotent; a call that still runs is interrupted."""
        for thread_id in list(self._in_use):
            self.interrupt(thread_id)
        self._engine.dispose()

    def _run(self, work: Callable[[Connection], Result], *, read_only: bool) -> Result:
        try:
            with self._begin(read_only) as connection:
                return work(connection)
        except (IntegrityError, ProgrammingError, DataError):
            raise  # a fault of the statement, not of the database
        except (DBAPIError, PoolTimeout) as error:
            raise StoreUnavailable(f"the database does not answer: {summarise(error)}") from None

    @contextlib.contextmanager
    def _begin(self, read_only: bool) -> Iterator[Connection]:
        """A transaction on a connection that has just been seen to work, registered for `interrupt`."""
        thread_id = threading.get_ident()
        if self.dialect == "sqlite":
            self._check_file()
        with self._connect(thread_id) as connection:
            try:
                if read_only:
                    connection = connection.execution_options(**{READ_ONLY: True})
                with connection.begin():
                    yield connection
            finally:
                self._in_use.pop(thread_id, None)

    def _check_file(self) -> None:
        """SQLite goes on in a file that was deleted or replaced: what is written there is lost when the process ends.

        Raises:
            StoreUnavailable: the file is gone. Another one in its place is opened anew.
        """
        try:
            found = os.stat(str(self.url.database))
        except OSError as error:
            raise StoreUnavailable(f"the database's file cannot be found: {error.strerror}; put it back") from None
        file = (found.st_dev, found.st_ino)
        if self._file is not None and self._file != file:
            self._engine.dispose()
        self._file = file

    def _connect(self, thread_id: int) -> Connection:
        """A live connection: those that a restarted server has left behind in the pool are dropped."""
        for _ in range(self.config.pool_size + 1):
            connection = self._engine.connect()
            self._in_use[thread_id] = connection.connection.dbapi_connection
            if self.dialect == "sqlite":
                return connection
            try:
                connection.execute(text("SELECT 1"))
                connection.rollback()
                return connection
            except DBAPIError as error:
                self._in_use.pop(thread_id, None)
                connection.close()
                if not error.connection_invalidated:
                    raise
            except BaseException:
                self._in_use.pop(thread_id, None)
                connection.close()
                raise
        raise StoreUnavailable("the database closes every connection at once")

    def _prepare(self, connection: Connection, key_fingerprint: str) -> str:
        migrate(connection)
        statement = self.insert(schema.settings).values(name="key_fingerprint", value=key_fingerprint)
        connection.execute(statement.on_conflict_do_nothing())
        found = connection.scalar(select(schema.settings.c.value).where(schema.settings.c.name == "key_fingerprint"))
        return str(found)

    def _create_engine(self) -> Engine:
        try:
            engine = create_engine(
                self.url,
                pool_size=self.config.pool_size,
                max_overflow=0,
                pool_timeout=self.config.timeout_s,
                connect_args=dict(self._connect_args()),
                hide_parameters=True,
            )
        except ModuleNotFoundError:
            raise ConfigError("PostgreSQL needs a driver: pip install 'argosy[gateway]'") from None
        if self.dialect == "sqlite":
            event.listen(engine, "connect", self._on_sqlite_connect)
            event.listen(engine, "begin", _begin_sqlite)
        return engine

    def _connect_args(self) -> Mapping[str, Any]:
        timeout_s = self.config.timeout_s
        if self.dialect == "sqlite":
            return {"timeout": timeout_s, "check_same_thread": False}
        timeout_ms = max(1, int(timeout_s * 1000))
        return {
            "connect_timeout": max(2, round(timeout_s)),  # libpq takes less than 2 s for 2 s
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "tcp_user_timeout": timeout_ms,
            "application_name": "argosy-gateway",
            "options": f"-c statement_timeout={timeout_ms} -c lock_timeout={timeout_ms} "
            f"-c idle_in_transaction_session_timeout={10 * timeout_ms}",
        }

    def _on_sqlite_connect(self, connection: sqlite3.Connection, _record: Any) -> None:
        # The driver's own BEGIN comes late and never as IMMEDIATE; `_begin_sqlite` says it instead.
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")  # a batch that was acknowledged survives a power cut


def _make_private(path: Path) -> None:
    """Make a database's file for its owner only; SQLite gives the files beside it the same mode."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise ConfigError(f"store.url: {path} cannot be opened: {error.strerror}") from None


def _begin_sqlite(connection: Connection) -> None:
    # A reader that turns writer cannot wait for another writer, SQLite refuses it at once: writers say so at the start.
    read_only = connection.get_execution_options().get(READ_ONLY, False)
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")


def _shut_down_socket(connection: Any) -> None:
    with contextlib.suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)


def summarise(error: Exception) -> str:
    """A database error in one line without statement, values or connection details."""
    if isinstance(error, PoolTimeout):
        return "all connections of the pool are in use"
    if not isinstance(error, DBAPIError):
        return type(error).__name__
    cause = error.orig
    state = getattr(cause, "sqlstate", None)
    if isinstance(cause, sqlite3.Error):
        return f"{type(cause).__name__}: {str(cause)[:120]}"
    return f"{type(cause).__name__}{f' (SQLSTATE {state})' if state else ''}"
