from __future__ import annotations

import asyncio

from argosy.engine.delta_channel import DeltaChannel
from argosy.engine.wake_ups import WakeUps


async def test_a_slow_event_loop_has_one_callback_pending_however_many_steps_pass():
    loop, calls = asyncio.get_running_loop(), []
    wake_ups, channels = WakeUps(), [DeltaChannel(loop, 1) for _ in range(5)]
    original = loop.call_soon_threadsafe
    loop.call_soon_threadsafe = lambda *args: (calls.append(args), original(*args))[1]
    try:
        for _ in range(100):
            assert wake_ups.schedule(channels) == []
        assert len(calls) == 1
        await asyncio.sleep(0)
        wake_ups.schedule(channels)
        assert len(calls) == 2
    finally:
        loop.call_soon_threadsafe = original
        await asyncio.sleep(0)


def test_channels_of_a_closed_event_loop_are_reported():
    loop = asyncio.new_event_loop()
    channel = DeltaChannel(loop, 1)
    loop.close()
    wake_ups = WakeUps()
    assert wake_ups.schedule([channel]) == [channel]
    assert wake_ups.schedule([channel]) == [channel]


def test_channels_are_reported_when_their_event_loop_closes_before_the_callback_runs():
    loop = asyncio.new_event_loop()
    first, second = DeltaChannel(loop, 1), DeltaChannel(loop, 1)
    wake_ups = WakeUps()
    assert wake_ups.schedule([first]) == []
    loop.close()
    assert set(wake_ups.schedule([second])) == {first, second}
