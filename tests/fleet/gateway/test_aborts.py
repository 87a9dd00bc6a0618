"""A client that leaves, in every phase of a request: the backend is told within a second, and nothing stays held.

That nothing is held (leases, queue places, bookings, connections) is checked after every test by `make_gateway`.
"""

import asyncio
import time

import orjson
import pytest

from argosy.fleet.gateway.pipeline import PipelineSettings
from argosy.fleet.gateway.prices import Price, PriceTable
from argosy.fleet.gateway.upstream import UpstreamLimits
from argosy.fleet.policies.outcomes import Outcome
from argosy.fleet.policies.retries import RetryPolicy

PHASES = ["queued", "connecting", "before first byte", "mid answer", "after the end"]
WAYS = ["plain", "retry", "fallback", "slow backend"]
HANGS = {
    "queued": {"never_answer": True},
    "connecting": {},
    "before first byte": {"never_answer": True},
    "mid answer": {"stall_after": 150},
    "after the end": {"linger_s": 30.0},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("stream", [False, True])
async def test_client_leaves(make_backend, make_gateway, black_hole, connect, chat, wait_until, stream, phase, way):
    hangs = dict(HANGS[phase])
    if not stream and phase == "after the end":
        hangs = {}
    if way == "slow backend":
        hangs["head_delay_s"] = 0.05
    target = await make_backend(**hangs)
    failing = await make_backend(status=503)
    last_url = black_hole.url if phase == "connecting" else target.url
    models = {
        "plain": {"m": [last_url]},
        "slow backend": {"m": [last_url]},
        "retry": {"m": [failing.url, last_url]},
        "fallback": {"m": [failing.url], "n": [last_url]},
    }[way]
    gateway = await make_gateway(
        models=models,
        fallbacks={"m": "n"} if way == "fallback" else None,
        settings=PipelineSettings(RetryPolicy(max_retries=1, backoff_s=0.0)),
        upstream=UpstreamLimits(connect_timeout_s=30.0),
        max_in_flight=1 if phase == "queued" else None,
    )
    gateway.set_limits(max_parallel=10, tpm=10**6, max_budget_usd=1.0)
    occupants = []
    if phase == "queued":
        # Every place is taken by requests that hang.
        failing.reply(never_answer=True)
        for model, urls in models.items():
            for _ in urls:
                occupant = await connect(gateway.url)
                occupant.send(chat(model=model))
                occupants.append(occupant)
        await wait_until(lambda: len(failing.log) + len(target.log) == len(occupants))
    client = await connect(gateway.url)
    before = len(target.log)
    client.send(chat(stream=stream))
    await _until_phase(gateway, client, target, phase, stream, before, wait_until)
    left_s = time.monotonic()
    client.close()
    for occupant in occupants:
        occupant.close()
    await wait_until(lambda: len(gateway.exchanges) == 1 + len(occupants), 1.0)
    await wait_until(lambda: all(each.aborted_s or each.completed_s for each in target.log), 1.0)
    assert all(each.completed_s or each.aborted_s - left_s < 1.0 for each in target.log)
    exchange = max(gateway.exchanges, key=lambda each: int(each.exchange_id.rpartition("-")[2]))
    if not (phase == "after the end" and not stream):
        assert (exchange.status, exchange.outcome) == (499, Outcome.EVICTED_CLIENT_GONE)
    if phase == "queued":
        assert exchange.attempts == 0
    else:
        assert exchange.attempts == (2 if way in ("retry", "fallback") else 1)
        assert exchange.pool == ("n" if way == "fallback" else "m")
    if phase == "mid answer" and stream:
        assert exchange.usage.output_tokens > 0
    if phase != "connecting":
        # The one place of the key, and of the backend, is free again.
        target.reply()
        failing.reply()
        assert (await (await connect(gateway.url)).ask(chat())).status == 200


async def _until_phase(gateway, client, target, phase, stream, before, wait_until):
    if phase == "queued":
        await wait_until(lambda: gateway.dispatcher.of("m").queue.num_waiting == 1)
    elif phase == "connecting":
        await wait_until(lambda: any(upstream.num_busy for upstream in gateway.upstreams))
        await asyncio.sleep(0.05)
    elif phase == "before first byte":
        await wait_until(lambda: len(target.log) == before + 1)
    elif phase == "mid answer":
        if stream:
            await client.head()
            assert b"Hel" in await client.chunk()
        else:
            await wait_until(lambda: bool(target.log) and target.log[-1].first_byte_s is not None)
    elif stream:
        await client.head()
        while b"[DONE]" not in await client.chunk():
            pass
    else:
        await client.answer()


async def test_a_place_is_free_before_the_last_byte(make_backend, make_gateway, connect, chat):
    """With one request at a time allowed, a client may send the next one as soon as it has its answer."""
    backend = await make_backend(linger_s=0.2)
    gateway = await make_gateway(backend.url)
    gateway.set_limits(max_parallel=1)
    for number in range(10):
        client, next_client = await connect(gateway.url), await connect(gateway.url)
        if number % 2:
            client.send(chat(stream=True))
            await client.head()
            while b"[DONE]" not in await client.chunk():
                pass
        else:
            assert (await client.ask(chat())).status == 200
        assert (await next_client.ask(chat())).status == 200


async def test_limits_hold_under_concurrency(make_backend, make_gateway, connect, chat):
    backend = await make_backend(head_delay_s=0.3)
    gateway = await make_gateway(backend.url)
    gateway.set_limits(max_parallel=10)
    clients = [await connect(gateway.url) for _ in range(60)]
    answers = await asyncio.gather(*(client.ask(chat()) for client in clients))
    assert sorted(answer.status for answer in answers) == [200] * 10 + [429] * 50
    assert len(backend.log) == 10


async def test_a_denial_says_which_limit_and_when(make_backend, make_gateway, connect, chat):
    backend = await make_backend()
    gateway = await make_gateway(backend.url)
    gateway.set_limits(rpm=1, max_parallel=5)
    client = await connect(gateway.url)
    assert (await client.ask(chat())).status == 200
    answer = await client.ask(chat())
    assert answer.status == 429
    assert answer.document["error"]["type"] == "rate_limit_error"
    assert 50 < int(answer.headers["retry-after"]) <= 61
    assert answer.headers["x-ratelimit-limit-requests"] == "1"
    assert answer.headers["x-ratelimit-remaining-requests"] == "0"
    assert answer.headers["x-should-retry"] == "true"


@pytest.mark.parametrize("max_tokens", [10**15, 2**64 - 1])
async def test_an_answer_that_may_cost_more_than_there_is_money_is_denied(
    make_backend, make_gateway, connect, chat, max_tokens
):
    gateway = await make_gateway((await make_backend()).url)
    gateway.pipeline.stages.estimator.prices = PriceTable({"m": Price(1.0, 2.0)})
    gateway.set_limits(max_budget_usd=5.0)
    answer = await (await connect(gateway.url)).ask(chat(max_tokens=max_tokens))
    assert (answer.status, answer.document["error"]["code"]) == (429, "insufficient_quota")
    gateway.set_limits(rpm=5)
    assert (await (await connect(gateway.url)).ask(chat(max_tokens=max_tokens))).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_backend_that_reports_impossible_usage_costs_no_place(make_backend, make_gateway, connect, chat, stream):
    usage = {"prompt_tokens": 2**63, "completion_tokens": 2**64 - 1}
    body = orjson.dumps({"choices": [{"message": {"content": "four token text"}}], "usage": usage})
    backend = await make_backend()
    if stream:
        backend.reply(body=b"data: %b\n\ndata: [DONE]\n\n" % body, headers=(("content-type", "text/event-stream"),))
    else:
        backend.reply(body=body)
    gateway = await make_gateway(backend.url)
    gateway.pipeline.stages.estimator.prices = PriceTable({"m": Price(1.0, 2.0)})
    gateway.set_limits(max_parallel=1, max_budget_usd=5.0, tpm=10_000)
    for _ in range(2):
        assert (await (await connect(gateway.url)).ask(chat(stream=stream, max_tokens=9))).status == 200
    assert not any(exchange.usage.is_reported for exchange in gateway.exchanges)


async def test_a_place_is_given_back_though_what_was_used_cannot_be_told(make_backend, make_gateway, connect, chat, caplog):
    gateway = await make_gateway((await make_backend()).url)
    gateway.set_limits(max_parallel=1)
    estimator = gateway.pipeline.stages.estimator
    actual, estimator.actual = estimator.actual, lambda *_: 1 / 0
    assert (await (await connect(gateway.url)).ask(chat())).status == 500
    await gateway.pipeline.settle_down()
    estimator.actual = actual
    assert (await (await connect(gateway.url)).ask(chat())).status == 200


@pytest.mark.parametrize(
    ("how", "fields"),
    [
        ({"status": 504}, {}),
        ({"status": 400}, {"messages": [{"role": "nobody"}]}),
        ({"cut_at_once": True}, {}),
        ({"close_after": 100}, {"stream": True}),
        ({}, {"model": "other"}),
        ({}, {"max_tokens": "many"}),
    ],
)
async def test_the_one_place_of_a_key_is_free_after_every_failure(
    make_backend, make_gateway, connect, chat, wait_until, how, fields
):
    backend = await make_backend()
    gateway = await make_gateway(backend.url)
    gateway.set_limits(max_parallel=1)
    for number in range(3):
        backend.reply(**how)
        client = await connect(gateway.url)
        client.send({**chat(), **fields})
        await client.head()
        await wait_until(lambda number=number: len(gateway.exchanges) == 2 * number + 1)
        backend.reply()
        assert (await (await connect(gateway.url)).ask(chat())).status == 200
