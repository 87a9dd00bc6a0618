from __future__ import annotations

import asyncio
import gc
import random
import threading
from dataclasses import replace

import pytest

from argosy.engine.async_engine import AsyncEngine
from argosy.engine.client import EngineInfo
from argosy.engine.core.sampling_params import SamplingParams
from argosy.errors import ContextLengthExceeded, EngineUnavailable, InvalidRequest, QueueFull

INFO = EngineInfo("toy", "toy.gguf", 128, 300, 4, 64, 8, 2048, 1000, "float32", "float32", "cpu", False, True, False, {})
LONG = bytes(97 + i % 26 for i in range(60))


class Harness:
    """An engine over a scripted executor. `hold` stops the engine's thread inside the step after `num_steps` more."""

    def __init__(self, rig, max_waiting: int) -> None:
        self.rig = rig
        self.engine = AsyncEngine(rig.loop, rig.admission, replace(INFO, max_waiting=max_waiting), clock=rig.clock)

    def hold(self, num_steps: int = 0) -> None:
        self.rig.executor.entered.clear()
        self.rig.executor.permit(num_steps)

    def go_on(self) -> None:
        self.rig.executor.permit(None)

    async def entered_step(self) -> None:
        assert await asyncio.to_thread(self.rig.executor.entered.wait, 20)

    def submit(self, request_id: str = "r", prompt: bytes = b"hello", **params):
        return self.engine.submit(request_id, tuple(prompt), SamplingParams(**params))

    async def until(self, condition) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.002)

    async def all_released(self) -> None:
        await self.until(lambda: self.engine.live_requests == 0)
        self.rig.assert_nothing_is_held()


async def collect(stream) -> list:
    return [delta async for delta in stream]


async def text_of(stream) -> str:
    return "".join([delta.text async for delta in stream])


@pytest.fixture
def make_harness(make_rig):
    made: list[Harness] = []

    def make(script=None, *, engine_max_waiting: int = 1000, start: bool = True, **settings) -> Harness:
        rig = make_rig(**settings) if script is None else make_rig(script, **settings)
        harness = Harness(rig, engine_max_waiting)
        made.append(harness)
        if start:
            harness.engine.start()
        return harness

    yield make
    for harness in made:
        harness.go_on()
        harness.engine.close()
        assert harness.rig.executor.is_closed
        assert harness.engine.live_requests == 0
        last = harness.rig.sink.steps[-1]
        assert (last.num_running, last.num_waiting, last.kv_blocks_held, last.kv_blocks_cached) == (0, 0, 0, 0)


async def test_many_streams_at_once_each_get_their_own_text(make_harness):
    harness = make_harness()
    prompts = {f"r{i}": bytes(random.Random(i).choices(b"abcxyz", k=1 + i % 20)) for i in range(100)}
    streams = {r: harness.submit(r, p) for r, p in prompts.items()}
    texts = await asyncio.gather(*(text_of(s) for s in streams.values()))
    assert texts == [p.upper().decode() for p in prompts.values()]
    await harness.all_released()


async def test_submitting_and_reading_never_wait_for_a_step(make_harness):
    harness = make_harness()
    harness.hold()
    first = asyncio.create_task(text_of(harness.submit("first")))
    await harness.entered_step()
    second = harness.submit("second")  # returns although the engine is inside a step
    await asyncio.sleep(0)
    assert not first.done()
    harness.go_on()
    assert [await first, await text_of(second)] == ["HELLO", "HELLO"]


async def test_an_idle_engine_runs_no_steps_and_wakes_for_a_request(make_harness):
    harness = make_harness()
    await text_of(harness.submit())
    steps = harness.rig.executor.num_steps
    await asyncio.sleep(0.05)
    assert harness.rig.executor.num_steps == steps
    assert await text_of(harness.submit("again")) == "HELLO"


