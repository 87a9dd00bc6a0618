import dataclasses

import pytest

from argosy.errors import SimulationError
from argosy.fleet.policies.retries import RetryBudget, RetryPolicy
from argosy.fleet.policies.routing.named import POLICIES
from argosy.fleet.policies.routing.replica_state import LoadReport, ReplicaInfo
from argosy.sim.fleet.faults import Crash, Hang
from argosy.sim.fleet.single import AttemptTimeouts
from argosy.sim.outcome import Outcome

SETTINGS = {"prefix_precise": {"block_tokens": 16}, "nearest_region": {"round_trip_s": {}}}


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_serves_every_request(policy, fleet):
    bench = fleet.Bench(replicas=3, policy=policy, settings=SETTINGS.get(policy))
    bench.offer(fleet.poisson(1, rate=40.0, count=60))
    heard = bench.run()
    assert len(heard.of(Outcome.FINISHED)) == bench.fleet.counters.offered == 60
    assert {outcome.replica for outcome in heard.outcomes} == {"r0", "r1", "r2"}
    bench.assert_nothing_left()


def test_a_fleet_of_one_is_that_replica(fleet):
    """The same requests straight into a replica: the same times to the last bit."""
    requests = fleet.poisson(2, rate=20.0, count=50)
    bench = fleet.Bench(replicas=1)
    bench.offer(requests)
    through_fleet = {one.request.request_id: one for one in bench.run().outcomes}
    other = fleet.Bench(replicas=0)
    alone = fleet.replica("r0", other.loop)
    heard = {}
    alone.listener = type(
        "Listener",
        (),
        {
            "on_first_token": lambda self, replica, request, now_s: None,
            "on_finish": lambda self, replica, outcome: heard.update({outcome.request.request_id: outcome}),
            "on_steps": lambda self, replica, span: None,
        },
    )()
    for request in requests:
        other.loop.at(request.arrival_s, lambda request=request: alone.submit(request))
    other.loop.run()
    assert through_fleet == heard


def test_the_same_seed_gives_the_same_run_and_another_does_not(fleet):
    def run(seed: int):
        faults = [Crash(0.5, "r1", 0.2, 0.3)]
        bench = fleet.Bench(replicas=4, policy="power_of_two", seed=seed, faults=faults, retry=RetryPolicy())
        bench.offer(fleet.poisson(3, rate=80.0, count=120))
        return bench.run().outcomes

    assert run(5) == run(5)
    assert [one.replica for one in run(5)] != [one.replica for one in run(6)]


def test_ids_must_differ_while_alive(fleet):
    bench = fleet.Bench()
    bench.fleet.submit(fleet.request("a"))
    with pytest.raises(SimulationError, match="'a' is in the fleet already"):
        bench.fleet.submit(fleet.request("a"))


class TestNoReplica:
    def test_requests_wait_for_one_in_order(self, fleet):
        bench = fleet.Bench(replicas=0, max_num_seqs=1)
        bench.offer([fleet.request(name, number * 0.1) for number, name in enumerate("abc")])
        bench.loop.at(5.0, lambda: bench.pool.add(*bench.make("r0"), cold_start_s=2.0))
        heard = bench.run()
        assert [one.request.request_id for one in heard.of(Outcome.FINISHED)] == ["a", "b", "c"]
        assert all(one.submitted_s == 7.0 for one in heard.outcomes)
        assert set(heard.attempts.values()) == {1}
        bench.assert_nothing_left()

    def test_a_client_gives_up_waiting(self, fleet):
        bench = fleet.Bench(replicas=0)
        bench.offer([fleet.request("a", timeout_s=3.0), fleet.request("b", 1.0, timeout_s=9.0)])
        bench.loop.at(5.0, lambda: bench.pool.add(*bench.make("r0")))
        heard = bench.run()
        gone = heard.outcome("a")
        assert (gone.outcome, gone.finished_s, gone.replica, gone.first_token_s) == (Outcome.TIMED_OUT, 3.0, "", None)
        assert heard.outcome("b").outcome is Outcome.FINISHED
        assert heard.attempts == {"a": 0, "b": 1}
        bench.assert_nothing_left()


