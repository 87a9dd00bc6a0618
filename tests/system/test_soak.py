"""Many streams of mixed lengths, a third of them cut at random: nothing fails, leaks or grows."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import Counter
from typing import Any

import httpx
import openai
import pytest

STREAMS = 64
DISCONNECT_SHARE = 0.3
WORDS = ("sea", "wind", "sail", "harbour", "cargo", "map", "star", "tide", "rope", "anchor", "crew", "salt", "lamp")
IDLE = {
    "vllm:num_requests_running": 0.0,
    "vllm:num_requests_waiting": 0.0,
    "vllm:kv_cache_usage_perc": 0.0,
    "argosy_http_requests_in_flight": 1.0,  # the one that asks
}


def request_body(rng: random.Random) -> dict:
    shared = "You are the mate of a merchant ship and answer the crew briefly. " * rng.choice([0, 1, 1, 4])
    text = shared + " ".join(rng.choices(WORDS, k=rng.choice([1, 8, 40, 200])))
    body = {
        "model": "smollm2-135m",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": rng.choice([1, 4, 16, 48]),
        "temperature": rng.choice([0.0, 0.8]),
        "seed": rng.randrange(2**31),
        "n": rng.choice([1, 1, 1, 2]),
    }
    if rng.random() < 0.2:
        body["stop"] = ["the ", "\n\n"]
    return body


async def one_client(client: openai.AsyncOpenAI, rng: random.Random, until: float, seen: Counter) -> None:
    while time.monotonic() < until:
        body, cut = request_body(rng), rng.random() < DISCONNECT_SHARE
        streaming = cut or rng.random() < 0.7
        if cut and rng.random() < 0.3:  # gone while it waits for a whole answer
            call = asyncio.ensure_future(client.chat.completions.create(**body))
            await asyncio.wait([call], timeout=rng.uniform(0, 1.0))
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            seen["cut"] += 1
        elif streaming:
            stream = await client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True})
            stop_after = rng.randrange(0, 12) if cut else None
            finished, usage, chunks = 0, None, 0
            async for chunk in stream:
                chunks += 1
                finished += sum(choice.finish_reason is not None for choice in chunk.choices)
                usage = chunk.usage or usage
                if stop_after is not None and chunks > stop_after:
                    break
            await stream.close()
            if stop_after is None:
                assert finished == body["n"]
                assert usage is not None
                assert 1 <= usage.completion_tokens <= body["max_tokens"] * body["n"]
            seen["cut" if cut else "streamed"] += 1
        else:
            answer = await client.chat.completions.create(**body)
            assert all(choice.finish_reason in ("stop", "length") for choice in answer.choices)
            seen["whole"] += 1


async def load(server: Any, seconds: float) -> tuple[Counter, list[int]]:
    """Run the clients and sample the server's memory once a second."""
    seen: Counter = Counter()
    until, rss_bytes = time.monotonic() + seconds, []
    limits = httpx.Limits(max_connections=2 * STREAMS)
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1",
        api_key="none",
        max_retries=0,
        timeout=300,
        http_client=httpx.AsyncClient(limits=limits, timeout=300),
    ) as client:
        clients = [asyncio.create_task(one_client(client, random.Random(i), until, seen)) for i in range(STREAMS)]
        while not all(task.done() for task in clients):
            rss_bytes.append(server.rss_bytes())
            await asyncio.wait(clients, timeout=1.0)
        await asyncio.gather(*clients)
    return seen, rss_bytes


@pytest.mark.model
@pytest.mark.slow
def test_disconnects_leave_nothing_behind(request: pytest.FixtureRequest, serve: Any) -> None:
    seconds = request.config.getoption("--soak-seconds")
    flags = ("--max-num-seqs", "32", "--num-gpu-blocks-override", "96", "--max-model-len", "1024", "--check-invariants")
    with serve("smollm2-135m", *flags) as server:
        seen, rss_bytes = asyncio.run(load(server, seconds))
        preemptions = server.metric("vllm:num_preemptions_total")
        print(f"\n{dict(seen)}; RSS MiB {[b >> 20 for b in rss_bytes]}; preemptions {preemptions}")
        assert min(seen["cut"], seen["streamed"], seen["whole"]) > 0
        deadline = time.monotonic() + 30
        while (state := {name: server.metric(name) for name in IDLE}) != IDLE and time.monotonic() < deadline:
            time.sleep(0.2)
        assert state == IDLE
        third = len(rss_bytes) // 3
        early, late = statistics.median(rss_bytes[third : 2 * third]), statistics.median(rss_bytes[2 * third :])
        assert late < 1.05 * early + (16 << 20)
        reply = httpx.post(
            f"{server.url}/v1/completions", json={"model": "smollm2-135m", "prompt": "The sea", "max_tokens": 4}
        )
        assert reply.status_code == 200
        assert server.stop() == 0
    assert "Traceback" not in server.log
    assert "violat" not in server.log
