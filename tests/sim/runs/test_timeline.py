import pytest

from argosy.sim.counted_source import CountedSource
from argosy.sim.event_loop import EventLoop
from argosy.sim.time_series import Window, Windows
from argosy.sim.timeline import FleetSample, FleetWindow, Timeline
from argosy.sim.workload.trace_request import OpenLoop, Segment, TraceRequest


def sample(replicas: int) -> FleetSample:
    return FleetSample(replicas, 1, replicas, 2, 0, 0.5 * replicas)


def test_it_looks_once_in_each_window_and_keeps_the_mean():
    loop, sizes = EventLoop(), iter(range(1, 1000))
    timeline = Timeline(loop, lambda: sample(next(sizes)), window_s=2.0)
    loop.run(9.0)
    windows = timeline.windows.windows
    assert [window.mean("replicas") for window in windows] == [1.0, 2.0, 3.0, 4.0, 5.0]
    joined = FleetWindow()
    for window in windows[:2]:
        joined.absorb(window)
    assert joined.mean("replicas") == 1.5
    assert joined.mean("usd_per_h") == 0.75
    assert FleetWindow().mean("ready") is None


def test_a_long_run_keeps_no_more_windows_than_a_short_one():
    loop = EventLoop()
    timeline = Timeline(loop, lambda: sample(3), window_s=0.01)
    loop.run(1000.0)
    assert len(timeline.windows.windows) <= 512
    assert all(window.mean("ready") == 3.0 for window in timeline.windows.windows)
    assert loop.num_pending == 1


@pytest.mark.parametrize("most", [2, 5, 100])
def test_coarser_windows_add_up_to_the_same(most):
    fine = Windows(Window, 0.5)
    for number in range(37):
        fine.at(number * 0.5).steps += number
    coarse = fine.coarsened(most)
    assert len(coarse.windows) <= most
    assert sum(window.steps for window in coarse.windows) == sum(range(37))
    assert coarse.width_s >= fine.width_s
    starts = [int(number * 0.5 / coarse.width_s) for number in range(37)]
    for index, window in enumerate(coarse.windows):
        assert window.steps == sum(number for number, place in enumerate(starts) if place == index)
    assert [window.steps for window in fine.windows] == list(range(37)), "the fine ones stay"


def request(name: str) -> TraceRequest:
    return TraceRequest(name, 0.0, (Segment(1, 1),), 1)


def test_a_source_is_done_when_the_last_of_what_follows_has_ended():
    class Reacting(OpenLoop):
        def on_finish(self, request, now_s):
            return [globals()["request"]("b")] if request.request_id == "a" else []

    done = []
    source = CountedSource(Reacting([request("a"), request("c")]))
    source.on_done = lambda: done.append(source.num_ended)
    first, second = source
    assert source.is_exhausted
    assert not source.is_done
    (following,) = source.on_finish(first, 1.0)
    source.on_finish(second, 1.0)
    assert not done
    source.on_finish(following, 2.0)
    assert done == [3]
    assert source.is_done