class TestTimeouts:
    def test_a_client_gives_up_in_the_middle_of_an_answer(self, fleet):
        bench = fleet.Bench(replicas=1)
        bench.offer([fleet.request("a", 1.0, output=2000, timeout_s=2.0)])
        (outcome,) = bench.run().outcomes
        assert (outcome.outcome, outcome.finished_s) == (Outcome.TIMED_OUT, 3.0)
        assert 300 < outcome.num_output_tokens < 400
        bench.assert_nothing_left()

    def test_a_silent_replica_is_given_up_for_another(self, fleet):
        bench = fleet.Bench(
            policy="round_robin", faults=[Hang(0.0, "r0")], timeouts=AttemptTimeouts(first_token_s=2.0), retry=RetryPolicy()
        )
        bench.offer([fleet.request("a", 0.5)])
        heard = bench.run()
        outcome = heard.outcome("a")
        assert (outcome.outcome, outcome.replica, heard.attempts["a"]) == (Outcome.FINISHED, "r1", 2)
        assert outcome.ttft_s > 2.0

    def test_an_answer_that_has_begun_is_not_given_up(self, fleet):
        bench = fleet.Bench(replicas=1, timeouts=AttemptTimeouts(first_token_s=0.1), retry=RetryPolicy())
        bench.offer([fleet.request("a", output=500)])
        heard = bench.run()
        assert heard.outcome("a").outcome is Outcome.FINISHED
        assert heard.outcome("a").e2e_s > 2.0


class TestRetries:
    def test_a_crash_before_the_first_token_is_tried_elsewhere_and_after_it_is_final(self, fleet):
        bench = fleet.Bench(policy="round_robin", faults=[Crash(1.0, "r0")], retry=RetryPolicy(), max_num_seqs=1)
        bench.offer(
            [fleet.request("streaming", 0.8, output=400), fleet.request("x", 0.85), fleet.request("queued", 0.9)],
        )
        heard = bench.run()
        lost = heard.outcome("streaming")
        assert (lost.outcome, lost.replica, lost.finished_s) == (Outcome.FAILED, "r0", 1.0)
        assert lost.num_output_tokens > 10
        saved = heard.outcome("queued")
        assert (saved.outcome, saved.replica) == (Outcome.FINISHED, "r1")
        assert heard.attempts == {"streaming": 1, "x": 1, "queued": 2}
        assert bench.fleet.counters.retries == 1
        bench.assert_nothing_left()

    def test_the_next_attempt_goes_to_another_replica(self, fleet):
        """The idle one is down and nobody knows: it would be the least loaded every time."""
        bench = fleet.Bench(policy="least_load", retry=RetryPolicy(max_retries=1))
        bench.pool.member("r1").state.take_report(LoadReport(0.0, num_running=5))
        bench.replicas[0].stop(drain=False)
        bench.offer([fleet.request("a")])
        heard = bench.run()
        assert (heard.outcome("a").outcome, heard.outcome("a").replica, heard.attempts["a"]) == (Outcome.FINISHED, "r1", 2)

    def test_a_retry_that_its_client_would_not_see_is_not_made(self, fleet):
        bench = fleet.Bench(replicas=1, retry=RetryPolicy(backoff_s=1e6, max_backoff_s=1e6))
        bench.replicas[0].stop(drain=False)
        bench.offer([fleet.request("a", timeout_s=5.0)])
        outcome = bench.run().outcome("a")
        assert (outcome.outcome, outcome.finished_s) == (Outcome.FAILED, 0.0)

    def test_attempts_are_limited(self, fleet):
        bench = fleet.Bench(replicas=0, retry=RetryPolicy(max_retries=3), budget=RetryBudget(1.0))
        for number in range(6):
            bench.pool.add(*bench.make(f"r{number}"))
            bench.replicas[number].stop(drain=False)
        bench.offer([fleet.request("a")])
        heard = bench.run()
        assert heard.outcome("a").outcome is Outcome.FAILED
        assert heard.attempts["a"] == 4

    def test_retries_stay_within_the_budget_when_everything_is_down(self, fleet):
        bench = fleet.Bench(replicas=4, retry=RetryPolicy(max_retries=5), budget=RetryBudget(0.1, 10.0))
        for replica in bench.replicas:
            replica.stop(drain=False)
        bench.offer(fleet.poisson(0, rate=50.0, count=500))
        heard = bench.run()
        assert len(heard.of(Outcome.FAILED)) == 500
        assert bench.fleet.counters.retries == pytest.approx(10 + 50, abs=2)

    def test_a_full_queue_is_tried_elsewhere(self, fleet):
        bench = fleet.Bench(policy="round_robin", retry=RetryPolicy(), max_waiting=1, max_num_seqs=1)
        bench.offer([fleet.request(f"q{number}", 0.001 * number, output=100) for number in range(6)])
        heard = bench.run()
        assert len(heard.of(Outcome.FINISHED)) >= 4
        assert sum(heard.attempts.values()) > 6
        bench.assert_nothing_left()

    def test_a_request_that_can_never_be_served_is_not_tried_again(self, fleet):
        bench = fleet.Bench(retry=RetryPolicy())
        for member in bench.pool:
            member.state.info = ReplicaInfo(member.name)
        bench.offer([fleet.request("long", prompt=5000)])
        heard = bench.run()
        assert heard.outcome("long").outcome is Outcome.FAILED
        assert heard.attempts["long"] == 1
        bench.assert_nothing_left()


