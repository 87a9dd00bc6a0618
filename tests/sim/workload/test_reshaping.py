from collections.abc import Callable, Iterable, Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from argosy.errors import ConfigError
from argosy.sim.workload.reshaping import (
    Limited,
    RateScaled,
    Retimed,
    Window,
    repeated,
    tagged,
    with_lengths,
    with_limits,
)
from argosy.sim.workload.trace_request import OpenLoop, Segment, TraceRequest

Play = Callable[..., list[tuple[TraceRequest, float]]]
TIMES = st.lists(st.floats(0, 1000), min_size=1, max_size=30).map(sorted)


def requests(times: Iterable[float]) -> list[TraceRequest]:
    return [TraceRequest(f"a/{n}", time_s, (Segment(n, 10),), 5) for n, time_s in enumerate(times)]


def arrivals(source: Iterable[TraceRequest]) -> list[float]:
    return [request.arrival_s for request in source]


class Echo:
    """Every request is followed once, 10 s after its end."""

    def __init__(self, times: Iterable[float]) -> None:
        self._times = times

    def __iter__(self) -> Iterator[TraceRequest]:
        return iter(requests(self._times))

    def on_finish(self, request: TraceRequest, now_s: float) -> list[TraceRequest]:
        if request.request_id.endswith("!"):
            return []
        return [TraceRequest(request.request_id + "!", now_s + 10, (Segment(99, 10),), 5)]


def outcome(play: Play, source: object, service_s: float = 1.0) -> dict[str, float]:
    return {request.request_id: request.arrival_s for request, _ in play(source, service_s)}


class TestWindow:
    @given(times=TIMES, from_s=st.floats(0, 500), length_s=st.floats(1, 500))
    def test_it_takes_what_is_inside_and_starts_at_zero(self, times: list[float], from_s: float, length_s: float):
        inside = Window(OpenLoop(requests(times)), from_s=from_s, to_s=from_s + length_s)
        assert arrivals(inside) == [t - from_s for t in times if from_s <= t < from_s + length_s]

    def test_it_can_start_later_and_without_end(self):
        assert arrivals(Window(OpenLoop(requests([0, 1, 2.5])), start_s=10)) == [10, 11, 12.5]
        assert arrivals(Window(OpenLoop(requests([0, 1, 2.5])), from_s=1, start_s=10)) == [10, 11.5]

    def test_it_stops_reading_at_its_end(self):
        def endless() -> Iterator[TraceRequest]:
            yield from requests([0, 1, 2])
            raise AssertionError("read beyond the window")

        assert arrivals(Window(OpenLoop(endless()), to_s=2)) == [0, 1]

    def test_what_follows_is_in_the_same_time_and_ends_with_the_window(self, play: Play):
        assert outcome(play, Window(Echo([0, 5]), to_s=15, start_s=100)) == {"a/0": 100, "a/1": 105, "a/0!": 111}

    def test_an_empty_window_is_refused(self):
        with pytest.raises(ConfigError, match="to_s must be above from_s"):
            Window(OpenLoop([]), from_s=5, to_s=5)


class TestRateScaled:
    @given(times=TIMES, factor=st.floats(0.01, 100))
    def test_time_is_compressed(self, times: list[float], factor: float):
        assert arrivals(RateScaled(OpenLoop(requests(times)), factor)) == [t / factor for t in times]

    def test_times_to_think_shrink_alike(self, play: Play):
        assert outcome(play, RateScaled(Echo([8]), 4)) == {"a/0": 2, "a/0!": pytest.approx(2 + 1 + 10 / 4)}


@given(now_s=st.floats(0, 1e6), factor=st.floats(0.01, 100), start_s=st.floats(0, 1e3))
# Taking the start off and adding it again rounds down to 1.
@example(now_s=1 + 2**-52, factor=1.0, start_s=2**-53)
def test_nothing_arrives_before_its_cause(now_s: float, factor: float, start_s: float):
    class AtOnce(Echo):
        def on_finish(self, request: TraceRequest, now_s: float) -> list[TraceRequest]:
            return [request.arriving_at(max(0.0, now_s))]

    now_s = max(now_s, start_s)
    for source in (RateScaled(AtOnce([]), factor), Window(AtOnce([]), start_s=start_s)):
        (following,) = source.on_finish(requests([0])[0], now_s)
        assert following.arrival_s >= now_s


