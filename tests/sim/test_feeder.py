"""Arrivals come in time, one at a time, and closed loops react to ends."""

from __future__ import annotations

import pytest

from argosy.errors import SimulationError
from argosy.sim.event_loop import EventLoop
from argosy.sim.feeder import Feeder
from argosy.sim.workload.trace_request import OpenLoop


def test_an_open_loop_is_read_one_arrival_ahead(sim):
    read = []

    def endless():
        for number in range(10**9):
            read.append(number)
            yield sim.request(f"q{number}", float(number))

    loop, offered = EventLoop(), []
    feeder = Feeder(loop, OpenLoop(endless()), lambda one: offered.append((one.request_id, loop.now_s())))
    feeder.start()
    loop.run(3.5)
    assert offered == [(f"q{number}", float(number)) for number in range(4)]
    assert len(read) == 5
    assert feeder.num_offered == 4
    assert loop.num_pending == 1


def test_a_closed_loop_is_told_of_ends(sim):
    class Echo(OpenLoop):
        def on_finish(self, request, now_s):
            return () if now_s > 5 else (sim.request(request.request_id + "x", now_s + 1.0),)

    loop, offered = EventLoop(), []

    def serve(one) -> None:
        offered.append((one.request_id, loop.now_s()))
        loop.after(0.5, lambda: feeder.finished(one))

    feeder = Feeder(loop, Echo([sim.request("a", 1.0)]), serve)
    feeder.start()
    loop.run()
    assert offered == [("a", 1.0), ("ax", 2.5), ("axx", 4.0), ("axxx", 5.5)]


def test_a_trace_that_goes_back_in_time_is_refused(sim):
    loop = EventLoop()
    feeder = Feeder(loop, OpenLoop([sim.request("a", 2.0), sim.request("b", 1.0)]), lambda one: None)
    feeder.start()
    with pytest.raises(SimulationError, match=r"request b arrives at 1.0 s, but it is 2.0 s already"):
        loop.run()
