import asyncio
import gc
import logging
from random import Random

import pytest

from argosy.engine.core.clock import ManualClock
from argosy.fleet.gateway.dispatcher import PoolDispatcher
from argosy.fleet.policies.fair_queue import FairQueue
from argosy.fleet.policies.outcomes import Outcome, RequestDropped
from argosy.fleet.policies.priorities import ClassSettings, Priority, QueueSettings
from argosy.fleet.policies.queued_request import QueuedRequest
from argosy.fleet.policies.saturation import Room


class Pool:
    """A pool of so many places, and a dispatcher in front of it on a clock that stands still."""

    def __init__(self, places: int, settings: QueueSettings | None = None, **arguments):
        self.places = places
        self.num_ready = 1
        self.clock = ManualClock()
        arguments.setdefault("poll_s", 60.0)
        self.dispatcher = PoolDispatcher(FairQueue(settings), self.clock.now_s, self.room, **arguments)

    def room(self, num_in_flight: int, in_flight_tokens: int, now_s: float) -> Room:
        inf = float("inf")
        return Room(self.num_ready, self.places, self.places - num_in_flight, inf, inf, num_in_flight / self.places)

    async def wait(self, name: str, priority=Priority.STANDARD, **fields):
        return await self.dispatcher.enter(QueuedRequest(name, fields.pop("tenant", name), priority, 10, **fields))

    def enter(self, name: str, priority=Priority.STANDARD, **fields) -> asyncio.Task:
        return asyncio.create_task(self.wait(name, priority, **fields))


async def settle_down():
    for _ in range(5):
        await asyncio.sleep(0)


async def outcome_of(task: asyncio.Task) -> Outcome:
    with pytest.raises(RequestDropped) as dropped:
        await task
    return dropped.value.outcome


async def test_who_finds_room_goes_at_once_and_who_does_not_goes_when_one_leaves():
    pool = Pool(1)
    first = await pool.enter("a")
    second, third = pool.enter("b"), pool.enter("c")
    await settle_down()
    assert not second.done()
    first.leave(10)
    first.leave(10)
    await settle_down()
    assert (second.done(), third.done()) == (True, False)
    pool.dispatcher.check_invariants()
    (await second).leave(10)
    (await third).leave(10)
    assert pool.dispatcher.queue.num_in_flight == 0
    pool.dispatcher.check_invariants()


async def test_a_place_given_to_one_who_was_cancelled_meanwhile_goes_to_the_next():
    pool = Pool(1)
    first = await pool.enter("a")
    second, third = pool.enter("b"), pool.enter("c")
    await settle_down()
    first.leave(10)  # b's waiter is woken, its task has not run
    second.cancel()
    await settle_down()
    assert second.cancelled()
    (await asyncio.wait_for(third, 5.0)).leave(10)
    pool.dispatcher.check_invariants()


async def test_one_cancelled_in_the_same_instant_does_not_get_the_place():
    pool = Pool(1)
    first = await pool.enter("a")
    second, third = pool.enter("b"), pool.enter("c")
    await settle_down()
    second.cancel()  # its waiter is cancelled, its task has not run
    first.leave(10)
    await settle_down()
    assert second.cancelled()
    (await asyncio.wait_for(third, 5.0)).leave(10)
    pool.dispatcher.check_invariants()


async def test_one_who_leaves_the_queue_leaves_nothing_behind():
    pool = Pool(1)
    first = await pool.enter("a")
    second = pool.enter("b")
    await settle_down()
    second.cancel()
    await settle_down()
    assert pool.dispatcher.queue.num_waiting == 0
    first.leave(10)
    assert pool.dispatcher.queue.num_in_flight == 0
    pool.dispatcher.check_invariants()


async def test_a_full_queue_refuses_and_says_when_to_come_back():
    pool = Pool(1, QueueSettings(max_requests=1))
    await pool.enter("a")
    waiting = pool.enter("b")
    await settle_down()
    with pytest.raises(RequestDropped) as dropped:
        await pool.enter("c", tenant="b")
    assert dropped.value.outcome is Outcome.REJECTED_CAPACITY
    assert dropped.value.headers()["retry-after"] == "1"
    assert not waiting.done()
    waiting.cancel()


async def test_the_ttl_ends_a_wait_by_the_timer_alone():
    pool = Pool(1)
    held = await pool.enter("a")
    waiting = pool.enter("b", ttl_s=0.02)
    await settle_down()
    pool.clock.advance(0.02)
    assert await asyncio.wait_for(outcome_of(waiting), 5.0) is Outcome.EVICTED_TTL
    held.leave(10)
    pool.dispatcher.check_invariants()


async def test_a_wait_for_backends_that_never_came_ends_in_503():
    pool = Pool(1, may_wait=lambda now_s: True)
    pool.num_ready = 0
    waiting = pool.enter("a", ttl_s=0.02)
    await settle_down()
    pool.clock.advance(0.02)
    assert await asyncio.wait_for(outcome_of(waiting), 5.0) is Outcome.REJECTED_NO_BACKEND


