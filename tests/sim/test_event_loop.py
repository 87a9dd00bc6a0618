"""Order, cancelling and time of the event loop."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.sim.event_loop import EventLoop


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-2, 2), st.booleans()), max_size=60))
def test_events_happen_by_time_then_priority_then_order_of_booking(entries):
    loop, happened = EventLoop(), []
    handles = []
    for number, (time_s, priority, _) in enumerate(entries):
        handles.append(loop.at(float(time_s), lambda n=number: happened.append((loop.now_s(), n)), priority=priority))
    for handle, (_, _, cancelled) in zip(handles, entries, strict=True):
        if cancelled:
            handle.cancel()
            handle.cancel()
    expected = sorted(
        (float(time_s), priority, number) for number, (time_s, priority, cancelled) in enumerate(entries) if not cancelled
    )
    assert loop.num_pending == len(expected)
    loop.run()
    assert happened == [(time_s, number) for time_s, _, number in expected]
    assert loop.num_pending == 0
    assert not any(handle.is_pending for handle in handles)


def test_run_until_includes_the_moment_and_leaves_the_clock_there():
    loop, happened = EventLoop(), []
    for time_s in (1.0, 2.0, 2.5):
        loop.at(time_s, lambda t=time_s: happened.append(t))
    loop.run(2.0)
    assert (happened, loop.now_s(), loop.next_time_s) == ([1.0, 2.0], 2.0, 2.5)
    loop.run(2.25)
    assert loop.now_s() == 2.25
    loop.run()
    assert (happened[-1], loop.next_time_s) == (2.5, math.inf)


def test_an_event_may_book_others_for_the_same_moment():
    loop, happened = EventLoop(), []
    loop.at(1.0, lambda: loop.after(0.0, lambda: happened.append(loop.now_s())))
    loop.run(1.0)
    assert happened == [1.0]


def test_stop_keeps_what_is_pending():
    loop, happened = EventLoop(), []
    loop.at(1.0, loop.stop)
    loop.at(1.0, lambda: happened.append(1))
    loop.run(5.0)
    assert (happened, loop.now_s(), loop.num_pending) == ([], 1.0, 1)


@pytest.mark.parametrize("time_s", [0.5, -1.0, math.inf, math.nan])
def test_past_and_endless_times_are_refused(time_s):
    loop = EventLoop()
    loop.at(1.0, lambda: None)
    loop.run()
    with pytest.raises(ValueError, match="finite time from 1"):
        loop.at(time_s, lambda: None)


def test_cancelled_events_do_not_pile_up():
    loop = EventLoop()
    loop.at(1e9, lambda: None)
    for _ in range(10_000):
        loop.at(1e6, lambda: None).cancel()
    assert len(loop._queue) < 1000
    assert loop.num_pending == 1
