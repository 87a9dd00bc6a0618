"""Whole gateways whose limits are shared: requests over sockets, a backend behind them, Redis beside them."""

import asyncio
from dataclasses import replace

import pytest

from argosy.fleet.policies.limits import Scope

KEY = Scope("key", "k1")


@pytest.fixture
async def make_sharing(make_gateway, make_guarded, make_backend):
    """`await make_sharing(server, count, **limits)` starts gateways that share the limits of the one key there is."""
    backends = []

    async def make(server, count, *, backend=None, ledger=None, **limits):
        backends.append(await make_backend(**(backend or {})))
        gateways = []
        for i in range(count):
            gateway = await make_gateway(backends[0].url)
            guarded = await make_guarded(server.url, f"gateway-{i}", **(ledger or {}))
            gateway.pipeline.stages = replace(gateway.pipeline.stages, ledger=guarded)
            gateway.set_limits(**limits)
            gateways.append((gateway, guarded))
        return gateways

    return make


async def ask_all(connect, chat, gateways, count):
    async def one(gateway):
        client = await connect(gateway.url)
        return await client.ask(chat())

    async with asyncio.timeout(30.0):
        return await asyncio.gather(*(one(gateways[i % len(gateways)][0]) for i in range(count)))


def statuses(answers):
    return sorted(answer.status for answer in answers)


async def test_two_gateways_let_ten_of_twenty_pass(server, make_sharing, connect, chat):
    gateways = await make_sharing(server, 2, rpm=10)
    answers = await ask_all(connect, chat, gateways, 20)
    assert statuses(answers) == [200] * 10 + [429] * 10
    for answer in answers:
        assert answer.headers["x-ratelimit-limit-requests"] == "10"
        if answer.status == 429:
            assert answer.headers["x-ratelimit-remaining-requests"] == "0"
            assert 1 <= int(answer.headers["retry-after"]) <= 61
            assert answer.document["error"]["code"] == "rate_limit_exceeded"


async def test_two_gateways_let_ten_of_a_thousand_pass(server, make_sharing, connect, chat):
    gateways = await make_sharing(server, 2, rpm=10)
    answers = await ask_all(connect, chat, gateways, 1000)
    assert statuses(answers) == [200] * 10 + [429] * 990
    assert [guarded.num_losses for _, guarded in gateways] == [0, 0]


@pytest.mark.parametrize("phase", ["before the first byte", "in the stream"])
async def test_a_client_that_leaves_gives_its_place_back(server, make_sharing, connect, chat, eventually, phase):
    backend = {"head_delay_s": 30.0} if phase == "before the first byte" else {"itl_s": 30.0}
    ((gateway, guarded),) = await make_sharing(server, 1, backend=backend, max_parallel=1)
    for _ in range(2):
        client = await connect(gateway.url)
        client.send(chat(stream=True))
        await eventually(lambda: guarded.num_leases == 1)
        if phase == "in the stream":
            assert (await client.head())[0] == 200
        client.close()
        await eventually(lambda: guarded.num_leases == 0 and guarded.num_pending == 0)
        assert (await guarded.shared.usage(KEY)).parallel == 0


async def test_a_frozen_redis_hangs_no_request(own_server, make_sharing, connect, chat, eventually):
    ((gateway, guarded),) = await make_sharing(own_server, 1, ledger={"replicas": 2}, rpm=20)
    assert statuses(await ask_all(connect, chat, [(gateway, guarded)], 5)) == [200] * 5
    own_server.freeze()
    answers = await ask_all(connect, chat, [(gateway, guarded)], 15)
    assert statuses(answers) == [200] * 10 + [429] * 5
    own_server.thaw()
    await eventually(lambda: not guarded.is_lost and guarded.num_pending == 0)
    assert statuses(await ask_all(connect, chat, [(gateway, guarded)], 5)) == [200] * 5
    assert (await guarded.shared.usage(KEY)).parallel == 0


async def test_without_redis_a_gateway_may_be_told_to_let_nothing_pass(own_server, make_sharing, connect, chat):
    ((gateway, guarded),) = await make_sharing(own_server, 1, ledger={"on_loss": "closed"}, rpm=20)
    own_server.stop()
    answers = await ask_all(connect, chat, [(gateway, guarded)], 5)
    assert statuses(answers) == [503] * 5
    assert {answer.document["error"]["code"] for answer in answers} == {"store_unavailable"}
    assert all("retry-after" in answer.headers for answer in answers)
