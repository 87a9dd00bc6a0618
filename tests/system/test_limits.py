"""Prompts at, one below and one above what the context and the KV pool hold, and more requests than may wait."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

MODEL = "smollm2-135m"
POOL_BLOCKS, BLOCK_SIZE = 4, 16
LIMITS = {
    "context": (80, "max_model_len", ("--max-model-len", "80")),
    "pool": (
        POOL_BLOCKS * BLOCK_SIZE,
        "kv_pool",
        ("--max-model-len", "128", "--num-gpu-blocks-override", str(POOL_BLOCKS), "--block-size", str(BLOCK_SIZE)),
    ),
}
QUEUE = 3

pytestmark = [pytest.mark.model, pytest.mark.slow]


class Limited:
    """A server and the longest sequence it holds, in tokens."""

    def __init__(self, server: Any, longest: int, reason: str) -> None:
        self.server, self.longest, self.reason = server, longest, reason
        self.client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)

    def complete(self, num_prompt: int, **fields: Any) -> Any:
        extra = {"ignore_eos": True, **fields.pop("extra", {})}
        return self.client.completions.create(model=MODEL, prompt=[5] * num_prompt, extra_body=extra, **fields)

    def messages(self, num_tokens: int) -> list[dict]:
        """A conversation that the model's template turns into so many tokens."""
        words = num_tokens
        while True:
            messages = [{"role": "user", "content": " tide" * words}]
            count = httpx.post(f"{self.server.url}/tokenize", json={"messages": messages}).json()["count"]
            if count == num_tokens:
                return messages
            words -= count - num_tokens


@pytest.fixture(scope="module", params=LIMITS)
def limited(request: pytest.FixtureRequest, serve: Any) -> Iterator[Limited]:
    longest, reason, flags = LIMITS[request.param]
    with serve(MODEL, *flags, "--max-num-seqs", "4", "--max-waiting", str(QUEUE), "--check-invariants") as server:
        yield Limited(server, longest, reason)
        idle = {"vllm:num_requests_running": 0, "vllm:num_requests_waiting": 0, "vllm:kv_cache_usage_perc": 0}
        assert {name: server.metric(name) for name in idle} == idle
        server.stop()
        assert "Traceback" not in server.log


def test_the_limit_is_told(limited: Limited) -> None:
    (card,) = httpx.get(f"{limited.server.url}/v1/models").json()["data"]
    assert card["max_model_len"] == limited.longest


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("room", [1, 2])
def test_a_prompt_that_leaves_room_fills_it(limited: Limited, room: int, stream: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if stream else {}
    answer = limited.complete(limited.longest - room, max_tokens=None, stream=stream, **options)
    chunks = list(answer) if stream else [answer]
    (end,) = [choice for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert (end.finish_reason, end.stop_reason) == ("length", limited.reason)
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (limited.longest - room, room)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("excess", [0, 1])
def test_a_prompt_that_leaves_no_room_is_refused_and_the_next_one_served(
    limited: Limited, excess: int, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        limited.complete(limited.longest + excess, max_tokens=1, stream=stream)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "prompt")
    assert str(limited.longest + excess) in refused.value.message
    assert limited.complete(5, max_tokens=2).usage.completion_tokens == 2


def test_chat_has_the_same_limit(limited: Limited) -> None:
    answer = limited.client.chat.completions.create(
        model=MODEL, messages=limited.messages(limited.longest - 1), extra_body={"ignore_eos": True}
    )
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (limited.longest - 1, 1)
    assert answer.choices[0].finish_reason == "length"
    for excess in (0, 1):
        with pytest.raises(openai.BadRequestError) as refused:
            limited.client.chat.completions.create(model=MODEL, messages=limited.messages(limited.longest + excess))
        assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "messages")


def test_max_tokens_is_a_ceiling_that_may_meet_the_limit_or_not(limited: Limited) -> None:
    prompt = limited.longest - 4
    ends = {n: limited.complete(prompt, max_tokens=n).choices[0] for n in (1, 3, 4, 5, 1000)}
    assert {n: end.stop_reason for n, end in ends.items()} == {
        1: "max_tokens", 3: "max_tokens", 4: "max_tokens", 5: limited.reason, 1000: limited.reason
    }  # fmt: skip
    assert {end.finish_reason for end in ends.values()} == {"length"}


def test_no_new_tokens_for_a_prompt_at_its_longest(limited: Limited) -> None:
    answer = limited.complete(limited.longest - 1, max_tokens=0, echo=True, logprobs=0)
    assert answer.usage.completion_tokens == 0
    scores = answer.choices[0].logprobs.token_logprobs
    assert len(scores) == limited.longest - 1
    assert scores[0] is None
    assert None not in scores[1:]


def test_sequences_that_outgrow_the_limit_together_all_end_and_say_why(limited: Limited) -> None:
    answer = limited.complete(limited.longest - 12, n=3, max_tokens=None)
    assert [(c.finish_reason, c.stop_reason) for c in answer.choices] == [("length", limited.reason)] * 3
    assert answer.usage.completion_tokens == 3 * 12


def test_every_request_beyond_the_queue_is_told_to_try_again_and_every_other_one_answered(limited: Limited) -> None:
    async def flood() -> list[httpx.Response]:
        body = {"prompt": [7] * 20, "max_tokens": 8, "ignore_eos": True}
        async with httpx.AsyncClient(base_url=limited.server.url, timeout=120) as client:
            return await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(40)))

    answers = asyncio.run(flood())
    seen = Counter(answer.status_code for answer in answers)
    assert set(seen) == {200, 429}
    assert seen[200] >= QUEUE
    for answer in answers:
        if answer.status_code == 429:
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["error"]["code"] == "rate_limit_exceeded"
        else:
            assert answer.json()["usage"]["completion_tokens"] == 8
