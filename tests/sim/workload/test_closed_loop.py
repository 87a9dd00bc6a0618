import itertools
from collections.abc import Callable

import pytest

from argosy.sim.random_streams import RandomStreams
from argosy.sim.workload.closed_loop import ClosedLoop
from argosy.sim.workload.distributions import Distribution, Exponential, Fixed
from argosy.sim.workload.generated import GeneratedSource
from argosy.sim.workload.requests import Conversation, RequestShape
from argosy.sim.workload.trace_request import OpenLoop, Segment, Source, TraceRequest

Play = Callable[..., list[tuple[TraceRequest, float]]]


AT_ONCE = Fixed(0)


def bodies(count: int) -> OpenLoop:
    return OpenLoop([TraceRequest(f"a/{n}", 1000.0 * n, (Segment(n, 1),), 1) for n in range(count)])


def loop(source: Source, clients: int, think_s: Distribution = AT_ONCE, ramp_s: float = 0.0, seed: int = 1) -> ClosedLoop:
    return ClosedLoop("a", source, clients, think_s, ramp_s, RandomStreams(seed))


def in_flight(served: list[tuple[TraceRequest, float]]) -> list[int]:
    return [sum(start.arrival_s <= r.arrival_s < end for start, end in served) for r, _ in served]


def test_as_many_are_in_flight_as_there_are_clients(play: Play):
    served = play(loop(bodies(40), 4), service_s=2.0)
    assert [request.request_id for request, _ in served] == [f"a/{n}" for n in range(40)]
    assert set(in_flight(served)[3:]) == {4}
    assert [request.arrival_s for request, _ in served] == [2.0 * (n // 4) for n in range(40)]


def test_clients_start_over_the_ramp_and_think(play: Play):
    served = play(loop(bodies(6), 2, Fixed(3), ramp_s=1.0), service_s=2.0)
    assert [request.arrival_s for request, _ in served] == [0, 0.5, 5, 5.5, 10, 10.5]


def test_a_source_that_ends_ends_the_loop(play: Play):
    assert len(play(loop(bodies(3), 10))) == 3
    assert len(play(loop(bodies(10), 3))) == 10


def test_a_clients_times_to_think_do_not_depend_on_other_clients(play: Play):
    def first_client(clients: int) -> list[float]:
        """Gaps of client 0, told apart by conversations: each client stays in one."""
        sent = loop(bodies(400), clients, Exponential(5))
        mine, now = next(iter(sent)), 0.0
        thoughts = []
        for _ in range(20):
            now += 1
            (following,) = sent.on_finish(mine, now)
            thoughts.append(following.arrival_s - now)
            mine, now = following, following.arrival_s
        return thoughts

    assert first_client(1) == pytest.approx(first_client(7), abs=1e-9)
    assert len(set(first_client(1))) == 20


def test_a_client_stays_with_its_conversation(play: Play):
    shape = RequestShape(Fixed(5), Fixed(5), conversation=Conversation(Fixed(3), Fixed(2.0)))
    source = GeneratedSource("a", itertools.repeat(0.0, 8), shape, RandomStreams(1))
    served = play(loop(source, 2, Fixed(10)), service_s=1.0)
    assert len(served) == 24
    assert max(in_flight(served)) == 2
    # Turns 3 s apart; from the end of the last, 10 s until the client's next conversation.
    first = [r.arrival_s for r, _ in served if r.session_id in ("a/0", "a/2", "a/4", "a/6")]
    assert first == [0, 3, 6, 17, 20, 23, 34, 37, 40, 51, 54, 57]


def test_it_remembers_only_what_is_in_flight(play: Play):
    sent = loop(bodies(50), 4)
    play(sent)
    assert sent._client_of == {}
