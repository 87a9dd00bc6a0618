from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from argosy.errors import ConfigError, StoreUnavailable
from argosy.fleet.gateway.key_hash import KeyHasher
from argosy.fleet.gateway.spend import spend_logs
from argosy.fleet.gateway.store import Store, StoreConfig
from argosy.fleet.gateway.store_migrations import STEPS, migrate
from argosy.fleet.gateway.usage_commit import commit_usage

LATEST = max(STEPS)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "not a database URL"),
        ("mysql://u:CANARY@h/d", "'mysql'"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("postgresql+asyncpg://u:CANARY@h/d", "asyncpg"),
    ],
)
def test_other_databases_are_refused_without_telling_the_url(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        StoreConfig(url)
    assert "CANARY" not in caught.value.message


def test_the_password_is_in_no_representation() -> None:
    config = StoreConfig("postgresql://u:CANARY@localhost/d")
    assert "CANARY" not in repr(config)
    store = Store(config)
    assert "CANARY" not in repr(store.url)
    store.close()


def test_a_driver_is_chosen() -> None:
    assert Store(StoreConfig("postgresql://u@h/d")).url.drivername == "postgresql+psycopg"


def test_opening_twice_changes_nothing(store: Store, hasher: KeyHasher) -> None:
    store.write(lambda c: c.execute(text("INSERT INTO settings (name, value) VALUES ('a', 'b')")))
    store.open(hasher.fingerprint())
    assert store.read(lambda c: c.scalar(text("SELECT value FROM settings WHERE name = 'a'"))) == "b"
    assert store.read(lambda c: c.scalar(text("SELECT count(*) FROM schema_version"))) == 1


def test_another_secret_is_refused(store: Store) -> None:
    with pytest.raises(ConfigError, match="another secret"):
        store.open(KeyHasher(bytes(32)).fingerprint())


def test_processes_that_start_together_migrate_once(sqlite_url: str, hasher: KeyHasher) -> None:
    stores = [Store(StoreConfig(sqlite_url, timeout_s=10.0)) for _ in range(4)]
    failures: list[BaseException] = []

    def start(store: Store) -> None:
        try:
            store.open(hasher.fingerprint())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=start, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for store in stores:
        store.close()


def test_steps_are_applied_once_and_in_order(store: Store) -> None:
    done: list[int] = []
    steps = {LATEST + 1: lambda c: done.append(1), LATEST + 2: lambda c: done.append(2)}
    assert store.write(lambda c: migrate(c, steps)) == LATEST
    assert done == [1, 2]
    assert store.write(lambda c: migrate(c, steps)) == LATEST + 2
    assert done == [1, 2]


def test_a_database_of_the_first_version_gets_the_request_ids_of_logs(store: Store, make_record: Any) -> None:
    def age(connection: Any) -> None:
        connection.execute(text("ALTER TABLE usage_records DROP COLUMN x_request_id"))
        connection.execute(text("UPDATE schema_version SET version = 1"))
        before = {name: value for name, value in make_record(request_id="old").row().items() if name != "x_request_id"}
        names = ", ".join(before)
        values = ", ".join(f":{name}" for name in before)
        connection.execute(text(f"INSERT INTO usage_records ({names}) VALUES ({values})"), before)

    store.write(age)
    assert store.write(migrate) == 1
    assert commit_usage(store, [make_record(request_id="new", x_request_id="client-id")]) == 1
    assert {row["exchange_id"]: row["request_id"] for row in spend_logs(store)} == {"old": "", "new": "client-id"}


def test_a_step_that_fails_leaves_the_version_as_it_was(store: Store) -> None:
    def fail(_connection: object) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        store.write(lambda c: migrate(c, {LATEST + 1: fail}))
    assert store.write(lambda c: migrate(c, {LATEST + 1: lambda c: None})) == LATEST


def test_a_later_version_is_refused(store: Store) -> None:
    store.write(lambda c: migrate(c, {LATEST + 1: lambda c: None}))
    with pytest.raises(ConfigError, match=f"schema version {LATEST + 1}"):
        store.write(migrate)


def test_what_fails_is_rolled_back(store: Store) -> None:
    def work(connection: object) -> None:
        connection.execute(text("INSERT INTO settings (name, value) VALUES ('a', 'b')"))  # type: ignore[attr-defined]
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        store.write(work)
    assert store.read(lambda c: c.scalar(text("SELECT count(*) FROM settings WHERE name = 'a'"))) == 0


def test_a_locked_database_is_unavailable_in_time(sqlite_url: str, open_store: Callable[..., Store]) -> None:
    store = open_store(sqlite_url, timeout_s=0.2)
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(StoreUnavailable, match="locked"):
            store.write(lambda c: None)
        assert store.read(lambda c: c.scalar(text("SELECT 1"))) == 1, "readers do not wait for a writer"
    finally:
        other.close()


def test_a_full_disk_is_unavailable_and_then_not(sqlite_url: str, open_store: Callable[..., Store]) -> None:
    store = open_store(sqlite_url)

    def insert(connection: object, size: int) -> None:
        connection.execute(text("PRAGMA max_page_count=60"))  # type: ignore[attr-defined]
        connection.execute(  # type: ignore[attr-defined]
            text("INSERT INTO settings (name, value) VALUES (:n, :v)"), {"n": f"n{size}", "v": "x" * size}
        )

    with pytest.raises(StoreUnavailable, match="full"):
        store.write(lambda c: insert(c, 10**6))
    store.write(lambda c: insert(c, 1))
    assert store.read(lambda c: c.scalar(text("SELECT count(*) FROM settings WHERE name LIKE 'n%'"))) == 1


def test_nothing_is_written_to_a_file_that_is_not_there_any_more(sqlite_url: str, open_store: Callable[..., Store]) -> None:
    store = open_store(sqlite_url)
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    insert = text("INSERT INTO settings (name, value) VALUES (:n, 'v')")
    count = text("SELECT count(*) FROM settings WHERE name LIKE 'n%'")
    store.write(lambda c: c.execute(insert, {"n": "n1"}))
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    backup = path.with_name("backup")
    shutil.copy(path, backup)
    away = path.with_name("away")
    path.rename(away)
    for call in (store.read, store.write):
        with pytest.raises(StoreUnavailable, match="No such file"):
            call(lambda c: c.execute(insert, {"n": "n2"}))
    assert not path.exists()
    away.rename(path)
    store.write(lambda c: c.execute(insert, {"n": "n3"}))
    assert store.read(lambda c: c.scalar(count)) == 2
    for left in path.parent.glob("gateway.db*"):
        left.unlink()
    backup.rename(path)
    assert store.read(lambda c: c.scalar(count)) == 1
    store.write(lambda c: c.execute(insert, {"n": "n4"}))
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM settings WHERE name = 'n4'").fetchone() == (1,)


def test_a_missing_folder_is_told(tmp_path: Path, hasher: KeyHasher) -> None:
    store = Store(StoreConfig(f"sqlite:///{tmp_path}/none/gateway.db"))
    with pytest.raises(ConfigError, match="no folder"):
        store.open(hasher.fingerprint())


def test_the_file_is_its_owners_only(sqlite_url: str, open_store: Callable[..., Store]) -> None:
    open_store(sqlite_url)
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    assert all(entry.stat().st_mode & 0o077 == 0 for entry in path.parent.glob("gateway.db*"))


def test_a_call_in_another_thread_can_be_ended(store: Store) -> None:
    slow = "SELECT pg_sleep(30)"
    if store.dialect == "sqlite":
        slow = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    outcome: list[BaseException] = []

    def work() -> None:
        try:
            store.read(lambda c: c.execute(text(slow)).all())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.2)
    store.interrupt(thread.ident or 0)
    thread.join(5.0)
    assert not thread.is_alive()
    assert isinstance(outcome[0], StoreUnavailable)
    assert store.read(lambda c: c.scalar(text("SELECT 1"))) == 1
