"""A Redis server that can be stopped, frozen, restarted and slowed down, for the ledger that is shared over it."""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from argosy.fleet.gateway.redis_channel import RedisChannel
from argosy.fleet.gateway.redis_ledger import RedisLedger
from argosy.fleet.gateway.store_loss import GuardedLedger

REDIS_SERVER = shutil.which("redis-server")


class RedisServer:
    """One server process without persistence, on a port of its own."""

    def __init__(self, directory: Path, *options: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._directory = directory
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        settings = {"port": self.port, "bind": "127.0.0.1", "save": "", "appendonly": "no", "dir": self._directory}
        arguments = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
        command = [REDIS_SERVER, *arguments, *self._options]
        with (self._directory / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        for _ in range(500):
            try:
                if self.command("PING").startswith(b"+PONG"):
                    return
            except OSError:
                time.sleep(0.02)
        raise RuntimeError(f"redis-server did not start: {(self._directory / 'redis.log').read_text()[-500:]}")

    def command(self, *words: str) -> bytes:
        """Send one command and return the first part of the raw reply."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5.0) as connection:
            connection.sendall(f"*{len(words)}\r\n".encode() + b"".join(f"${len(w)}\r\n{w}\r\n".encode() for w in words))
            return connection.recv(65536)

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class SlowProxy:
    """Passes bytes on to a server, `delay_s` later."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.delay_s = 0.0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"

    async def _serve(self, reader, writer) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._target)
        back = asyncio.create_task(self._pass_on(upstream_reader, writer, 0.0))
        await self._pass_on(reader, upstream_writer, None)
        await back

    async def _pass_on(self, reader, writer, delay_s) -> None:
        try:
            while data := await reader.read(65536):
                await asyncio.sleep(self.delay_s if delay_s is None else delay_s)
                writer.write(data)
        except OSError:
            pass
        finally:
            writer.close()

    async def stop(self) -> None:
        self._server.close()


@pytest.fixture(scope="session")
def make_server(tmp_path_factory) -> Iterator[Callable[..., RedisServer]]:
    if REDIS_SERVER is None:
        pytest.skip("redis-server is not installed; apt-get install redis-server")
    servers: list[RedisServer] = []

    def make(*options: str) -> RedisServer:
        servers.append(RedisServer(tmp_path_factory.mktemp("redis"), *options))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def shared_server(make_server) -> RedisServer:
    """A server for tests that do it no harm."""
    return make_server()


@pytest.fixture
def server(shared_server) -> RedisServer:
    shared_server.command("FLUSHALL")
    return shared_server


@pytest.fixture
def own_server(make_server) -> Iterator[RedisServer]:
    server = make_server()
    yield server
    server.stop()


@pytest.fixture
async def make_ledger() -> AsyncIterator[Callable[..., RedisLedger]]:
    ledgers: list[RedisLedger] = []

    def make(url: str, owner: str = "a", *, timeout_s: float = 2.0, **settings) -> RedisLedger:
        ledgers.append(RedisLedger(RedisChannel(url, timeout_s=timeout_s), owner=owner, **settings))
        return ledgers[-1]

    yield make
    for ledger in ledgers:
        await ledger.aclose()


@pytest.fixture
async def make_guarded() -> AsyncIterator[Callable[..., GuardedLedger]]:
    """Guarded ledgers that probe often; what they leave behind here is checked at the end."""
    made: list[GuardedLedger] = []

    async def make(
        url: str, owner: str = "a", *, timeout_s: float = 0.5, lease_ttl_s: float = 30.0, **settings
    ) -> GuardedLedger:
        shared = RedisLedger(RedisChannel(url, timeout_s=timeout_s), owner=owner, lease_ttl_s=lease_ttl_s)
        made.append(GuardedLedger(shared, retry_s=0.05, **settings))
        await made[-1].start()
        return made[-1]

    yield make
    for ledger in made:
        await ledger.aclose()
        ledger.local.check_invariants()
        assert ledger.num_leases == 0, "a lease was not ended"
        assert ledger.local.num_leases == 0, "the local ledger holds a lease that nobody has"


@pytest.fixture
def transitions() -> Iterator[list[str]]:
    """Messages that the ledger logs."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger, handler = logging.getLogger("argosy.gateway.redis"), Lines()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lines
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.fixture
def eventually() -> Callable:
    async def wait(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20.0):
            while not condition():
                await asyncio.sleep(0.02)

    return wait


@pytest.fixture
def slow_proxy() -> type[SlowProxy]:
    return SlowProxy
