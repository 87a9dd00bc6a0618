"""What befalls a replica, and what becomes of its requests."""

from __future__ import annotations

import pytest

from argosy.errors import ConfigError, ContextLengthExceeded, EngineUnavailable
from argosy.sim.cost_executor import CostExecutor, RecordedStep, Recording
from argosy.sim.outcome import Outcome
from argosy.sim.replica import Failure, ReplicaState
from argosy.sim.speculation import SpeculationProcess


def test_one_request_alone_takes_its_prefill_and_its_decode_steps(sim):
    bench = sim.bench()
    bench.feed([sim.request("a", 1.0, prompt=200, output=30)])
    one = bench.finish().outcome("a")
    model = bench.executor.timer.pricer.model
    prefill_s = model.prefill(200, 0).latency_s[0]
    decode_s = model.decode(1, [200 + step for step in range(29)]).latency_s.sum()
    assert one.first_scheduled_s == 1.0
    assert one.ttft_s == pytest.approx(prefill_s, rel=1e-9)
    assert one.e2e_s == pytest.approx(prefill_s + decode_s, rel=1e-9)
    assert one.tpot_s == pytest.approx(decode_s / 29, rel=1e-9)
    assert (one.outcome, one.num_output_tokens, one.num_cached_tokens) == (Outcome.FINISHED, 30, 0)


def test_a_prompt_met_before_is_cached_and_an_answer_can_be_reused(sim):
    bench = sim.bench()
    first = sim.request("a", prompt=100, output=60)
    again = sim.request("b", 5.0, segments=(*first.segments, *first.answer), output=2)
    bench.feed([first, again])
    assert bench.finish().outcome("b").num_cached_tokens == 144


def test_one_token_has_no_tpot(sim):
    bench = sim.bench()
    bench.feed([sim.request("a", output=1)])
    one = bench.finish().outcome("a")
    assert one.tpot_s is None
    assert one.ttft_s == one.e2e_s


def test_a_client_gives_up_after_its_timeout_from_arrival(sim):
    bench = sim.bench()
    late = sim.request("a", 1.0, output=1000, timeout_s=0.5)
    bench.at(1.25, lambda: bench.submit(late))
    one = bench.finish().outcome("a")
    assert (one.outcome, one.submitted_s, one.finished_s) == (Outcome.TIMED_OUT, 1.25, 1.5)
    assert 0 < one.num_output_tokens < 1000


def test_abort_frees_the_blocks_when_the_step_is_over(sim):
    bench = sim.bench(enable_prefix_caching=False)
    bench.feed([sim.request("a", output=1000), sim.request("b", output=1000)])
    seen = []

    def abort() -> None:
        bench.replica.abort("a")
        bench.replica.abort("a")
        seen.append(bench.replica.load().num_running)

    bench.at(0.3, abort)
    bench.at(0.35, lambda: seen.append(bench.replica.scheduler.kv.num_held))
    heard = bench.finish()
    assert heard.outcome("a").outcome is Outcome.ABORTED
    assert seen[0] == 1
    assert 0 < seen[1] < 25
    assert heard.outcome("b").num_output_tokens == 1000


@pytest.mark.parametrize("coasts", [True, False])
def test_a_crash_fails_everyone_and_loses_the_cache(sim, coasts):
    bench = sim.bench(coasts=coasts)
    bench.feed([sim.request(name, output=500) for name in "abc"])
    bench.at(0.5, lambda: bench.replica.fail(Failure.CRASH))
    bench.at(0.6, lambda: bench.replica.start(cold_start_s=2.0))
    refused = []

    def too_soon() -> None:
        with pytest.raises(EngineUnavailable, match="r0 is starting"):
            bench.replica.submit(sim.request("d"))
        refused.append(bench.loop.now_s())

    bench.at(2.5, too_soon)
    bench.at(2.75, lambda: bench.submit(sim.request("a2", 2.75, prompt=100, segments=sim.request("a").segments)))
    heard = bench.finish()
    assert [heard.outcome(n).outcome for n in "abc"] == [Outcome.FAILED] * 3
    assert {heard.outcome(n).finished_s for n in "abc"} == {0.5}
    assert heard.outcome("a2").num_cached_tokens == 0
    assert heard.outcome("a2").outcome is Outcome.FINISHED
    assert refused == [2.5]


