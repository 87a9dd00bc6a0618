import pytest

from argosy.errors import ConfigError
from argosy.fleet.policies.autoscaling.autoscaler import ScalingLimits
from argosy.fleet.policies.autoscaling.capacity import KnownCapacity
from argosy.fleet.policies.autoscaling.reactive import TargetLatency, TargetQueue, TargetRate, TargetUtilisation
from argosy.sim.fleet.clients import ClientBehaviour
from argosy.sim.fleet.scaling import ScalingDriver
from argosy.sim.outcome import Outcome


def test_load_that_rises_brings_replicas_after_their_cold_start_and_they_go_again(fleet):
    bench = fleet.Bench(replicas=1, checked=True)
    scaled = bench.autoscale(
        TargetUtilisation(0.5), ScalingLimits(max_replicas=6, down_window_s=10.0, cold_start_s=5.0), cold_start_s=5.0
    )
    decisions, sizes = [], []
    scaled.on_decision = lambda now_s, decision: (
        decisions.append((now_s, decision.num_replicas)),
        sizes.append(len(bench.pool)),
    )
    bench.offer(fleet.poisson(1, rate=100.0, count=1500))
    heard = bench.run(until_s=60.0)
    assert len(heard.of(Outcome.FINISHED)) == 1500
    grew = next(now_s for now_s, number in decisions if number > 1)
    served_by_others = [one for one in heard.outcomes if one.replica != "r0"]
    assert served_by_others
    assert min(one.submitted_s for one in served_by_others) >= grew + 5.0
    assert max(sizes) > 1
    assert len(bench.pool) == 1
    bench.assert_nothing_left()


def test_starting_replicas_are_not_asked_for_again(fleet):
    """Load of about twice the target: the number asked for in the first cold start does not grow with the ticks."""
    bench = fleet.Bench(replicas=2)
    scaled = bench.autoscale(TargetUtilisation(0.8), ScalingLimits(), cold_start_s=300.0, every_s=15.0, concurrency=4.0)
    asked = []
    scaled.on_decision = lambda now_s, decision: asked.append(decision.num_replicas)
    bench.offer([fleet.request(f"q{i}", 1.0, output=3900, prompt=10) for i in range(12)])
    bench.run(until_s=19.0)
    assert asked == [2, 4]


def test_from_zero_one_load_survives_its_impatient_callers(fleet):
    """The replica takes 40 s to load and clients leave after 15: it is started once, and serves who comes then."""
    bench = fleet.Bench(replicas=0)
    limits = ScalingLimits(min_replicas=0, idle_to_zero_s=60.0, down_window_s=60.0, cold_start_s=40.0)
    bench.autoscale(TargetQueue(10.0, 16.0), limits, cold_start_s=40.0, every_s=5.0)
    bench.offer([fleet.request(f"q{i}", 2.0 + 8.0 * i) for i in range(8)], ClientBehaviour(timeout_s=15.0))
    heard = bench.run(until_s=300.0)
    assert len(bench.replicas) == 1
    assert [heard.outcome(f"q{i}").outcome for i in range(4)] == [Outcome.TIMED_OUT] * 4
    assert {one.submitted_s for one in heard.outcomes if one.request.request_id in ("q4", "q5")} == {42.0}
    assert [heard.outcome(f"q{i}").outcome for i in range(4, 8)] == [Outcome.FINISHED] * 4
    assert len(bench.pool) == 0, "idle for a minute"
    bench.assert_nothing_left()


def test_signals_are_what_happened_since_the_last_decision(fleet):
    bench = fleet.Bench(replicas=1, max_num_seqs=2)
    seen = []

    class Watching(TargetLatency):
        def wanted(self, signals):
            seen.append(signals)
            return 1.0

    bench.autoscale(Watching(1.0), ScalingLimits(), every_s=1.0, concurrency=2.0)
    bench.offer([fleet.request(f"q{i}", 0.5, output=400) for i in range(6)] + [fleet.request("short", 1.5, output=1)])
    bench.run(until_s=12.5)
    first, second, third, *_ = seen
    assert (first.arrivals_per_s, first.utilisation, first.num_ready) == (0.0, 0.0, 1)
    assert (second.arrivals_per_s, second.utilisation) == (6.0, 3.0)
    assert (second.num_running, second.num_waiting) == (2, 4)
    assert third.arrivals_per_s == 1.0
    assert (first.p99_latency_s, second.p99_latency_s) == (None, None)
    assert seen[3].p99_latency_s == pytest.approx(400 * 0.00504, rel=0.05)
    assert seen[-1].p99_latency_s is None


def test_requests_without_a_replica_wait(fleet):
    bench = fleet.Bench(replicas=0)
    scaled = bench.autoscale(TargetQueue(10.0, 16.0), ScalingLimits(min_replicas=0, cold_start_s=60.0), cold_start_s=60.0)
    for name in "abc":
        bench.fleet.submit(fleet.request(name))
    assert (scaled.signals().num_waiting, scaled.signals().num_running, scaled.signals().utilisation) == (3, 0, 0.0)


def test_a_rate_target_follows_a_step(fleet):
    bench = fleet.Bench(replicas=1)
    sizes = {}
    scaled = bench.autoscale(TargetRate(KnownCapacity(20.0), drain_s=30.0), ScalingLimits(tolerance=0.2), every_s=5.0)
    scaled.on_decision = lambda now_s, decision: sizes.update({now_s: decision.num_replicas})
    bench.offer(fleet.poisson(4, rate=60.0, count=600))
    bench.run(until_s=9.0)
    assert sizes[5.0] == pytest.approx(3, abs=1)


@pytest.mark.parametrize("fields", [(0.0, 1.0, 1.0), (1.0, -1.0, 1.0), (1.0, 1.0, 0.0)])
def test_impossible_settings_are_refused(fields):
    with pytest.raises(ConfigError):
        ScalingDriver(*fields)
