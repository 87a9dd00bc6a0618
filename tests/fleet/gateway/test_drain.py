import asyncio
from contextlib import ExitStack

import pytest

from argosy.errors import ConfigError
from argosy.fleet.gateway.config_operations import DrainSettings
from argosy.fleet.gateway.drain import Drain, DrainPhase
from argosy.fleet.policies.outcomes import Outcome, RequestDropped


class Sleeps:
    """Sleeps that end when they are told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, asyncio.Future]] = []

    def __call__(self, delay_s: float) -> asyncio.Future:
        future = asyncio.get_running_loop().create_future()
        self.asked.append((delay_s, future))
        return future

    async def end(self, delay_s: float) -> None:
        await self.settle()
        asked, future = self.asked[-1]
        assert asked == delay_s
        future.set_result(None)
        await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.fixture
def sleeps() -> Sleeps:
    return Sleeps()


@pytest.fixture
def drain(sleeps) -> Drain:
    return Drain(DrainSettings(propagation_s=5.0, timeout_s=60.0), flush_s=3.0, sleep=sleeps)


def no_cut(error: RequestDropped) -> None:
    raise AssertionError("it must not be cut")


async def test_ready_ends_at_once_and_requests_are_taken_until_load_balancers_know(drain, sleeps):
    closed = []
    assert drain.ready
    task = drain.begin(lambda: closed.append(drain.phase))
    assert not drain.ready
    assert drain.accepting
    with drain.entered(no_cut):
        assert drain.begin() is task
    await sleeps.end(5.0)
    assert not drain.accepting
    assert closed == [DrainPhase.CLOSED]
    with pytest.raises(RequestDropped) as refused, drain.entered(no_cut):
        pass
    assert refused.value.outcome is Outcome.REJECTED_SHUTTING_DOWN
    assert refused.value.http_status == 503
    assert refused.value.headers()["retry-after"] == "1"
    await asyncio.wait_for(task, 5.0)
    assert task.result() is True
    assert drain.phase is DrainPhase.DONE


async def test_streams_are_waited_for(drain, sleeps):
    task = drain.begin()
    with drain.entered(no_cut):
        await sleeps.end(5.0)
        assert drain.phase is DrainPhase.CLOSED
        assert not task.done()
    await sleeps.settle()
    assert drain.phase is DrainPhase.DONE
    assert task.result() is True
    assert drain.in_flight == 0


async def test_what_takes_longer_than_the_timeout_is_told_and_given_time_to_leave(drain, sleeps):
    cut = []
    task = drain.begin()
    with ExitStack() as streams:
        for _ in range(2):
            streams.enter_context(drain.entered(cut.append))
        await sleeps.end(5.0)
        await sleeps.end(60.0)
        assert drain.phase is DrainPhase.CUT
        assert [error.outcome for error in cut] == [Outcome.REJECTED_SHUTTING_DOWN] * 2
        assert cut[0].retry_after_s == 1.0
        assert not task.done()
    await sleeps.settle()
    assert task.result() is False
    assert drain.num_cut == 2


async def test_one_that_cannot_be_cut_keeps_nobody(drain, sleeps):
    cut = []
    task = drain.begin()
    with drain.entered(no_cut), drain.entered(cut.append):
        await sleeps.end(5.0)
        await sleeps.end(60.0)
        assert len(cut) == 1
        await sleeps.end(3.0)
        assert task.done()


async def test_a_request_that_fails_is_counted_out(drain):
    def fail() -> None:
        with drain.entered(no_cut):
            assert drain.in_flight == 1
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        fail()
    assert drain.in_flight == 0


async def test_times_of_zero_end_at_once():
    drain = Drain(DrainSettings(propagation_s=0.0, timeout_s=0.0), flush_s=0.0)
    assert await asyncio.wait_for(drain.begin(), 5.0)
    with pytest.raises(ConfigError):
        DrainSettings(timeout_s=-1.0)