async def test_a_slow_consumer_gets_everything_in_one_delta_per_sequence(make_harness):
    harness = make_harness()
    stream = harness.submit(n=2, logprobs=0)
    await harness.until(lambda: harness.engine.live_requests == 0)
    deltas = await collect(stream)
    assert sorted((d.index, d.text, d.finish_reason) for d in deltas) == [(0, "0HELLO", "stop"), (1, "1HELLO", "stop")]
    assert all(d.num_output_tokens == len(d.token_ids) == len(d.logprobs) == 7 for d in deltas)


# ---- refusals ----


async def test_refusals_come_from_submit_itself_and_leave_nothing(make_harness):
    harness = make_harness()
    with pytest.raises(InvalidRequest):
        harness.submit("a", b"")
    with pytest.raises(ContextLengthExceeded):
        harness.submit("b", bytes(128))
    with pytest.raises(InvalidRequest):
        harness.submit("c", stop_token_ids=(300,))
    assert harness.engine.live_requests == 0
    assert await text_of(harness.submit()) == "HELLO"


async def test_requests_not_yet_seen_by_the_engine_count_against_the_queue_limit(make_harness):
    harness = make_harness(engine_max_waiting=3)
    harness.hold()
    running = harness.submit("running", n=5)
    await harness.entered_step()
    # The step under way began with one request, of whose sequences four still wait: one waiting request.
    waiting = [harness.submit(f"w{i}") for i in range(2)]
    with pytest.raises(QueueFull, match="3"):
        harness.submit("too many")
    harness.go_on()
    assert [await text_of(s) for s in waiting] == ["HELLO"] * 2
    await collect(running)
    await harness.all_released()
    assert await text_of(harness.submit("later")) == "HELLO"


async def test_an_id_can_be_used_again_only_after_its_request_has_ended(make_harness):
    harness = make_harness()
    harness.hold()
    stream = harness.submit("same")
    with pytest.raises(InvalidRequest, match="same") as caught:
        harness.submit("same")
    assert caught.value.param == "request_id"
    harness.go_on()
    await collect(stream)
    harness.hold()
    second = harness.submit("same")
    stream._abort()  # as from a thread that looked just before the first request ended: the second must go on
    harness.go_on()
    assert await text_of(second) == "HELLO"


async def test_an_engine_not_started_is_alive_but_not_ready(make_harness):
    harness = make_harness(start=False)
    assert (harness.engine.is_alive, harness.engine.is_ready) == (True, False)
    with pytest.raises(EngineUnavailable, match="not started"):
        harness.submit()


# ---- aborts ----


async def aborted(stream) -> list:
    deltas = await collect(stream)
    ends = {d.index: d.finish_reason for d in deltas if d.finish_reason is not None}
    assert set(ends.values()) == {"abort"}
    return deltas


async def test_abort_while_in_the_inbox(make_harness):
    harness = make_harness()
    harness.hold()
    blocker = harness.submit("blocker")
    await harness.entered_step()
    stream = harness.submit("r", LONG, n=2)
    stream.abort()
    harness.go_on()
    assert all(d.token_ids == () for d in await aborted(stream))
    await collect(blocker)
    await harness.all_released()


async def test_abort_while_queued_behind_others(make_harness):
    harness = make_harness(max_num_seqs=1)
    harness.hold(num_steps=2)
    running, queued = harness.submit("running", LONG), harness.submit("queued", LONG)
    await anext(aiter(running))
    queued.abort()
    harness.go_on()
    assert all(d.token_ids == () for d in await aborted(queued))


async def test_abort_in_the_middle_of_a_chunked_prompt(make_harness):
    harness = make_harness(max_num_batched_tokens=8)
    harness.hold()
    stream = harness.submit("r", LONG)
    await harness.entered_step()
    stream.abort()
    harness.go_on()
    await aborted(stream)
    await harness.all_released()
    assert harness.rig.executor.num_steps == 1


