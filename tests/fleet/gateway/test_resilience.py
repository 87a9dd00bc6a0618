"""Backends that fail, hang, throttle and come back, behind a gateway on real sockets."""

import asyncio
import time

import pytest

from argosy.fleet.gateway.config_operations import DrainSettings
from argosy.fleet.gateway.upstream import UpstreamLimits
from argosy.fleet.policies.breaker import BreakerConfig
from argosy.fleet.policies.health_state import HealthPhase
from argosy.fleet.policies.outcomes import Outcome
from argosy.fleet.policies.retries import RetryBudget, RetryPolicy

BREAKER = BreakerConfig(open_s=0.3)
NO_RETRIES = RetryPolicy(max_retries=0)
THREE = RetryPolicy(max_retries=3, backoff_s=0.001)


async def test_retries_and_fallbacks_share_one_bound(make_backend, make_gateway, connect, chat):
    first, second = await make_backend(status=500), await make_backend(status=500)
    models = {"m": [first.url], "n": [second.url]}
    gateway = await make_gateway(models=models, fallbacks={"m": "n", "n": "m"}, retries=THREE, budget=RetryBudget())
    answer = await (await connect(gateway.url)).ask(chat())
    assert answer.status == 500
    assert len(first.log) + len(second.log) == 4


async def test_retries_of_all_requests_together_are_a_tenth(make_backend, make_gateway, connect, chat):
    backend = await make_backend(status=500)
    gateway = await make_gateway(backend.url, retries=THREE, budget=RetryBudget(0.1, 2.0))
    client = await connect(gateway.url)
    for _ in range(100):
        await client.ask(chat())
    assert 100 + 10 <= len(backend.log) <= 100 + 12


async def test_a_request_that_is_a_retry_already_earns_none(make_backend, make_gateway, connect, chat):
    backend = await make_backend(status=500)
    gateway = await make_gateway(backend.url, retries=THREE, budget=RetryBudget(1.0, 1.0))
    client = await connect(gateway.url)
    for _ in range(10):
        await client.ask(chat(), headers={"x-stainless-retry-count": "1"})
    assert len(backend.log) == 11


async def test_a_pause_that_is_asked_for_is_kept(make_backend, make_gateway, connect, chat):
    backend = await make_backend()
    backend.reply_once(status=429, headers=(("retry-after", "1"),))
    gateway = await make_gateway(backend.url, retries=THREE, budget=RetryBudget(), breaker=BREAKER)
    answer = await (await connect(gateway.url)).ask(chat())
    assert answer.status == 200
    first, second = (received.received_s for received in backend.log)
    assert second - first >= 0.98
    backend.reply_once(status=429, headers=(("retry-after", "3600"),))
    answer = await (await connect(gateway.url)).ask(chat())
    assert answer.status == 429
    assert answer.headers["retry-after"] == "3600"
    assert len(backend.log) == 3
    # The pause is kept for the others, too: 60 s of it at most.
    answer = await (await connect(gateway.url)).ask(chat())
    assert answer.status == 429
    assert 50 <= int(answer.headers["retry-after"]) <= 60
    assert len(backend.log) == 3


async def test_others_wait_for_a_short_pause(make_backend, make_gateway, connect, chat):
    backend = await make_backend()
    backend.reply_once(status=429, headers=(("retry-after", "1"),))
    gateway = await make_gateway(backend.url, breaker=BREAKER)
    assert (await (await connect(gateway.url)).ask(chat())).status == 429
    answer = await (await connect(gateway.url)).ask(chat())
    assert answer.status == 200
    assert backend.log[1].received_s - backend.log[0].received_s >= 0.98


async def test_bad_requests_open_no_breaker(make_backend, make_gateway, connect, chat):
    backend = await make_backend(status=400, body=b'{"error":{"message":"maximum context length","code":"x"}}')
    gateway = await make_gateway(backend.url, breaker=BREAKER)
    client = await connect(gateway.url)
    for _ in range(12):
        assert (await client.ask(chat())).status == 400
    backend.reply()
    assert (await client.ask(chat())).status == 200


async def test_a_backend_that_fails_is_left_alone_probed_once_at_a_time_and_taken_back(
    make_backend, make_gateway, connect, chat, wait_until
):
    backend = await make_backend(status=500)
    gateway = await make_gateway(backend.url, breaker=BREAKER)
    client = await connect(gateway.url)
    for _ in range(5):
        assert (await client.ask(chat())).status == 500
    refused = await client.ask(chat())
    assert refused.status == 503
    assert "retry-after" in refused.headers
    assert len(backend.log) == 5
    backend.reply(head_delay_s=0.2)
    await asyncio.sleep(0.35)
    clients = [await connect(gateway.url) for _ in range(6)]
    answers = await asyncio.gather(*(each.ask(chat()) for each in clients))
    assert sorted(answer.status for answer in answers) == [200, 503, 503, 503, 503, 503]
    assert len(backend.log) == 6
    assert (await client.ask(chat())).status == 200
    answers = await asyncio.gather(*(each.ask(chat()) for each in clients))
    assert {answer.status for answer in answers} == {200}


