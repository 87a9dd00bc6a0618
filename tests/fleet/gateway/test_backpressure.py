"""A slow client slows its backend down; nothing piles up in between. TLS to a backend; drain."""

import asyncio
import shutil
import ssl
import subprocess

import orjson
import pytest

from argosy.fleet.gateway.client_connection import ServerLimits
from argosy.fleet.gateway.config_operations import DrainSettings


async def test_a_slow_client_does_not_fill_memory(make_gateway, connect, chat):
    sent = 0

    async def flood(reader, writer):
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        event = b"data: " + orjson.dumps({"choices": [{"delta": {"content": "x" * 60_000}}]}) + b"\n\n"
        try:
            while True:
                writer.write(b"%x\r\n%b\r\n" % (len(event), event))
                await writer.drain()
                sent += len(event)
        except ConnectionError:
            writer.close()

    server = await asyncio.start_server(flood, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        gateway = await make_gateway(url, limits=ServerLimits(buffer_bytes=65536))
        client = await connect(gateway.url)
        client.send(chat(stream=True))
        await client.head()
        client.reader._transport.pause_reading()
        last = -1
        while last != sent:
            last = sent
            await asyncio.sleep(0.2)
        # What lies in the sockets' own buffers and two of ours, and not a stream without end.
        assert sent < 40 * 2**20
        stalled_at = sent
        client.reader._transport.resume_reading()
        for _ in range(200):
            await client.chunk()
        assert sent > stalled_at
        client.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
async def test_tls_to_a_backend(make_backend, make_gateway, connect, chat, tmp_path):
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    backend = await make_backend()
    await backend.stop()
    await backend.start(ssl=context)
    url = backend.url.replace("http:", "https:")
    trusting = await make_gateway(url, ca_file=str(cert))
    answer = await (await connect(trusting.url)).ask(chat(stream=True))
    assert (answer.status, answer.events[-1]) == (200, b"[DONE]")
    wary = await make_gateway(url)
    assert (await (await connect(wary.url)).ask(chat())).status == 502


async def test_drain_lets_streams_finish(make_backend, make_gateway, connect, chat):
    backend = await make_backend(itl_s=0.05, tokens=("x",) * 10)
    gateway = await make_gateway(backend.url, drain=DrainSettings(propagation_s=0.1, timeout_s=10.0))
    running, late = await connect(gateway.url), await connect(gateway.url)
    running.send(chat(stream=True))
    await running.head()
    draining = gateway.pipeline.drain.begin(gateway.server.stop_accepting)
    # Balancers learn later that this gateway is leaving: until then it still takes requests.
    late.send(chat())
    assert (await running.answer_body()).endswith(b"data: [DONE]\n\n")
    assert (await late.answer()).status == 200
    assert await draining


async def test_drain_ends_what_takes_too_long(make_backend, make_gateway, connect, chat):
    backend = await make_backend(itl_s=0.05, tokens=("x",) * 1000)
    gateway = await make_gateway(backend.url, drain=DrainSettings(propagation_s=0.0, timeout_s=0.3))
    streaming, waiting = await connect(gateway.url), await connect(gateway.url)
    streaming.send(chat(stream=True))
    await streaming.head()
    backend.reply(never_answer=True)
    waiting.send(chat())
    await backend.until(lambda: len(backend.log) == 2)
    assert not await gateway.pipeline.drain.begin(gateway.server.stop_accepting)
    received = await streaming.until_cut()
    last = received.split(b"\n\n")[-2].split(b"data: ")[-1]
    assert orjson.loads(last)["error"]["code"] == "service_unavailable"
    answer = await waiting.answer()
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"
