"""What load balancers and clients see of a whole gateway when its engine, its store or itself goes away."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import orjson
import pytest

from argosy.errors import StoreUnavailable
from argosy.fleet.gateway.config import load_config
from argosy.fleet.gateway.service import GatewayService
from argosy.fleet.gateway.store import Store

CONFIG = """
listen: {{port: {port}, health_port: {health_port}}}
auth: {{mode: open, secret_file: {directory}/secret}}
store: {{url: "sqlite:///{directory}/gateway.db", journal: {directory}/usage.ndjson, serve_on_store_loss: {serves}}}
observability: {{access_log: {directory}/access.log}}
resilience:
  drain: {{propagation_s: 1.0, timeout_s: 20}}
  health: {{ready: {{interval_s: 0.2, timeout_s: 0.2, failures: 2}}, deep: {{interval_s: 0.2, timeout_s: 0.2, failures: 1}}}}
models: [{{name: m, backends: [{{url: "{url}", kind: vllm, name: b}}]}}]
"""


@pytest.fixture
def write_config(tmp_path):
    def write(url: str, *, serves: bool = True, port: int = 0, health_port: int = 0) -> Path:
        path = tmp_path / "gateway.yaml"
        text = CONFIG.format(directory=tmp_path, url=url, serves=str(serves).lower(), port=port, health_port=health_port)
        path.write_text(text)
        return path

    return write


@pytest.fixture
async def start():
    services = []

    async def begin(path: Path) -> GatewayService:
        service = GatewayService(load_config(path), {}, version="0")
        services.append(service)
        await service.start()
        return service

    yield begin
    for service in services:
        await service.close()


async def status_of(connect, port: int, path: str) -> int:
    client = await connect(f"http://127.0.0.1:{port}")
    client.send(b"", path=path, method="GET", key=None)
    return (await client.head())[0]


async def test_an_engine_that_is_dead_behind_its_server_gets_no_requests(
    make_backend, write_config, start, connect, chat, wait_until
):
    backend = await make_backend()
    service = await start(write_config(backend.url))
    client = await connect(f"http://127.0.0.1:{service.port}")
    assert (await client.ask(chat(), key=None)).status == 200
    backend.reply(never_answer=True)
    await wait_until(lambda: service.health.unhealthy_count == 1)
    refused = await client.ask(chat(), key=None)
    assert refused.status == 503
    assert refused.headers["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"
    assert await status_of(connect, service.port, "/ready") == 200, "another gateway could do no better"
    backend.reply()
    await wait_until(lambda: service.health.healthy_count == 1)
    assert (await client.ask(chat(), key=None)).status == 200


@pytest.mark.parametrize("serves", [True, False])
async def test_a_store_that_is_away_restarts_nobody(
    make_backend, write_config, start, connect, monkeypatch, wait_until, serves
):
    backend = await make_backend()
    service = await start(write_config(backend.url, serves=serves))
    assert await status_of(connect, service.port, "/readyz") == 200

    def no_answer(*args, **fields):
        raise StoreUnavailable("the database is away")

    monkeypatch.setattr(Store, "read", no_answer)
    await wait_until(lambda: not service.health.store_is_up)
    for port in (service.port, service.health_port):
        assert await status_of(connect, port, "/livez") == 200
        assert await status_of(connect, port, "/readyz") == (200 if serves else 503)
    monkeypatch.undo()
    await wait_until(lambda: service.health.store_is_up)
    assert await status_of(connect, service.port, "/readyz") == 200


async def test_sigterm_ends_no_stream(make_backend, write_config, connect, chat, free_ports):
    backend = await make_backend()
    port, health_port = free_ports
    path = write_config(backend.url, port=port, health_port=health_port)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "argosy", "gateway", str(path), stderr=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        async with asyncio.timeout(60.0):
            while not await is_ready(connect, health_port):
                await asyncio.sleep(0.05)
            backend.script = type(backend.script)(tokens=tuple("abcdefghij"), itl_s=0.3)
            client = await connect(f"http://127.0.0.1:{port}")
            client.send(chat(stream=True), key=None)
            assert (await client.head())[0] == 200
            process.send_signal(signal.SIGTERM)
            while await is_ready(connect, health_port):
                await asyncio.sleep(0.01)
            assert await status_of(connect, health_port, "/livez") == 200
            backend.reply_once()
            late = await connect(f"http://127.0.0.1:{port}")
            assert (await late.ask(chat(), key=None)).status == 200
            assert process.returncode is None
            received = b""
            while chunk := await client.chunk():
                received += chunk
            assert received.endswith(b"data: [DONE]\n\n")
            words = [orjson.loads(line[6:]) for line in received.split(b"\n\n") if line.startswith(b"data: {")]
            assert "".join(word["choices"][0]["delta"]["content"] for word in words) == "abcdefghij"
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def is_ready(connect, port: int) -> bool:
    try:
        return await status_of(connect, port, "/readyz") == 200
    except (ConnectionError, asyncio.IncompleteReadError):
        return False


@pytest.fixture
def free_ports() -> list[int]:
    import socket

    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        return [one.getsockname()[1], two.getsockname()[1]]
