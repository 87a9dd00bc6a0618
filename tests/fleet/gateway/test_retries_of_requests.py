"""Backends that fail: what is tried again, how often, and what the client sees."""

import asyncio
import time

import orjson
import pytest

from argosy.fleet.gateway.pipeline import PipelineSettings
from argosy.fleet.gateway.upstream import UpstreamLimits
from argosy.fleet.policies.breaker import BreakerConfig
from argosy.fleet.policies.outcomes import Outcome
from argosy.fleet.policies.retries import RetryBudget, RetryPolicy

QUICK = RetryPolicy(max_retries=3, backoff_s=0.0)


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_request_is_sent_as_often_as_the_policy_says(make_backend, make_gateway, connect, chat, status):
    backend = await make_backend(status=status)
    gateway = await make_gateway(backend.url, retries=QUICK)
    answer = await (await connect(gateway.url)).ask(chat())
    assert answer.status == status
    assert len(backend.log) == 4
    # The client is told not to multiply them.
    assert answer.headers["x-should-retry"] == "false"


async def test_clients_errors_are_not_tried_again(make_backend, make_gateway, connect, chat):
    backend = await make_backend(status=400)
    gateway = await make_gateway(backend.url, retries=QUICK)
    assert (await (await connect(gateway.url)).ask(chat())).status == 400
    assert len(backend.log) == 1


async def test_another_backend_answers(make_backend, make_gateway, connect, chat):
    failing, good = await make_backend(status=500), await make_backend()
    gateway = await make_gateway(failing.url, good.url, retries=QUICK)
    client = await connect(gateway.url)
    for _ in range(4):
        assert (await client.ask(chat())).status == 200
    assert len(good.log) == 4
    assert len(failing.log) >= 2


async def test_retries_are_a_share_of_all_requests(make_backend, make_gateway, connect, chat):
    backend = await make_backend(status=503)
    gateway = await make_gateway(backend.url, retries=QUICK, budget=RetryBudget(ratio=0.1, max_credits=2.0))
    client = await connect(gateway.url)
    for _ in range(30):
        await client.ask(chat())
    assert len(backend.log) <= 30 + 2 + 3


async def test_an_address_where_nobody_listens(make_backend, make_gateway, connect, chat):
    gone, good = await make_backend(), await make_backend()
    await gone.stop()
    gateway = await make_gateway(gone.url, good.url, retries=QUICK)
    client = await connect(gateway.url)
    assert [(await client.ask(chat())).status for _ in range(3)] == [200, 200, 200]
    alone = await make_gateway(gone.url)
    answer = await (await connect(alone.url)).ask(chat())
    assert answer.status == 502
    assert answer.document["error"]["code"] == "upstream_connect_failed"
    assert answer.document["error"]["message"].startswith("model 'm': no connection to the backend")
    assert str(gone.port) not in answer.body.decode()


async def test_connections_that_hang(make_gateway, black_hole, connect, chat):
    gateway = await make_gateway(black_hole.url, upstream=UpstreamLimits(connect_timeout_s=0.2))
    begun_s = time.monotonic()
    answer = await (await connect(gateway.url)).ask(chat())
    assert answer.status == 502
    assert time.monotonic() - begun_s < 2.0


async def test_a_backend_that_never_answers(make_backend, make_gateway, connect, chat):
    backend = await make_backend(never_answer=True)
    gateway = await make_gateway(backend.url, upstream=UpstreamLimits(first_byte_timeout_s=0.2))
    answer = await (await connect(gateway.url)).ask(chat(stream=True))
    assert answer.status == 504
    assert gateway.exchanges[0].outcome is Outcome.FAILED_FIRST_BYTE_TIMEOUT


async def test_a_head_is_not_a_first_byte(make_backend, make_gateway, connect, chat):
    """Engines send the head of a stream at once; a request that then hangs may still be sent elsewhere."""
    hanging, good = await make_backend(ttft_s=30.0), await make_backend()
    gateway = await make_gateway(hanging.url, good.url, retries=QUICK, upstream=UpstreamLimits(first_byte_timeout_s=0.2))
    client = await connect(gateway.url)
    for _ in range(2):
        answer = await client.ask(chat(stream=True))
        assert (answer.status, answer.events[-1]) == (200, b"[DONE]")
    assert len(hanging.log) == 1


