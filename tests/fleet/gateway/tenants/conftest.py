"""Databases of both kinds: SQLite in a file, and a PostgreSQL server of the test's own."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from argosy.fleet.gateway.key_hash import KeyHasher
from argosy.fleet.gateway.store import Store, StoreConfig
from argosy.fleet.gateway.tenancy_groups import GroupRecords
from argosy.fleet.gateway.tenancy_keys import KeyRecords
from argosy.fleet.gateway.usage import UsageRecord

SECRET = bytes(range(32))


@dataclass
class WallClock:
    """Unix time that a test sets."""

    now_s: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now_s


class Postgres:
    """A PostgreSQL server in a folder of its own, run by a user without privileges."""

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self._folder = Path(tempfile.mkdtemp(prefix="argosy-pg-"))
        self._user = "postgres" if os.geteuid() == 0 else None
        if self._user is not None:
            owner = pwd.getpwnam(self._user)
            os.chown(self._folder, owner.pw_uid, owner.pw_gid)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._names = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        options = ["-A", "trust", "-U", "argosy", "--no-sync", "-E", "UTF8", "--locale=C"]
        self._run("initdb", "-D", str(self._folder / "data"), *options)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self._folder,
            "fsync": "off",
            "max_connections": 40,
            "shared_buffers": "16MB",
        }
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [self._binaries / "postgres", "-D", self._folder / "data", *flags]
        out = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdout=out, stderr=out, user=self._user, cwd=self._folder)
        deadline_s = time.monotonic() + 30.0
        ready = [str(self._binaries / "pg_isready"), "-h", "127.0.0.1", "-p", str(self.port), "-q"]
        while subprocess.run(ready, check=False).returncode != 0:
            assert time.monotonic() < deadline_s, "PostgreSQL does not start"
            assert self._process.poll() is None, "PostgreSQL ended at its start"
            time.sleep(0.05)

    def stop(self) -> None:
        """End the server at once, sessions included."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(20.0)
            self._process = None

    def freeze(self) -> list[int]:
        """Stop every process of the server; returns their ids for `thaw`."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        pids = [self._process.pid, *map(int, children)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        return pids

    def thaw(self, pids: list[int]) -> None:
        """Let them go on."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"gateway_{next(self._names)}"
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "argosy", name)
        return f"postgresql://argosy@127.0.0.1:{self.port}/{name}"

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._binaries / program), *arguments]
        subprocess.run(command, check=True, capture_output=True, user=self._user, cwd=self._folder, timeout=60)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin")) or [str(Path(p).parent) for p in [shutil.which("initdb")] if p]
    if not found:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    if os.geteuid() == 0 and "postgres" not in {user.pw_name for user in pwd.getpwall()}:
        pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
    server = Postgres(Path(found[-1]))
    server.start()
    yield server
    server.close()


@pytest.fixture
def hasher() -> KeyHasher:
    return KeyHasher(SECRET)


@pytest.fixture
def wall_clock() -> WallClock:
    return WallClock()


@pytest.fixture
def open_store(hasher: KeyHasher) -> Iterator[Callable[..., Store]]:
    """Open a store at a URL; all are closed at the end."""
    with contextlib.ExitStack() as stack:

        def open_at(url: str, **settings: Any) -> Store:
            store = Store(StoreConfig(url, **settings))
            stack.callback(store.close)
            store.open(hasher.fingerprint())
            return store

        yield open_at


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/gateway.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, open_store: Callable[..., Store]) -> Store:
    """An empty store of either kind."""
    if request.param == "sqlite":
        return open_store(request.getfixturevalue("sqlite_url"))
    return open_store(request.getfixturevalue("postgres_server").new_database())


@pytest.fixture
def keys(store: Store, hasher: KeyHasher, wall_clock: WallClock) -> KeyRecords:
    return KeyRecords(store, hasher, wall_clock)


@pytest.fixture
def groups(store: Store, wall_clock: WallClock) -> GroupRecords:
    return GroupRecords(store, wall_clock)


@dataclass
class RecordMaker:
    """Usage records with ids that count up."""

    numbers: Iterator[int] = field(default_factory=itertools.count)

    def __call__(self, **fields: Any) -> UsageRecord:
        values: dict[str, Any] = {
            "request_id": f"req-{next(self.numbers)}",
            "key_id": "key_a",
            "team_id": "team_a",
            "org_id": "org_a",
            "model": "m",
            "backend": "b",
            "started_at_s": 1_700_000_000.0,
            "ended_at_s": 1_700_000_001.0,
            "input_tokens": 10,
            "cached_tokens": 4,
            "output_tokens": 5,
            "cost_nano_usd": 7,
            "status": 200,
            "outcome": "dispatched",
            "streamed": False,
            "estimated": False,
        }
        return UsageRecord(**{**values, **fields})


@pytest.fixture
def make_record() -> RecordMaker:
    return RecordMaker()
