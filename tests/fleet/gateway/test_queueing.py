"""The queue in the data path, over real sockets."""

import asyncio
from dataclasses import replace

import pytest

from argosy.fleet.gateway.config_operations import ClassQueueSettings
from argosy.fleet.gateway.config_operations import QueueSettings as ConfiguredQueue
from argosy.fleet.gateway.dispatch import queue_settings
from argosy.fleet.policies.outcomes import Outcome
from argosy.fleet.policies.priorities import Priority, QueueSettings

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
KEY = "sk-CANARY-0123456789"


def of_priority(gateway, priority: str) -> None:
    gateway.keys.principals[KEY] = replace(gateway.keys.principals[KEY], priority=priority)


async def until(condition) -> None:
    async with asyncio.timeout(10.0):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("header", ["x-argosy-priority", "x-llm-d-inference-objective", "x-gateway-inference-objective"])
async def test_a_critical_request_ends_one_of_best_effort_that_runs(make_backend, make_gateway, connect, header):
    backend = await make_backend(ttft_s=0.5)
    gateway = await make_gateway(backend.url, max_in_flight=1)
    of_priority(gateway, "critical")
    low, high = await connect(gateway.url), await connect(gateway.url)
    low.send(HELLO, headers={header: "best-effort"})
    await until(lambda: gateway.dispatcher.of("m").queue.num_in_flight == 1)
    high.send(HELLO)
    ended = await low.answer()
    assert (ended.status, ended.headers["x-llm-d-request-dropped-reason"]) == (429, "evicted-priority")
    assert ended.document["error"]["code"] == "preempted"
    assert (await high.answer()).status == 200
    assert {exchange.outcome for exchange in gateway.exchanges} == {Outcome.EVICTED_PRIORITY, Outcome.DISPATCHED}


async def test_a_standard_request_waits_for_one_of_best_effort(make_backend, make_gateway, connect):
    backend = await make_backend(ttft_s=0.2)
    gateway = await make_gateway(backend.url, max_in_flight=1)
    low, high = await connect(gateway.url), await connect(gateway.url)
    low.send(HELLO, headers={"x-argosy-priority": "best_effort"})
    await until(lambda: gateway.dispatcher.of("m").queue.num_in_flight == 1)
    high.send(HELLO)
    assert [(await client.answer()).status for client in (low, high)] == [200, 200]


async def test_a_class_above_that_of_the_key_is_not_to_be_had(make_backend, make_gateway, connect):
    backend = await make_backend(ttft_s=0.3)
    gateway = await make_gateway(backend.url, max_in_flight=1)
    client, waits = await connect(gateway.url), await connect(gateway.url)
    client.send(HELLO)
    await until(lambda: gateway.dispatcher.of("m").queue.num_in_flight == 1)
    waits.send(HELLO, headers={"x-argosy-priority": "critical"})
    queue = gateway.dispatcher.of("m").queue
    await until(lambda: queue.num_waiting == 1)
    assert queue.class_queue(Priority.STANDARD).num_waiting == 1
    assert [(await each.answer()).status for each in (client, waits)] == [200, 200]


async def test_an_unknown_class_is_refused(make_backend, make_gateway, connect):
    backend = await make_backend()
    gateway = await make_gateway(backend.url)
    answer = await (await connect(gateway.url)).ask(HELLO, headers={"x-argosy-priority": "urgent"})
    assert (answer.status, answer.document["error"]["param"]) == (400, "priority")


async def test_a_client_that_leaves_the_queue_frees_its_place_in_it(make_backend, make_gateway, connect):
    backend = await make_backend(ttft_s=0.3)
    gateway = await make_gateway(backend.url, max_in_flight=1)
    first, second = await connect(gateway.url), await connect(gateway.url)
    first.send(HELLO)
    queue = gateway.dispatcher.of("m").queue
    await until(lambda: queue.num_in_flight == 1)
    second.send(HELLO)
    await until(lambda: queue.num_waiting == 1)
    second.close()
    await until(lambda: queue.num_waiting == 0)
    assert (await first.answer()).status == 200
    outcomes = [exchange.outcome for exchange in gateway.exchanges]
    assert outcomes == [Outcome.EVICTED_CLIENT_GONE, Outcome.DISPATCHED]