async def test_a_probe_whose_client_leaves_frees_its_place(make_backend, make_gateway, connect, chat, wait_until):
    backend = await make_backend(status=500)
    gateway = await make_gateway(backend.url, breaker=BREAKER)
    client = await connect(gateway.url)
    for _ in range(5):
        await client.ask(chat())
    backend.reply(never_answer=True)
    await asyncio.sleep(0.35)
    probe = await connect(gateway.url)
    probe.send(chat())
    await wait_until(lambda: len(backend.log) == 6)
    assert (await client.ask(chat())).status == 503
    probe.close()
    await wait_until(lambda: gateway.pipeline.num_in_flight == 0)
    backend.reply()
    assert (await client.ask(chat())).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_backend_that_accepts_and_is_silent_hurts_its_own_requests_only(
    make_backend, make_gateway, connect, chat, stream
):
    hung, good = await make_backend(never_answer=True), await make_backend()
    gateway = await make_gateway(
        models={"m": [hung.url], "n": [good.url]},
        upstream=UpstreamLimits(max_connections=32, first_byte_timeout_s=1.0),
        breaker=BREAKER,
    )
    waiting = [asyncio.ensure_future((await connect(gateway.url)).ask(chat(stream=stream))) for _ in range(20)]
    while len(hung.log) < 20:
        await asyncio.sleep(0.01)
    for _ in range(20):
        answer = await (await connect(gateway.url)).ask({**chat(), "model": "n"})
        assert answer.status == 200
    assert not any(each.done() for each in waiting), "the good backend did not wait for the hung one"
    answers = await asyncio.gather(*waiting)
    assert {answer.status for answer in answers} == {504}
    assert (await (await connect(gateway.url)).ask(chat())).status == 503, "its breaker is open"


async def test_a_stream_that_has_only_a_head_is_no_answer(make_backend, make_gateway, connect, chat):
    backend = await make_backend(ttft_s=60.0)
    gateway = await make_gateway(
        backend.url, upstream=UpstreamLimits(first_byte_timeout_s=0.2), breaker=BreakerConfig(open_s=60.0)
    )
    clients = [await connect(gateway.url) for _ in range(5)]
    answers = await asyncio.gather(*(client.ask(chat(stream=True)) for client in clients))
    assert {answer.status for answer in answers} == {504}
    assert (await clients[0].ask(chat())).status == 503


async def test_an_address_that_swallows_connections_costs_the_connect_timeout(
    make_backend, make_gateway, connect, chat, black_hole
):
    good = await make_backend()
    gateway = await make_gateway(
        black_hole.url, good.url, upstream=UpstreamLimits(connect_timeout_s=0.2), retries=THREE, budget=RetryBudget()
    )
    answers = [await (await connect(gateway.url)).ask(chat()) for _ in range(4)]
    assert {answer.status for answer in answers} == {200}


async def test_requests_wait_for_a_model_that_loads_and_are_no_failures(make_backend, make_gateway, connect, chat):
    backend = await make_backend()
    gateway = await make_gateway(backend.url, breaker=BREAKER)
    gateway.pools.set_phase("m-0", HealthPhase.LOADING)
    clients = [await connect(gateway.url) for _ in range(3)]
    waiting = [asyncio.ensure_future(client.ask(chat())) for client in clients]
    impatient = await connect(gateway.url)
    impatient.send(chat())
    await asyncio.sleep(0.2)
    impatient.close()
    assert backend.log == []
    assert not any(each.done() for each in waiting)
    gateway.pools.set_phase("m-0", HealthPhase.READY)
    answers = await asyncio.gather(*waiting)
    assert {answer.status for answer in answers} == {200}
    assert len(backend.log) == 3
    gateway.pools.set_phase("m-0", HealthPhase.DOWN)
    assert (await clients[0].ask(chat())).status == 503


async def test_a_drain_takes_requests_for_a_while_finishes_streams_and_tells_the_rest(
    make_backend, make_gateway, connect, chat, wait_until
):
    backend = await make_backend(tokens=("a",) * 4, itl_s=0.1)
    gateway = await make_gateway(backend.url, drain=DrainSettings(propagation_s=0.3, timeout_s=1.2))
    streaming, late, endless = [await connect(gateway.url) for _ in range(3)]
    streaming.send(chat(stream=True))
    await streaming.head()
    drained = gateway.pipeline.drain.begin(gateway.server.stop_accepting)
    assert not gateway.pipeline.drain.ready
    assert (await late.ask(chat())).status == 200, "whoever has not heard of the drain is still served"
    backend.reply(tokens=("b",) * 1000, itl_s=0.05)
    endless.send(chat(stream=True))
    status, _ = await endless.head()
    assert status == 200
    chunks = []
    while chunk := await streaming.chunk():
        chunks.append(chunk)
    assert chunks[-1].endswith(b"[DONE]\n\n")
    await wait_until(lambda: not gateway.pipeline.drain.accepting)
    rest = await asyncio.wait_for(endless.reader.read(), 5.0)
    assert b'"error"' in rest
    assert b"shutting down" in rest
    assert b"retry: 1000\n" in rest
    assert b"[DONE]" not in rest
    assert await drained is False
    assert gateway.exchanges[-1].outcome is Outcome.REJECTED_SHUTTING_DOWN


async def test_who_waits_for_a_first_byte_gets_503_and_when_to_come_back(
    make_backend, make_gateway, connect, chat, wait_until
):
    backend = await make_backend(never_answer=True)
    gateway = await make_gateway(backend.url, drain=DrainSettings(propagation_s=0.0, timeout_s=0.3))
    client = await connect(gateway.url)
    client.send(chat())
    while not backend.log:
        await asyncio.sleep(0.01)
    began_s = time.monotonic()
    assert await gateway.pipeline.drain.begin(gateway.server.stop_accepting) is False
    answer = await client.answer()
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"
    assert time.monotonic() - began_s < 5.0
    await wait_until(lambda: backend.log[0].aborted_s is not None)
