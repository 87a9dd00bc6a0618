import pytest

from argosy.errors import ConfigError, SimulationError
from argosy.fleet.policies.retries import RetryPolicy
from argosy.sim.fleet.clients import ClientBehaviour
from argosy.sim.fleet.faults import Hang
from argosy.sim.outcome import Outcome
from argosy.sim.workload.trace_request import TraceRequest

IMPATIENT = ClientBehaviour(timeout_s=2.0, retry=RetryPolicy(max_retries=3, backoff_s=0.5, max_backoff_s=0.5))


class Dialogue:
    """Each answer brings the next question, one second later."""

    def __init__(self, first: TraceRequest, turns: int, make) -> None:
        self.first, self.turns, self.make, self.ended = first, turns, make, []

    def __iter__(self):
        return iter([self.first])

    def on_finish(self, request, now_s):
        self.ended.append(request.request_id)
        return [self.make(f"t{len(self.ended)}", now_s + 1.0)] if len(self.ended) < self.turns else []


def test_what_timed_out_is_sent_again_as_a_request_of_its_own(fleet):
    bench = fleet.Bench(replicas=1, faults=[Hang(0.0, "r0", duration_s=5.0)])
    clients = bench.offer([fleet.request("a", 0.5)], IMPATIENT)
    heard = bench.run()
    assert [one.request.request_id for one in heard.outcomes] == ["a", "a~1", "a~2"]
    assert [one.outcome for one in heard.outcomes] == [Outcome.TIMED_OUT, Outcome.TIMED_OUT, Outcome.FINISHED]
    assert heard.outcome("a").finished_s == 2.5
    assert 2.5 <= heard.outcome("a~1").request.arrival_s <= 3.0
    assert (clients.num_sent, clients.num_sent_again) == (3, 2)
    bench.assert_nothing_left()


def test_the_source_hears_of_each_of_its_requests_once(fleet):
    bench = fleet.Bench(replicas=1, faults=[Hang(0.0, "r0", duration_s=5.0)])
    source = Dialogue(fleet.request("t0", 0.5), 3, fleet.request)
    bench.offer(source, IMPATIENT)
    heard = bench.run()
    assert source.ended == ["t0", "t1", "t2"]
    assert len(heard.of(Outcome.FINISHED)) == 3


def test_a_trace_has_its_own_patience(fleet):
    bench = fleet.Bench(replicas=1, faults=[Hang(0.0, "r0", duration_s=9.0)])
    bench.offer([fleet.request("a", timeout_s=1.0), fleet.request("b")], ClientBehaviour(timeout_s=2.0))
    heard = bench.run()
    assert [one.finished_s for one in heard.outcomes] == [1.0, 2.0]


def test_retries_without_a_budget_multiply_an_overload_and_a_budget_bounds_them(fleet):
    """Three times what one replica serves: every client that leaves comes back."""

    def sent(budget_ratio: float | None) -> float:
        bench = fleet.Bench(replicas=1, checked=False, max_num_seqs=2)
        behaviour = ClientBehaviour(1.0, RetryPolicy(max_retries=5, backoff_s=0.1), budget_ratio)
        clients = bench.offer(fleet.poisson(1, rate=60.0, count=400), behaviour)
        bench.run()
        bench.assert_nothing_left()
        return clients.num_sent / 400

    assert sent(None) > 2.0
    assert 1.1 <= sent(0.1) <= 1.1 + 10 / 400


def test_an_unsorted_trace_is_an_error(fleet):
    bench = fleet.Bench()
    bench.offer([fleet.request("a", 5.0), fleet.request("b", 4.0)])
    with pytest.raises(SimulationError, match=r"request b arrives at 4\.0 s"):
        bench.run()


def test_impossible_settings_are_refused():
    with pytest.raises(ConfigError, match="timeout_s of clients"):
        ClientBehaviour(timeout_s=0.0)