async def test_an_empty_pool_refuses_at_once_and_one_that_loads_is_waited_for():
    loading = False
    pool = Pool(1, may_wait=lambda now_s: loading, poll_s=0.01)
    pool.num_ready = 0
    assert await outcome_of(pool.enter("a")) is Outcome.REJECTED_NO_BACKEND
    loading = True
    waiting = pool.enter("b")
    await settle_down()
    assert not waiting.done()
    pool.num_ready = 1  # and nobody pokes
    (await asyncio.wait_for(waiting, 5.0)).leave(10)


async def test_a_poke_is_enough():
    pool = Pool(1)
    await pool.enter("a")
    waiting = pool.enter("b")
    await settle_down()
    pool.places = 2
    await settle_down()
    assert not waiting.done()
    pool.dispatcher.poke()
    await asyncio.wait_for(waiting, 5.0)


async def test_a_critical_request_has_a_running_best_effort_one_end():
    pool = Pool(2)
    standard = await pool.enter("s")
    best_effort = await pool.enter("b", Priority.BEST_EFFORT)
    told = []
    best_effort.on_preempt(told.append)
    critical = pool.enter("c", Priority.CRITICAL)
    await settle_down()
    assert [dropped.outcome for dropped in told] == [Outcome.EVICTED_PRIORITY]
    assert not critical.done()
    pool.dispatcher.poke()
    assert len(told) == 1
    best_effort.leave(3)
    (await critical).leave(10)
    standard.leave(10)
    pool.dispatcher.check_invariants()


async def test_who_asks_late_whether_he_must_go_is_told_at_once():
    pool = Pool(1)
    best_effort = await pool.enter("b", Priority.BEST_EFFORT)
    critical = pool.enter("c", Priority.CRITICAL)
    await settle_down()
    told = []
    best_effort.on_preempt(told.append)
    assert len(told) == 1
    best_effort.leave(0)
    await critical


async def test_closing_ends_every_wait_and_lets_nobody_in():
    pool = Pool(1)
    held = await pool.enter("a")
    waiting = [pool.enter(f"w{i}") for i in range(3)]
    await settle_down()
    pool.dispatcher.close()
    assert [await outcome_of(task) for task in waiting] == [Outcome.REJECTED_SHUTTING_DOWN] * 3
    assert await outcome_of(pool.enter("late")) is Outcome.REJECTED_SHUTTING_DOWN
    held.leave(10)
    pool.dispatcher.check_invariants()


async def test_a_refusal_that_comes_with_a_cancellation_is_not_complained_of(caplog):
    pool = Pool(1)
    await pool.enter("a")
    waiting = pool.enter("b")
    await settle_down()
    pool.dispatcher.close()
    waiting.cancel()
    await settle_down()
    assert waiting.cancelled()
    del waiting
    gc.collect()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_saturation_counts_what_was_let_go():
    pool = Pool(4)
    assert pool.dispatcher.saturation == 0.0
    held = await pool.enter("a")
    assert pool.dispatcher.saturation == 0.25
    held.leave(10)
    assert pool.dispatcher.saturation == 0.0


@pytest.mark.parametrize("seed", range(5))
async def test_nothing_is_lost_or_let_in_twice_whatever_is_cancelled_when(seed):
    """Random clients that leave at any time, before and after they get a place: never over the limit, nothing left over."""
    rng = Random(seed)
    small = ClassSettings(max_requests=20, ttl_s=5.0)
    pool = Pool(3, QueueSettings(critical=small, standard=small, best_effort=small, max_requests=40))
    inside = most_inside = 0

    async def client(number: int):
        nonlocal inside, most_inside
        try:
            ticket = await pool.wait(f"r{number}", rng.choice(list(Priority)), tenant=f"t{rng.randrange(4)}")
        except RequestDropped:
            return "dropped"
        inside += 1
        most_inside = max(most_inside, inside)
        try:
            for _ in range(rng.randrange(12)):
                await asyncio.sleep(0)
        finally:
            inside -= 1
            ticket.leave(rng.randrange(20))
        return "served"

    tasks = []
    for number in range(400):
        tasks.append(asyncio.create_task(client(number)))
        if rng.random() < 0.3:
            rng.choice(tasks).cancel()
        if rng.random() < 0.3:
            pool.clock.advance(rng.random())
        for _ in range(rng.randrange(3)):
            await asyncio.sleep(0)
        pool.dispatcher.check_invariants()
    ends = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30.0)
    assert ends.count("served") > 100
    assert all(end in ("served", "dropped") or isinstance(end, asyncio.CancelledError) for end in ends)
    assert most_inside == 3
    await settle_down()
    assert pool.dispatcher.queue.num_in_flight == pool.dispatcher.queue.num_waiting == 0
    pool.dispatcher.check_invariants()
