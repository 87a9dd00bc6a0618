"""A gateway from its configuration file to the answers that real clients get."""

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import openai
import pytest

from argosy.errors import ConfigError
from argosy.fleet.gateway.config import load_config, read_secrets
from argosy.fleet.gateway.service import GatewayService

MASTER = "sk-CANARY-master-0123456789"
ENVIRONMENT = {"FILE_KEY": "sk-CANARY-0123456789", "MASTER": MASTER, "UPSTREAM": "sk-CANARY-upstream"}

CONFIG = """
listen: {{port: 0, health_port: 0}}
auth: {{secret_file: {directory}/secret, master_key_env: MASTER}}
store: {{url: "sqlite:///{directory}/gateway.db", journal: {directory}/usage.ndjson}}
observability: {{access_log: {directory}/access.log}}
resilience:
  drain: {{propagation_s: 0, timeout_s: 5}}
  health: {{ready: {{interval_s: 0.2, timeout_s: 0.2, failures: 2}}, deep: null}}
models:
  - name: m
    aliases: [gpt-4o]
    price: {{input_usd_per_million: 1.0, output_usd_per_million: 2.0}}
    backends: [{{url: "{url}", api_key_env: UPSTREAM, kind: {kind}, model: org/real}}]
    routing: prefix_aware
tenants:
  - id: acme
    teams: [{{id: research, keys: [{{id: file-key, key_env: FILE_KEY, limits: {{rpm: 100}}}}]}}]
"""


@pytest.fixture
def write_config(tmp_path):
    """Writes a configuration for one backend; returns it as read."""

    def write(url, kind="openai", change=lambda text: text):
        path = tmp_path / "gateway.yaml"
        path.write_text(change(CONFIG.format(directory=tmp_path, url=url, kind=kind)))
        return load_config(path)

    return write


@pytest.fixture
async def start():
    """Starts services from configurations."""
    services = []

    async def begin(config):
        service = GatewayService(config, read_secrets(config, ENVIRONMENT), version="0")
        services.append(service)
        await service.start()
        return service

    yield begin
    for service in services:
        await service.close()


def url_of(service):
    return f"http://127.0.0.1:{service.port}"


def sdk(service, key=ENVIRONMENT["FILE_KEY"]):
    return openai.AsyncOpenAI(base_url=f"{url_of(service)}/v1", api_key=key, max_retries=0)


async def test_the_openai_client(make_backend, write_config, start):
    backend = await make_backend()
    service = await start(write_config(backend.url))
    messages = [{"role": "user", "content": "hi"}]
    async with sdk(service) as client:
        answer = await client.chat.completions.create(model="gpt-4o", messages=messages, max_tokens=5)
        assert answer.choices[0].message.content == "Hello!"
        assert answer.usage.completion_tokens == 3
        stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content for chunk in chunks) == "Hello!"
        options = {"include_usage": True}
        stream = await client.chat.completions.create(model="m", messages=messages, stream=True, stream_options=options)
        assert [chunk async for chunk in stream][-1].usage.completion_tokens == 3
        assert (await client.completions.create(model="m", prompt="hi")).choices[0].text == "Hello!"
        embedding = await client.embeddings.create(model="m", input="hi", encoding_format="float")
        assert embedding.data[0].embedding == [0.1, 1e-7, -2.5]
        assert {model.id async for model in await client.models.list()} == {"m", "gpt-4o"}
        assert (await client.models.retrieve("m")).owned_by == "argosy"
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="other", messages=messages)
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other")
    async with sdk(service, "sk-CANARY-wrong") as client:
        with pytest.raises(openai.AuthenticationError) as wrong:
            await client.chat.completions.create(model="m", messages=messages)
        assert "CANARY" not in str(wrong.value)
    for received in backend.log:
        assert received.headers["authorization"] == "Bearer sk-CANARY-upstream"
        assert received.document["model"] == "org/real"


async def test_a_tenants_salt_is_its_own(make_backend, write_config, start, connect, chat):
    backend = await make_backend()
    service = await start(write_config(backend.url, kind="vllm"))
    await (await connect(url_of(service))).ask(chat(cache_salt="salt-of-another"))
    salt = backend.log[-1].document["cache_salt"]
    assert salt
    assert salt != "salt-of-another"


async def test_keys_are_made_used_billed_and_blocked(make_backend, write_config, start, connect, chat, wait_until):
    backend = await make_backend()
    service = await start(write_config(backend.url))
    client = await connect(url_of(service))
    refused = await client.ask({}, path="/key/generate", key=ENVIRONMENT["FILE_KEY"])
    assert refused.status in (401, 403)
    made = await client.ask({"max_parallel_requests": 3, "models": ["m"]}, path="/key/generate", key=MASTER)
    assert made.status == 200
    key = made.document["key"]
    answer = await client.ask(chat(), key=key)
    assert answer.status == 200
    await wait_until(lambda: service.admission.store.writer.num_open == 0)
    spend = await client.ask(b"", path="/spend/logs", method="GET", key=MASTER)
    (record,) = spend.document
    assert (record["input_tokens"], record["output_tokens"], record["spend"]) == (7, 3, 13e-6)
    assert record["request_id"] == answer.headers["x-request-id"] != record["exchange_id"]
    assert (await client.ask({"key": key}, path="/key/block", key=MASTER)).status == 200
    assert (await client.ask(chat(), key=key)).status == 401
    assert key.encode() not in spend.body