async def test_silence_within_a_stream(make_backend, make_gateway, connect, chat):
    backend = await make_backend(stall_after=200)
    gateway = await make_gateway(backend.url, retries=QUICK, upstream=UpstreamLimits(idle_timeout_s=0.2))
    client = await connect(gateway.url)
    client.send(chat(stream=True))
    status, _ = await client.head()
    assert status == 200
    received = await client.until_cut()
    events = [event for event in received.split(b"\n\n") if event]
    assert orjson.loads(events[-1][6:])["error"]["code"] == "upstream_timeout"
    # Never again after the first byte.
    assert len(backend.log) == 1
    (exchange,) = gateway.exchanges
    assert exchange.outcome is Outcome.FAILED_IDLE_TIMEOUT
    assert exchange.usage.output_tokens == 1


async def test_a_stream_that_is_cut(make_backend, make_gateway, connect, chat):
    backend = await make_backend(close_after=250)
    gateway = await make_gateway(backend.url, retries=QUICK)
    client = await connect(gateway.url)
    client.send(chat(stream=True))
    await client.head()
    received = await client.until_cut()
    assert b'"error"' in received.split(b"\n\n")[-2]
    assert len(backend.log) == 1
    assert gateway.exchanges[0].outcome is Outcome.FAILED_UPSTREAM


async def test_an_answer_that_is_cut_is_tried_again_if_nothing_was_sent(make_backend, make_gateway, connect, chat):
    backend = await make_backend()
    backend.reply_once(close_after=20)
    gateway = await make_gateway(backend.url, retries=QUICK)
    assert (await (await connect(gateway.url)).ask(chat())).status == 200
    assert len(backend.log) == 2


async def test_an_error_event_is_passed_on(make_backend, make_gateway, connect, chat):
    body = b'data: {"error":{"message":"out of memory","type":"x","param":null,"code":null}}\n\ndata: [DONE]\n\n'
    backend = await make_backend(body=body, headers=(("content-type", "text/event-stream"),))
    gateway = await make_gateway(backend.url, retries=QUICK)
    answer = await (await connect(gateway.url)).ask(chat(stream=True))
    assert answer.body == body
    assert gateway.exchanges[0].outcome is Outcome.FAILED_UPSTREAM