class TestPool:
    def test_replica_seconds_and_dollars_count_from_request_to_removal(self, fleet):
        bench = fleet.Bench(replicas=1)
        bench.loop.at(10.0, lambda: bench.pool.add(*bench.make("late"), cold_start_s=5.0))
        bench.loop.at(30.0, lambda: bench.pool.remove(bench.pool.member("r0")))
        bench.run(until_s=40.0)
        assert bench.pool.replica_s() == pytest.approx(30.0 + 30.0)
        assert bench.pool.usd() == pytest.approx(60.0 * 3.6 / 3600.0)

    def test_a_removed_replica_ends_what_it_has_and_takes_no_more(self, fleet):
        bench = fleet.Bench(replicas=2, policy="round_robin")
        bench.offer([fleet.request("a", output=200), *(fleet.request(f"q{i}", 0.5 + i / 100) for i in range(6))])
        bench.loop.at(0.1, lambda: bench.pool.remove(bench.pool.member("r0")))
        heard = bench.run()
        assert (heard.outcome("a").outcome, heard.outcome("a").replica) == (Outcome.FINISHED, "r0")
        assert {heard.outcome(f"q{i}").replica for i in range(6)} == {"r1"}
        assert [member.name for member in bench.pool] == ["r1"]
        bench.assert_nothing_left()

    def test_names_are_checked(self, fleet):
        bench = fleet.Bench(replicas=1)
        replica, info = bench.make("r0")
        for wrong in (info, dataclasses.replace(info, replica_id="other")):
            with pytest.raises(SimulationError, match="cannot take replica 'r0'"):
                bench.pool.add(replica, wrong)
        with pytest.raises(SimulationError, match="has no replica 'x'; it has r0"):
            bench.pool.member("x")


class TestPrefixKnowledge:
    def test_events_of_replicas_and_descriptions_of_requests_speak_of_the_same_blocks(self, fleet):
        bench = fleet.Bench(policy="prefix_precise", settings={"block_tokens": 16})
        bench.offer([fleet.request("a", prompt=320, tenant="t")])
        home = bench.run().outcome("a").replica
        index = bench.router.policy.prefix_matcher
        again = fleet.request("a", prompt=320, tenant="t")
        # The engine computes the last token in any case: 319 tokens are 19 blocks.
        assert index.match(bench.describer.describe(again, frozenset()), 9.0) == {home: 19 * 16}
        other = fleet.request("a", prompt=320, tenant="u")
        assert index.match(bench.describer.describe(other, frozenset()), 9.0) == {}

    def test_a_precise_index_holds_what_the_replicas_hold(self, fleet):
        crash = Crash(5.0, "r0", 0.0, 0.0)
        bench = fleet.Bench(policy="prefix_precise", settings={"block_tokens": 16}, faults=[crash])
        index = bench.router.policy.prefix_matcher
        bench.offer([fleet.request("a", 0.0, prompt=320), fleet.request("b", 1.0, prompt=320)])
        bench.run(until_s=4.0)
        assert index.num_blocks == sum(replica.scheduler.kv.num_cached for replica in bench.replicas) >= 38
        bench.run(until_s=6.0)
        assert index.num_blocks == bench.replicas[1].scheduler.kv.num_cached > 0

    @pytest.mark.parametrize("leaves", ["crash", "removal"])
    def test_an_approximate_index_forgets_a_replica_that_lost_its_cache(self, fleet, leaves):
        bench = fleet.Bench(policy="prefix_aware", faults=[Crash(5.0, "r0")] if leaves == "crash" else [])
        index = bench.router.policy.prefix_matcher
        bench.offer([fleet.request("a", 0.0, prompt=320), fleet.request("b", 1.0, prompt=320)])
        if leaves == "removal":
            bench.loop.at(5.0, lambda: bench.pool.remove(bench.pool.member("r0")))
        bench.run(until_s=4.0)
        assert index.num_blocks == 2 * 19
        bench.run(until_s=6.0)
        assert index.num_blocks == 19