async def test_health_and_metrics(make_backend, write_config, start, connect, chat):
    backend = await make_backend()
    service = await start(write_config(backend.url, kind="vllm"))
    client = await connect(url_of(service))
    assert (await client.ask(chat())).status == 200
    for path in ("/health", "/livez", "/ready", "/health/readiness"):
        assert (await client.ask(b"", path=path, method="GET", key=None)).status == 200
    own = await connect(f"http://127.0.0.1:{service.health_port}")
    assert (await own.ask(b"", path="/ready", method="GET", key=None)).status == 200
    page = (await client.ask(b"", path="/metrics", method="GET", key=None)).body.decode()
    assert (
        'argosy_gateway_requests_total{model="m",outcome="dispatched",route="/v1/chat/completions",status="200"} 1.0' in page
    )
    assert "argosy_gateway_backend_ready" in page
    assert "CANARY" not in page
    backend.health_status = 503
    for _ in range(100):
        if "argosy_gateway_backend_ready{" in page and "} 0.0" in page.split("argosy_gateway_backend_ready{")[1][:80]:
            break
        await asyncio.sleep(0.2)
        page = (await client.ask(b"", path="/metrics", method="GET", key=None)).body.decode()
    assert (await client.ask(chat())).status == 503


async def test_paths_and_methods_that_are_not_there(make_backend, write_config, start, connect, chat):
    backend = await make_backend()
    service = await start(write_config(backend.url, change=lambda text: text.replace(", master_key_env: MASTER", "")))
    client = await connect(url_of(service))
    for method, path, status in [
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("GET", "/nowhere", 404),
        ("GET", "/v1/models/other", 404),
        ("GET", "/key/list", 404),
    ]:
        answer = await client.ask(b"", path=path, method=method)
        assert answer.status == status
        assert answer.document["error"]["message"]
    assert (await client.ask(b"", path="/v1/models", method="GET", key=None)).status == 401
    answer = await client.ask(chat(), path="/chat/completions")
    assert answer.document["error"]["message"] == (
        "there is no '/chat/completions' here; did you mean /v1/chat/completions?"
    )


async def test_another_configuration(make_backend, write_config, start, connect, chat):
    old, new = await make_backend(), await make_backend(tokens=("new",))
    config = write_config(old.url)
    service = await start(config)
    client = await connect(url_of(service))
    old.reply(ttft_s=0.3)
    client.send(chat(stream=True))
    await old.until(lambda: bool(old.log))

    def change(text):
        return text.replace("aliases: [gpt-4o]", "aliases: [gpt-5]").replace("rpm: 100", "rpm: 2")

    changed = write_config(new.url, change=change)
    service.apply(changed, read_secrets(changed, ENVIRONMENT))
    # What runs ends as it began; what comes is answered as the new file says.
    assert (await client.answer()).events[-1] == b"[DONE]"
    answers = [await client.ask(chat(model="gpt-5")) for _ in range(2)]
    assert answers[0].document["choices"][0]["message"]["content"] == "new"
    assert answers[1].status == 429  # what the old one let pass counts
    assert (await client.ask(chat(model="gpt-4o"))).status == 404
    for impossible in (
        replace(changed, queue=replace(changed.queue, queue_threshold=77)),
        write_config(new.url, change=lambda text: text.replace("prefix_aware", "prefix_precise")),
    ):
        with pytest.raises(ConfigError):
            service.apply(impossible, read_secrets(impossible, ENVIRONMENT))
        assert service.config is changed


async def test_drain(make_backend, write_config, start, connect, chat):
    backend = await make_backend(itl_s=0.05, tokens=("x",) * 8)
    service = await start(write_config(backend.url))
    client = await connect(url_of(service))
    client.send(chat(stream=True))
    await client.head()
    draining = asyncio.ensure_future(service.run_drain())
    await asyncio.sleep(0)
    health = await connect(f"http://127.0.0.1:{service.health_port}")
    assert (await health.ask(b"", path="/ready", method="GET", key=None)).status == 503
    assert (await client.answer_body()).endswith(b"[DONE]\n\n")
    assert await draining


async def test_a_taken_port_is_a_line(make_backend, write_config, start):
    backend = await make_backend()
    service = await start(write_config(backend.url))
    config = write_config(backend.url, change=lambda text: text.replace("port: 0,", f"port: {service.port},"))
    other = GatewayService(config, read_secrets(config, ENVIRONMENT), version="0")
    with pytest.raises(ConfigError, match=r"cannot listen on [0-9.:]+: Address already in use; choose another"):
        await other.start()
    await other.close()


async def test_no_secret_is_written_anywhere(make_backend, write_config, start, connect, chat, tmp_path):
    backend = await make_backend()
    service = await start(write_config(backend.url))
    client = await connect(url_of(service))
    await client.ask(chat("CANARY-prompt"))
    await client.ask(chat(), key="sk-CANARY-wrong")
    await client.ask(chat(model="CANARY-model"), path="/v1/chat/completions?key=sk-CANARY-x")
    await service.close()
    written = [path for path in Path(tmp_path).rglob("*") if path.is_file() and path.name != "gateway.yaml"]
    assert any(path.name == "access.log" and path.stat().st_size for path in written)
    for path in written:
        assert b"CANARY" not in path.read_bytes(), path


def test_a_gateway_needs_no_torch():
    code = (
        "import sys, argosy.fleet.gateway.service, argosy.fleet.gateway.run;"
        "heavy = {'torch', 'numba', 'transformers'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