async def test_not_http(make_gateway, connect, chat):
    async def nonsense(reader, writer):
        await reader.read(100)
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        writer.close()

    server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
    async with server:
        gateway = await make_gateway(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        answer = await (await connect(gateway.url)).ask(chat())
    assert answer.status == 502


@pytest.mark.parametrize("stream", [False, True])
async def test_what_follows_an_answer_is_not_part_of_it(make_gateway, connect, chat, stream):
    kind = b"text/event-stream" if stream else b"application/json"
    ours, theirs = (b"data: {}\n\ndata: [DONE]\n\n", b"data: evil\n\n") if stream else (b'{"a":1}', b'{"evil":1}')
    one, other = (
        b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\nx-%b: 1\r\ncontent-length: %d\r\n\r\n%b" % (kind, name, len(body), body)
        for name, body in ((b"mine", ours), (b"evil", theirs))
    )

    async def answer_twice(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(one + other)

    server = await asyncio.start_server(answer_twice, "127.0.0.1", 0)
    async with server:
        gateway = await make_gateway(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        client = await connect(gateway.url)
        client.send(chat(stream=stream))
        received = await asyncio.wait_for(client.reader.readuntil(b"}}"), 5.0)
    assert b"502" in received
    assert b"evil" not in received


@pytest.mark.parametrize("first", [503, 429])
async def test_fallback_to_another_model(make_backend, make_gateway, connect, chat, first):
    failing, good = await make_backend(status=first), await make_backend()
    gateway = await make_gateway(models={"m": [failing.url], "n": [good.url]}, fallbacks={"m": "n"}, retries=QUICK)
    answer = await (await connect(gateway.url)).ask(chat())
    assert answer.status == 200
    assert (len(failing.log), len(good.log)) == (3, 1)
    (exchange,) = gateway.exchanges
    assert (exchange.pool, exchange.fallbacks) == ("n", 1)
    assert exchange.queued_s <= exchange.dispatched_s, "of the first model both"


async def test_fallback_when_the_prompt_is_too_long(make_backend, make_gateway, connect, chat):
    body = b'{"error":{"message":"This model\'s maximum context length is 10 tokens","code":"context_length_exceeded"}}'
    short, long = await make_backend(status=400, body=body), await make_backend()
    gateway = await make_gateway(models={"m": [short.url], "n": [long.url]}, fallbacks={"m": "n"}, retries=QUICK)
    assert (await (await connect(gateway.url)).ask(chat())).status == 200
    assert (len(short.log), len(long.log)) == (1, 1)
    short.reply(status=400)
    assert (await (await connect(gateway.url)).ask(chat())).status == 400


async def test_a_kept_connection_that_the_backend_closed(make_backend, make_gateway, connect, chat):
    backend = await make_backend()
    gateway = await make_gateway(backend.url)
    client = await connect(gateway.url)
    await client.ask(chat())
    # The backend closes the idle connection when the next request is already on its way.
    backend.reply_once(cut_at_once=True)
    assert (await client.ask(chat())).status == 200
    assert len(backend.log) == 3


async def test_one_kept_connection_serves_one_after_the_other(make_backend, make_gateway, connect, chat):
    backend = await make_backend()
    gateway = await make_gateway(backend.url)
    client = await connect(gateway.url)
    for number in range(6):
        await client.ask(chat(stream=bool(number % 2)))
    assert len({received.connection for received in backend.log}) == 1


async def test_one_hung_backend_takes_nothing_from_the_others(make_backend, make_gateway, connect, chat):
    hung, good = await make_backend(never_answer=True), await make_backend()
    gateway = await make_gateway(
        models={"m": [hung.url], "n": [good.url]},
        upstream=UpstreamLimits(max_connections=5, first_byte_timeout_s=1.0),
    )
    waiting = [await connect(gateway.url) for _ in range(20)]
    for client in waiting:
        client.send(chat())
    refused = [await asyncio.wait_for(client.answer(), 5.0) for client in waiting[5:]]
    assert {answer.status for answer in refused} == {429}
    for _ in range(10):
        begun_s = time.monotonic()
        assert (await (await connect(gateway.url)).ask(chat(model="n"))).status == 200
        assert time.monotonic() - begun_s < 0.9
    assert {(await client.answer()).status for client in waiting[:5]} == {504}


async def test_clients_errors_close_no_door(make_backend, make_gateway, connect, chat):
    backend = await make_backend(status=400)
    gateway = await make_gateway(backend.url, breaker=BreakerConfig(min_requests=2))
    client = await connect(gateway.url)
    for _ in range(8):
        await client.ask(chat())
    backend.reply()
    assert (await client.ask(chat())).status == 200


async def test_an_open_breaker_answers_by_itself(make_backend, make_gateway, connect, chat):
    backend = await make_backend(status=500)
    gateway = await make_gateway(backend.url, breaker=BreakerConfig(min_requests=3))
    client = await connect(gateway.url)
    statuses = [(await client.ask(chat())).status for _ in range(6)]
    assert statuses == [500, 500, 500, 503, 503, 503]
    assert len(backend.log) == 3


async def test_a_request_has_a_deadline(make_backend, make_gateway, connect, chat):
    backend = await make_backend(itl_s=0.05, tokens=("x",) * 100)
    gateway = await make_gateway(backend.url, settings=PipelineSettings(QUICK, total_timeout_s=0.3))
    client = await connect(gateway.url)
    client.send(chat(stream=True))
    await client.head()
    received = await client.until_cut()
    assert b"deadline_exceeded" in received
    backend.reply(never_answer=True)
    answer = await (await connect(gateway.url)).ask(chat())
    assert answer.status == 504