async def test_a_burst_is_let_through_as_many_at_a_time_as_there_are_places(make_backend, make_gateway, connect):
    backend = await make_backend(ttft_s=0.02)
    gateway = await make_gateway(backend.url, max_in_flight=3)
    clients = [await connect(gateway.url) for _ in range(30)]
    most = 0

    async def watch():
        nonlocal most
        while True:
            most = max(most, gateway.dispatcher.of("m").queue.num_in_flight)
            await asyncio.sleep(0.001)

    watcher = asyncio.create_task(watch())
    answers = await asyncio.gather(*(client.ask(HELLO) for client in clients))
    watcher.cancel()
    assert {answer.status for answer in answers} == {200}
    assert most == 3


async def test_a_flood_keeps_no_light_tenant_waiting(make_backend, make_gateway, connect):
    backend = await make_backend(ttft_s=0.02)
    gateway = await make_gateway(backend.url, max_in_flight=4)
    light_keys = [f"sk-CANARY-light-{number}" for number in range(9)]
    for key in light_keys:
        gateway.keys.principals[key] = replace(gateway.keys.principals[KEY], key_id=key[-7:], tenant=key[-7:])
    flood = [await connect(gateway.url) for _ in range(100)]
    answers = [asyncio.ensure_future(client.ask({**HELLO, "max_tokens": 50})) for client in flood]
    await until(lambda: gateway.dispatcher.of("m").queue.num_waiting > 80)
    arrived = len(backend.log)
    light = [await connect(gateway.url) for _ in light_keys]
    for client, key in zip(light, light_keys, strict=True):
        client.send({**HELLO, "user": "light"}, key=key)
    assert {(await client.answer()).status for client in light} == {200}
    order = [b"light" in received.body for received in backend.log[arrived:]]
    # In the order of arrival they would come after more than eighty. Some are let go while the nine arrive.
    assert len(order) - order[::-1].index(True) <= 25
    assert {(await answer).status for answer in answers} == {200}


async def test_a_full_queue_is_a_reason_to_fall_back(make_backend, make_gateway, connect):
    slow, other = await make_backend(ttft_s=0.3), await make_backend()
    gateway = await make_gateway(models={"m": [slow.url], "n": [other.url]}, fallbacks={"m": "n"}, max_in_flight=1)
    gateway.dispatcher._queue = QueueSettings(max_requests=1)
    clients = [await connect(gateway.url) for _ in range(3)]
    queue = gateway.dispatcher.of("m").queue
    for number, client in enumerate(clients):
        client.send(HELLO)
        await until(lambda number=number: queue.num_in_flight + queue.num_waiting == min(2, number + 1))
    assert [(await client.answer()).status for client in clients] == [200, 200, 200]
    assert sorted((exchange.pool, exchange.fallbacks) for exchange in gateway.exchanges) == [("m", 0), ("m", 0), ("n", 1)]


async def test_a_full_queue_without_a_fallback_is_told(make_backend, make_gateway, connect):
    gateway = await make_gateway((await make_backend(ttft_s=0.3)).url, max_in_flight=1)
    gateway.dispatcher._queue = QueueSettings(max_requests=1)
    clients = [await connect(gateway.url) for _ in range(3)]
    queue = gateway.dispatcher.of("m").queue
    for number, client in enumerate(clients[:2]):
        client.send(HELLO)
        await until(lambda number=number: queue.num_in_flight + queue.num_waiting == number + 1)
    answer = await clients[2].ask(HELLO)
    assert (answer.status, answer.document["error"]["code"]) == (429, "queue_full")
    assert answer.headers["x-llm-d-request-dropped-reason"] == "rejected-saturated"
    assert (answer.headers["retry-after"], answer.headers["x-should-retry"]) == ("1", "true")
    assert [(await client.answer()).status for client in clients[:2]] == [200, 200]


def test_settings_of_the_file_become_those_of_the_policies():
    classes = [ClassQueueSettings(1, 10, 5.0), ClassQueueSettings(2, 20, 0.0), ClassQueueSettings(3, 30, 7.0)]
    queue, saturation = queue_settings(
        ConfiguredQueue(*classes, queue_threshold=3, kv_threshold=0.7), connections_per_backend=99, has_one_tenant=True
    )
    assert (queue.max_requests, queue.max_bytes) == (6, 60)
    assert [queue.of(each).max_requests for each in (Priority.CRITICAL, Priority.STANDARD, Priority.BEST_EFFORT)] == [
        1,
        2,
        3,
    ]
    assert queue.standard.ttl_s == 0.001
    assert (saturation.max_in_flight, saturation.max_waiting, saturation.kv_threshold) == (99, 3, 0.7)
    assert not queue.keeps_headroom_alone
    assert queue_settings(ConfiguredQueue(max_in_flight=7), connections_per_backend=99)[1].max_in_flight == 7
