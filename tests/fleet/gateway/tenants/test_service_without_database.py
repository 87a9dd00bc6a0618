"""The whole gateway on PostgreSQL, while that server is frozen and after it was restarted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from argosy.fleet.gateway.config import load_config
from argosy.fleet.gateway.service import GatewayService

MASTER_KEY = "sk-CANARY-master-0123456789"
TIMEOUT_S = 0.5
BOUND_S = 8.0
"""Far above twice the timeout, far below what a hang would be."""

CONFIG = """
listen: {{port: 0}}
auth: {{secret_file: {directory}/secret, master_key_env: MASTER}}
store: {{url_env: STORE, timeout_s: {timeout_s}, journal: {directory}/usage}}
observability: {{access_log: {directory}/access.log, log_level: debug}}
resilience: {{health: {{deep: null}}}}
models:
  - name: m
    price: {{input_usd_per_million: 1000.0, output_usd_per_million: 2000.0}}
    backends: [{{url: "{url}"}}]
"""


@pytest.fixture
async def service(make_backend: Any, postgres_server: Any, tmp_path: Path) -> AsyncIterator[GatewayService]:
    backend = await make_backend()
    path = tmp_path / "gateway.yaml"
    path.write_text(CONFIG.format(directory=tmp_path, url=backend.url, timeout_s=TIMEOUT_S))
    secrets = {"MASTER": MASTER_KEY, "STORE": postgres_server.new_database()}
    made = GatewayService(load_config(path), secrets, version="0")
    await made.start()
    yield made
    await made.close()


class Clients:
    """Requests with one key or another."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def chat(self, key: str) -> int:
        body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
        headers = {"authorization": f"Bearer {key}"}
        return (await self._http.post("/v1/chat/completions", json=body, headers=headers)).status_code

    async def admin(self, path: str, body: Any) -> httpx.Response:
        return await self._http.post(path, json=body, headers={"authorization": f"Bearer {MASTER_KEY}"})

    async def total(self) -> Any:
        """All spend, as soon as the admin API answers again."""
        headers = {"authorization": f"Bearer {MASTER_KEY}"}
        deadline_s = time.monotonic() + 30.0
        while (response := await self._http.get("/spend?group_by=", headers=headers)).status_code == 503:
            assert time.monotonic() < deadline_s, "the admin API does not find the database again"
            await asyncio.sleep(0.1)
        (total,) = response.json()
        return total

    async def metrics(self) -> str:
        return (await self._http.get("/metrics")).text

    async def status(self, path: str) -> int:
        return (await self._http.get(path)).status_code


@pytest.fixture
async def clients(service: GatewayService) -> AsyncIterator[Clients]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{service.port}", timeout=30.0) as http:
        yield Clients(http)


async def until_stored(service: GatewayService) -> None:
    store = service.admission.store
    assert store is not None
    deadline_s = time.monotonic() + 30.0
    while store.writer.num_open:
        assert time.monotonic() < deadline_s, "usage does not reach the database"
        await asyncio.sleep(0.05)


async def test_a_frozen_database_stops_no_known_key(service: GatewayService, clients: Clients, postgres_server: Any) -> None:
    known, unknown = [(await clients.admin("/key/generate", {})).json()["key"] for _ in range(2)]
    assert await clients.chat(known) == 200
    frozen = postgres_server.freeze()
    started_s = time.monotonic()
    try:
        assert set(await asyncio.gather(*(clients.chat(unknown) for _ in range(20)))) == {503}
        assert set(await asyncio.gather(*(clients.chat(known) for _ in range(50)))) == {200}
        assert (await clients.admin("/key/generate", {})).status_code == 503
        assert (await clients.status("/health/live"), await clients.status("/health/ready")) == (200, 200)
        assert time.monotonic() - started_s < BOUND_S
    finally:
        postgres_server.thaw(frozen)
    await until_stored(service)
    deadline_s = time.monotonic() + 30.0
    while await clients.chat(unknown) != 200:
        assert time.monotonic() < deadline_s, "the gateway does not find the database again"
        await asyncio.sleep(0.05)
    await until_stored(service)
    assert (await clients.total())["requests"] == 52, "one before, 50 meanwhile, one after"


async def test_requests_over_a_restart_are_billed_once(
    service: GatewayService, clients: Clients, postgres_server: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = (await clients.admin("/key/generate", {"key": "sk-CANARY" + "0" * 40})).json()["key"]
    statuses = [await clients.chat(key) for _ in range(5)]
    await asyncio.to_thread(postgres_server.stop)
    try:
        statuses += [await clients.chat(key) for _ in range(20)]
    finally:
        await asyncio.to_thread(postgres_server.start)
    statuses += [await clients.chat(key) for _ in range(5)]
    assert set(statuses) == {200}
    await until_stored(service)
    total = await clients.total()
    assert (total["requests"], total["input_tokens"], total["output_tokens"]) == (30, 210, 90)
    assert total["spend"] == pytest.approx(30 * (7 * 1e-3 + 3 * 2e-3))
    metrics = await clients.metrics()
    logged = "".join(path.read_text() for path in tmp_path.rglob("*.log"))
    assert "CANARY" not in metrics + logged + caplog.text