def test_who_hangs_takes_requests_and_answers_none_until_it_recovers(sim):
    bench = sim.bench()
    bench.feed([sim.request("a", output=50), sim.request("b", 1.5, output=5), sim.request("c", 1.5, timeout_s=1.0)])
    bench.at(0.1, lambda: bench.replica.fail(Failure.HANG))
    looks = []
    bench.at(3.0, lambda: looks.append((bench.replica.is_ready, bench.replica.load().num_waiting)))
    bench.at(4.0, bench.replica.recover)
    heard = bench.finish()
    assert heard.outcome("c").outcome is Outcome.TIMED_OUT
    assert min(heard.outcome("a").finished_s, heard.outcome("b").first_token_s) > 4.0
    assert looks == [(True, 1)]
    assert heard.outcome("a").num_output_tokens == 50


def test_silent_corruption_marks_what_was_computed_and_nothing_else(sim):
    bench = sim.bench()
    bench.feed([sim.request("a", output=3), sim.request("b", 1.0, output=100), sim.request("c", 1.1, output=3)])
    bench.feed([sim.request("d", 5.0)])
    bench.at(1.05, lambda: bench.replica.fail(Failure.CORRUPT))
    bench.at(4.0, bench.replica.recover)
    heard = bench.finish()
    assert [heard.outcome(n).corrupted for n in "abcd"] == [False, True, True, False]


def test_a_slow_replica_takes_so_much_longer(sim):
    ends = []
    for factor in (1.0, 3.0):
        bench = sim.bench()
        bench.replica.set_slowdown(factor)
        bench.feed([sim.request("a", output=40)])
        ends.append(bench.finish().outcome("a").e2e_s)
    assert ends[1] == pytest.approx(3.0 * ends[0], rel=1e-9)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_slowdown_is_refused(sim, factor):
    with pytest.raises(ConfigError, match="slowdown"):
        sim.bench().replica.set_slowdown(factor)


def test_stopping_drains_or_fails_what_is_in_flight(sim):
    for drain, outcome in ((True, Outcome.FINISHED), (False, Outcome.FAILED)):
        bench = sim.bench()
        bench.feed([sim.request("a", output=100)])
        bench.at(0.2, lambda drain=drain, bench=bench: bench.replica.stop(drain=drain))
        states = []
        bench.at(0.21, lambda bench=bench, states=states: states.append(bench.replica.state))
        assert bench.finish().outcome("a").outcome is outcome
        assert states == [ReplicaState.DRAINING if drain else ReplicaState.STOPPED]
        assert bench.replica.state is ReplicaState.STOPPED
        with pytest.raises(EngineUnavailable):
            bench.replica.submit(sim.request("b"))


def test_who_hangs_cannot_drain(sim):
    bench = sim.bench()
    bench.feed([sim.request("a", output=100)])
    bench.at(0.1, lambda: bench.replica.fail(Failure.HANG))
    bench.at(0.2, bench.replica.stop)
    assert bench.finish().outcome("a").outcome is Outcome.FAILED
    assert bench.replica.state is ReplicaState.STOPPED
    bench.replica.start()
    bench.at(1.0, lambda: bench.submit(sim.request("b", 1.0)))
    assert bench.finish().outcome("b").outcome is Outcome.FINISHED