def test_other_times_in_the_same_order(play: Play):
    source = requests([0, 0, 7])
    assert arrivals(Retimed(OpenLoop(source), iter([1.0, 2.0, 3.0, 4.0]))) == [1, 2, 3]
    assert [r.request_id for r in Retimed(OpenLoop(source), iter([1.0, 2.0]))] == ["a/0", "a/1"]
    assert outcome(play, Retimed(Echo([0]), iter([3.0]))) == {"a/0": 3, "a/0!": 14}


def test_no_time_is_drawn_for_a_request_that_is_not_there():
    drawn = iter([1.0, 2.0])
    list(Retimed(OpenLoop(requests([0])), drawn))
    assert next(drawn) == 2.0


class TestLimited:
    @pytest.mark.parametrize("limit", [1, 2, 3, 9])
    def test_it_counts_arrivals(self, limit: int):
        assert arrivals(Limited(OpenLoop(requests([0, 1, 2])), limit)) == [0, 1, 2][:limit]

    def test_it_takes_no_more_from_the_source_than_it_gives(self):
        source = iter(requests([0, 1, 2]))
        list(Limited(OpenLoop(source), 2))
        assert next(source).arrival_s == 2

    def test_it_counts_what_follows(self, play: Play):
        # Arrivals at 0, 2, 30 and what follows at 11 and 13; one arrival is always asked for ahead.
        assert outcome(play, Limited(Echo([0, 2, 30]), 4)) == {"a/0": 0, "a/1": 2, "a/2": 30, "a/0!": 11}
        assert len(outcome(play, Limited(Echo([0, 2, 30]), 100))) == 6


class TestRepeated:
    def test_a_pass_lasts_its_period(self):
        assert arrivals(repeated(lambda k: OpenLoop(requests([1, 2])), 3, 10)) == [1, 2, 11, 12, 21, 22]

    def test_without_a_period_it_lasts_one_mean_gap_beyond_its_last_arrival(self):
        assert arrivals(repeated(lambda k: OpenLoop(requests([1, 2, 5])), 2, None)) == [1, 2, 5, 8, 9, 12]

    def test_each_pass_is_made_for_its_number(self):
        made = repeated(lambda k: OpenLoop([TraceRequest(f"pass {k}", 0.0, (Segment(1, 1),), 1)]), 3, 1)
        assert [request.request_id for request in made] == ["pass 0", "pass 1", "pass 2"]

    def test_arrivals_beyond_the_period_are_refused(self):
        with pytest.raises(ConfigError, match="arrival at 10 s, not before its period_s of 10"):
            list(repeated(lambda k: OpenLoop(requests([1, 10])), 2, 10))

    def test_one_moment_has_no_mean_gap(self):
        with pytest.raises(ConfigError, match="needs a period_s"):
            list(repeated(lambda k: OpenLoop(requests([3, 3])), 2, None))
        assert arrivals(repeated(lambda k: OpenLoop(requests([3, 3])), 1, None)) == [3, 3]
        with pytest.raises(ConfigError, match="needs a period_s"):
            list(repeated(lambda k: OpenLoop([]), 2, None))


def test_changes_reach_arrivals_and_what_follows(play: Play):
    def served(source: object) -> list[TraceRequest]:
        return [request for request, _ in play(source)]

    assert [r.num_prompt_tokens for r in served(with_lengths(Echo([0]), 2.0, 0.4))] == [20, 20]
    assert [r.output_tokens for r in served(with_lengths(Echo([0]), 2.0, 0.4))] == [2, 2]
    assert [(r.num_prompt_tokens, r.output_tokens) for r in served(with_limits(Echo([0]), 7, 3))] == [(7, 3)] * 2
    assert [(r.tenant, r.priority, r.timeout_s) for r in served(tagged(Echo([0]), "acme", 0, 5.0))] == [("acme", 0, 5.0)] * 2


def test_tags_that_are_not_given_stay():
    request = TraceRequest("a", 0.0, (Segment(1, 1),), 1, tenant="own", priority=3, timeout_s=2.0)
    (kept,) = tagged(OpenLoop([request]), None, None, None)
    assert kept is request
    (changed,) = tagged(OpenLoop([request]), None, 0, None)
    assert (changed.tenant, changed.priority, changed.timeout_s) == ("own", 0, 2.0)
