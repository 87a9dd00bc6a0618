from __future__ import annotations

import asyncio

import pytest

from argosy.engine.core.plan import TokenLogprob
from argosy.engine.delta_channel import DeltaChannel
from argosy.engine.outputs import OutputDelta
from argosy.engine.wake_ups import WakeUps
from argosy.errors import EngineUnavailable


def delta(text: str, index: int = 0, *, finish: str | None = None, total: int = 1, prompt_logprobs=None) -> OutputDelta:
    logprobs = tuple(TokenLogprob(ord(c), -1.0, 1, ()) for c in text)
    ids = tuple(map(ord, text))
    return OutputDelta("r", index, text, ids, logprobs, prompt_logprobs, finish, None, "", 3, 0, total)


async def read(channel: DeltaChannel) -> list[OutputDelta]:
    deltas = []
    while (news := await channel.next_delta()) is not None:
        deltas.append(news)
    return deltas


async def test_what_a_slow_reader_missed_comes_as_one_delta_per_sequence():
    channel = DeltaChannel(asyncio.get_running_loop(), 2)
    channel.put(delta("a", prompt_logprobs=(None,)))
    channel.put(delta("x", 1))
    channel.put(delta("b", total=2))
    channel.put(delta("c", finish="stop", total=3))
    assert not channel.is_complete
    channel.put(delta("", 1, finish="abort"))
    assert channel.is_complete
    first, second = await read(channel)
    assert (first.index, first.text, first.token_ids) == (0, "abc", (97, 98, 99))
    assert (first.finish_reason, first.num_output_tokens, first.prompt_logprobs) == ("stop", 3, (None,))
    assert [p.token_id for p in first.logprobs] == [97, 98, 99]
    assert (second.index, second.text, second.finish_reason) == (1, "x", "abort")


async def test_a_reader_that_keeps_up_gets_each_delta_as_it_is():
    channel, wake_ups = DeltaChannel(asyncio.get_running_loop(), 1), WakeUps()
    reader = asyncio.create_task(read(channel))
    sent = [delta(c, finish="stop" if c == "c" else None) for c in "abc"]
    for news in sent:
        channel.put(news)
        wake_ups.schedule([channel])
        await asyncio.sleep(0.01)
    assert await reader == sent


async def test_a_failure_comes_after_what_is_pending():
    channel = DeltaChannel(asyncio.get_running_loop(), 1)
    channel.put(delta("a"))
    channel.fail(EngineUnavailable("gone"))
    assert channel.is_complete
    assert (await channel.next_delta()).text == "a"
    for _ in range(2):
        with pytest.raises(EngineUnavailable, match="gone"):
            await channel.next_delta()