def test_requests_submitted_on_ends_of_one_step_are_all_in_the_next(sim):
    bench = sim.bench()
    follow = {"a": "c", "b": "d"}

    class Follow:
        def __getattr__(self, name):
            return getattr(bench.heard, name)

        def on_finish(self, replica, outcome):
            bench.heard.on_finish(replica, outcome)
            if outcome.request.request_id in follow:
                bench.submit(sim.request(follow[outcome.request.request_id], bench.loop.now_s(), prompt=30))

    bench.ledger._listener = Follow()
    bench.feed([sim.request("a", output=10), sim.request("b", output=10)])
    heard = bench.finish()
    assert heard.outcome("c").first_token_s == heard.outcome("d").first_token_s


def test_a_start_can_be_taken_back(sim):
    bench = sim.bench()
    bench.replica.stop()
    bench.replica.start(10.0)
    bench.at(5.0, bench.replica.stop)
    bench.loop.run()
    assert bench.replica.state is ReplicaState.STOPPED


def test_what_can_never_fit_is_refused_and_leaves_nothing(sim):
    bench = sim.bench()
    with pytest.raises(ContextLengthExceeded):
        bench.replica.submit(sim.request("a", prompt=5000))
    assert (bench.replica.num_in_flight, bench.executor.num_expected) == (0, 0)


def test_load_tells_of_this_moment(sim):
    bench = sim.bench(max_num_seqs=1, enable_prefix_caching=False)
    bench.feed([sim.request("a", prompt=100, output=400), sim.request("b", prompt=70)])
    loads = []
    bench.at(1.0, lambda: loads.append((bench.replica.load(), len(bench.heard.steps))))
    bench.finish()
    ((load, num_steps),) = loads
    assert (load.num_running, load.num_waiting, load.waiting_tokens) == (1, 1, 70)
    assert load.active_tokens == 100 + num_steps
    held = -(-(100 + num_steps) // 16)
    assert load.kv_used_fraction == held / 400
    assert load.kv_tokens_free == (400 - held) * 16


def test_transferred_prompts_cost_next_to_nothing(sim):
    ttfts = []
    for moved in (0, 1999):
        bench = sim.bench(max_num_batched_tokens=4096)
        bench.at(0.0, lambda bench=bench, moved=moved: bench.submit(sim.request("a", prompt=2000), transferred_tokens=moved))
        ttfts.append(bench.finish().outcome("a").ttft_s)
    assert ttfts[1] < ttfts[0] / 3


def test_speculation_answers_in_fewer_steps(sim):
    steps = {}
    for acceptance in (0.0, 1.0):
        bench = sim.bench(speculation=SpeculationProcess(3, acceptance, seed=1))
        bench.feed([sim.request("a", output=41)])
        heard = bench.finish()
        steps[acceptance] = len(heard.steps)
        assert heard.outcome("a").num_output_tokens == 41
    assert steps == {0.0: 41, 1.0: 11}


def test_a_recorded_run_is_replayed_to_the_step(sim):
    requests = sim.poisson(3, rate=40.0, count=50, prompt=80, output=40, shared=64)
    live = sim.bench(num_blocks=50)
    live.feed(requests)
    heard = live.finish()
    recording = Recording([RecordedStep(step[0], step[1], step[2] - step[1]) for step in heard.steps])
    replayed = sim.bench(num_blocks=50, coasts=False)
    executor = CostExecutor(recording, num_blocks=50, vocab_size=1000)
    replayed.executor = replayed.replica._executor = replayed.replica._driver._executor = executor
    replayed.feed(requests)
    again = replayed.finish()
    decisions = [(s[0], *s[3:]) for s in heard.steps]
    assert [(s[0], *s[3:]) for s in again.steps] == decisions
    assert [(o.preemptions, o.num_cached_tokens) for o in again.outcomes] == [
        (o.preemptions, o.num_cached_tokens) for o in heard.outcomes
    ]
    assert sum(o.preemptions for o in heard.outcomes) > 0


def test_pools_of_different_size_are_refused(sim):
    bench = sim.bench()
    with pytest.raises(ConfigError, match="400 KV blocks"):
        type(bench.replica)("x", bench.loop, bench.replica.scheduler, CostExecutor(bench.executor.timer, num_blocks=1))