@pytest.mark.parametrize("n", [1, 4])
async def test_abort_while_decoding_stops_within_one_step_from_any_thread_and_is_idempotent(make_harness, n):
    harness = make_harness()
    harness.hold(num_steps=4)
    stream = harness.submit("r", LONG, n=n)
    deltas = aiter(stream)
    await harness.until(lambda: harness.rig.executor.num_steps == 5)
    steps = harness.rig.executor.num_steps
    threads = [threading.Thread(target=stream.abort) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    harness.go_on()
    rest = [d async for d in deltas]
    assert {d.finish_reason for d in rest if d.finish_reason} == {"abort"}
    assert sum(d.finish_reason is not None for d in rest) == n
    assert harness.rig.executor.num_steps == steps
    stream.abort()
    await harness.all_released()


async def test_abort_while_preempted(make_harness):
    harness = make_harness(num_blocks=20, max_num_seqs=2, watermark=0.0, max_model_len=80)
    scheduler, executor = harness.rig.loop.scheduler, harness.rig.executor
    harness.hold()
    first, second = harness.submit("first", b"a" * 30), harness.submit("second", b"b" * 30)
    while scheduler.num_preemptions == 0:
        before = executor.num_steps
        executor.permit(1)
        await harness.until(lambda before=before: executor.num_steps > before)
    second.abort()
    harness.go_on()
    await aborted(second)
    assert await text_of(first) == "A" * 30
    assert harness.rig.sink.requests[0].preemptions == 1
    await harness.all_released()


async def test_abort_of_a_finished_request_does_nothing(make_harness):
    harness = make_harness()
    stream = harness.submit()
    assert await text_of(stream) == "HELLO"
    stream.abort()
    assert await text_of(harness.submit("next")) == "HELLO"


@pytest.mark.parametrize("how", ["break", "aclose", "cancel", "never iterated", "iterator never started"])
async def test_a_consumer_that_goes_away_aborts_its_request(make_harness, how):
    harness = make_harness()
    harness.hold(num_steps=1)
    stream = harness.submit("r", LONG)
    if how == "break":
        async for _ in stream:
            break
    elif how == "aclose":
        deltas = aiter(stream)
        await anext(deltas)
        await deltas.aclose()
    elif how == "cancel":
        task = asyncio.create_task(collect(stream))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
    elif how == "iterator never started":
        aiter(stream)
    del stream
    gc.collect()
    harness.go_on()
    await harness.all_released()
    assert harness.rig.executor.num_steps <= 2
    assert harness.rig.sink.requests[0].finish_reasons == ("abort",)


async def test_a_stream_can_be_iterated_once(make_harness):
    harness = make_harness()
    stream = harness.submit()
    await collect(stream)
    with pytest.raises(RuntimeError, match="once"):
        aiter(stream)


def test_requests_of_an_event_loop_that_is_gone_are_aborted(make_harness):
    harness = make_harness()
    harness.hold()
    kept = []

    async def leave() -> None:
        kept.append(harness.submit("r", LONG))

    asyncio.run(leave())
    harness.go_on()

    async def wait() -> None:
        await harness.all_released()

    asyncio.run(wait())
    assert harness.rig.executor.num_steps < 5


async def test_a_thousand_requests_with_random_aborts_leave_nothing(make_harness):
    rng = random.Random(3)
    harness = make_harness(num_blocks=60, max_num_batched_tokens=64, max_waiting=2000)
    scheduler, commit = harness.rig.loop.scheduler, harness.rig.loop.scheduler.commit

    def checked_commit(*args):
        events = commit(*args)
        if harness.rig.executor.num_steps % 10 == 0:
            scheduler.check_invariants()
        return events

    scheduler.commit = checked_commit

    async def one(i: int) -> None:
        prompt, n = bytes(rng.choices(b"abc", k=rng.randint(1, 30))), rng.choice([1, 1, 1, 2])
        await asyncio.sleep(rng.random())
        stream = harness.submit(f"r{i}", prompt, n=n, stop=("CC",) if i % 5 == 0 else ())
        fate = rng.random()
        if fate < 0.2:
            stream.abort()
        texts = [""] * n
        ends = 0
        async for delta in stream:
            texts[delta.index] += delta.text
            ends += delta.finish_reason is not None
            if fate > 0.9:
                return
        assert ends == n
        if fate >= 0.2:
            for k, text in enumerate(texts):
                whole = (str(k) if n > 1 else "") + prompt.decode().upper()
                assert text == (whole.split("CC")[0] if i % 5 == 0 else whole)

    await asyncio.gather(*(one(i) for i in range(1000)))
    await harness.all_released()
    assert len(harness.rig.sink.requests) == 1000


# ---- the end ----


async def test_a_lost_executor_fails_streams_and_later_requests(make_harness):
    harness = make_harness()
    harness.rig.executor.fail_at = 3
    streams = [harness.submit(f"r{i}", n=1 + i) for i in range(2)]
    for stream in streams:
        with pytest.raises(EngineUnavailable, match=r"^the engine stopped: RuntimeError: device lost$"):
            await collect(stream)
    assert (harness.engine.is_alive, harness.engine.is_ready) == (False, False)
    with pytest.raises(EngineUnavailable):
        harness.submit("late")
    assert await harness.engine.drain(1.0)


async def test_a_request_in_the_inbox_of_a_dying_engine_fails_too(make_harness):
    harness = make_harness()
    harness.hold()
    harness.rig.executor.fail_at = 1
    first = harness.submit("first")
    await harness.entered_step()
    late = harness.submit("late")
    harness.go_on()
    with pytest.raises(EngineUnavailable, match="device lost"):
        await collect(late)
    with pytest.raises(EngineUnavailable, match="device lost"):
        await collect(first)


async def test_a_bug_in_our_own_code_on_the_thread_fails_streams_rather_than_hanging_them(make_harness, caplog):
    harness = make_harness()
    harness.hold()
    stream = harness.submit()
    await harness.entered_step()

    def broken(request):
        raise ZeroDivisionError("bug")

    harness.rig.loop.add = broken
    second = harness.submit("second")
    harness.go_on()
    for waiting in (stream, second):
        with pytest.raises(EngineUnavailable, match="bug"):
            await collect(waiting)
    await harness.until(lambda: not harness.engine.is_alive)
    assert "the engine thread died" in caplog.text


async def test_drain_lets_running_requests_finish_and_refuses_others(make_harness):
    harness = make_harness()
    harness.hold()
    stream = harness.submit()
    await harness.entered_step()
    draining = asyncio.create_task(harness.engine.drain(20))
    await asyncio.sleep(0)
    assert (harness.engine.is_alive, harness.engine.is_ready) == (True, False)
    with pytest.raises(EngineUnavailable, match="draining"):
        harness.submit("late")
    harness.go_on()
    assert await draining
    assert await text_of(stream) == "HELLO"


async def test_drain_of_an_idle_engine_is_immediate(make_harness):
    assert await make_harness().engine.drain(0.0)


async def test_a_drain_that_takes_too_long_aborts_what_is_left(make_harness):
    harness = make_harness()
    harness.hold()
    stream = harness.submit("r", LONG)
    await harness.entered_step()
    assert not await harness.engine.drain(0.01)
    harness.go_on()
    await aborted(stream)
    await harness.all_released()


async def test_shutdown_aborts_joins_the_thread_and_is_idempotent(make_harness):
    harness = make_harness()
    harness.hold()
    stream = harness.submit("r", LONG)
    await harness.entered_step()
    closing = asyncio.create_task(harness.engine.shutdown())
    await harness.until(lambda: not harness.engine.is_alive)
    with pytest.raises(EngineUnavailable, match="stopped"):
        harness.submit("late")
    harness.go_on()
    await closing
    await aborted(stream)
    await harness.engine.shutdown()
    assert not any(t.name == "argosy-engine" and t.is_alive() for t in [harness.engine._thread])
