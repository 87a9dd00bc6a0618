from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.errors import ConfigError
from argosy.fleet.policies.health import HealthCheck
from argosy.fleet.policies.retries import RetryPolicy
from argosy.sim.fleet.faults import Corruption, Crash, Hang, Partition, Slowdown, random_crashes
from argosy.sim.fleet.single import AttemptTimeouts
from argosy.sim.outcome import Outcome

SHALLOW = HealthCheck(interval_s=1.0, timeout_s=0.5, failures=2, successes=2)
DEEP = HealthCheck(interval_s=1.0, timeout_s=0.5, failures=2, successes=2, deep=True)


class TestCrash:
    def test_what_it_had_fails_and_it_comes_back_after_its_cold_start(self, fleet):
        bench = fleet.Bench(replicas=1, faults=[Crash(1.0, "r0", restart_after_s=2.0, cold_start_s=3.0)])
        bench.offer([fleet.request("a", 0.5, output=500), fleet.request("b", 2.0)])
        heard = bench.run()
        assert (heard.outcome("a").outcome, heard.outcome("a").finished_s) == (Outcome.FAILED, 1.0)
        assert (heard.outcome("b").outcome, heard.outcome("b").submitted_s) == (Outcome.FINISHED, 6.0)
        bench.assert_nothing_left()

    def test_known_at_once_nothing_is_sent_there(self, fleet):
        bench = fleet.Bench(replicas=2, policy="round_robin", faults=[Crash(0.0, "r0")], retry=RetryPolicy())
        bench.offer(fleet.poisson(1, rate=20.0, count=20))
        heard = bench.run()
        assert set(heard.attempts.values()) == {1}
        assert {one.replica for one in heard.outcomes} == {"r1"}

    def test_found_out_by_probes_the_requests_until_then_are_tried_again(self, fleet):
        bench = fleet.Bench(
            replicas=2, policy="round_robin", check=SHALLOW, faults=[Crash(0.2, "r0")], retry=RetryPolicy(backoff_s=0.0)
        )
        bench.offer(fleet.poisson(1, rate=20.0, count=100))
        heard = bench.run(until_s=60.0)
        assert len(heard.of(Outcome.FINISHED)) + len(heard.of(Outcome.FAILED)) == 100
        again = [name for name, attempts in heard.attempts.items() if attempts > 1]
        assert 1 <= len(again) <= 4, "two refused connections are enough to know"
        bench.assert_nothing_left()


class TestHang:
    def test_requests_sit_there_until_their_clients_leave_and_it_goes_on_where_it_was(self, fleet):
        bench = fleet.Bench(replicas=1, faults=[Hang(1.0, "r0", duration_s=10.0)])
        bench.offer([fleet.request("a", 0.9, output=50, timeout_s=5.0), fleet.request("b", 0.9, output=50)])
        heard = bench.run()
        assert (heard.outcome("a").outcome, heard.outcome("a").finished_s) == (Outcome.TIMED_OUT, 5.9)
        assert heard.outcome("b").outcome is Outcome.FINISHED
        assert heard.outcome("b").finished_s == pytest.approx(11.0 + 0.25 - 0.1, abs=0.05)
        bench.assert_nothing_left()

    @pytest.mark.parametrize(("check", "sees"), [(SHALLOW, False), (DEEP, True)])
    def test_only_a_deep_probe_sees_it(self, fleet, check, sees):
        bench = fleet.Bench(replicas=2, policy="round_robin", check=check, faults=[Hang(0.1, "r0")])
        bench.offer([fleet.request(f"q{i}", 10.0 + i, timeout_s=5.0) for i in range(10)])
        heard = bench.run(until_s=60.0)
        assert len(heard.of(Outcome.TIMED_OUT)) == (0 if sees else 5)

    def test_a_replica_that_recovers_is_used_again_after_enough_good_probes(self, fleet):
        bench = fleet.Bench(replicas=2, policy="round_robin", check=DEEP, faults=[Hang(0.1, "r0", duration_s=10.0)])
        states = []
        for at_s in (1.4, 1.6, 2.6, 10.5, 11.5, 12.5):
            bench.loop.at(at_s, lambda: states.append(bench.pool.member("r0").state.healthy))
        bench.run(until_s=20.0)
        assert states == [True, True, False, False, False, True]


class TestSlowdown:
    def test_steps_take_longer_for_as_long(self, fleet):
        def e2e_s(faults) -> list[float]:
            bench = fleet.Bench(replicas=1, faults=faults)
            bench.offer([fleet.request("before", 0.0), fleet.request("during", 10.0), fleet.request("after", 20.0)])
            return [one.e2e_s for one in bench.run().outcomes]

        plain, slow = e2e_s([]), e2e_s([Slowdown(5.0, "r0", 4.0, duration_s=10.0)])
        assert slow == pytest.approx([plain[0], 4.0 * plain[1], plain[2]])

    def test_latency_routing_avoids_the_slow_one_and_counting_requests_does_less(self, fleet):
        def share(policy: str) -> float:
            bench = fleet.Bench(replicas=4, policy=policy, faults=[Slowdown(0.0, "r0", 10.0)])
            bench.offer(fleet.poisson(2, rate=20.0, count=300))
            outcomes = bench.run().outcomes
            return sum(one.replica == "r0" for one in outcomes) / len(outcomes)

        assert share("least_latency") < share("least_load") < share("round_robin") == 0.25


class TestCorruption:
    def test_it_is_marked_and_only_a_deep_probe_keeps_requests_away(self, fleet):
        def corrupted(check) -> int:
            bench = fleet.Bench(replicas=2, policy="round_robin", check=check, faults=[Corruption(5.0, "r0", 20.0)])
            bench.offer([fleet.request(f"q{i}", float(i)) for i in range(40)])
            heard = bench.run(until_s=80.0)
            assert len(heard.of(Outcome.FINISHED)) == 40
            assert all(one.finished_s >= 5.0 and one.submitted_s < 26.0 for one in heard.outcomes if one.corrupted)
            return sum(one.corrupted for one in heard.outcomes)

        assert corrupted(SHALLOW) == 10
        assert 1 <= corrupted(DEEP) <= 2


class TestPartition:
    def test_answers_come_when_it_is_over_unless_the_client_has_left(self, fleet):
        bench = fleet.Bench(replicas=1, faults=[Partition(0.05, "r0", duration_s=10.0)])
        bench.offer([fleet.request("a"), fleet.request("b", timeout_s=3.0), fleet.request("c", 0.04, prompt=1500)])
        heard = bench.run()
        assert heard.first_tokens == {"a": pytest.approx(0.009), "b": pytest.approx(0.009), "c": 10.05}
        assert [(heard.outcome(name).outcome, heard.outcome(name).finished_s) for name in "abc"] == [
            (Outcome.FINISHED, 10.05),
            (Outcome.TIMED_OUT, 3.0),
            (Outcome.FINISHED, 10.05),
        ]
        bench.assert_nothing_left()

    def test_no_connection_is_a_failure_after_the_timeout(self, fleet):
        bench = fleet.Bench(
            replicas=2,
            policy="round_robin",
            check=SHALLOW,
            faults=[Partition(0.0, "r0")],
            timeouts=AttemptTimeouts(connect_s=0.25),
            retry=RetryPolicy(backoff_s=0.0),
        )
        bench.offer([fleet.request("a", 0.1), fleet.request("b", 20.0), fleet.request("c", 21.0)])
        heard = bench.run(until_s=60.0)
        assert [heard.attempts[name] for name in "abc"] == [2, 1, 1]
        assert heard.outcome("a").submitted_s == pytest.approx(0.35)
        bench.assert_nothing_left()


def test_faults_of_replicas_that_are_not_there_are_counted(fleet):
    bench = fleet.Bench(replicas=1, faults=[Crash(1.0, "r0"), Crash(2.0, "r0"), Hang(1.0, "gone")])
    bench.run()
    assert bench.injector.num_skipped == 2


@pytest.mark.parametrize(
    "fault", [Crash(-1.0, "r0"), Crash(0.0, "r0", -1.0), Hang(0.0, "r0", -1.0), Slowdown(0.0, "r0", 0.0)]
)
def test_impossible_faults_are_refused(fleet, fault):
    with pytest.raises(ConfigError):
        fleet.Bench(faults=[fault])


def test_random_crashes_are_a_poisson_process_per_replica():
    names = [f"r{i}" for i in range(50)]
    crashes = random_crashes(names, 1000.0, 20_000.0, Random(1), restart_after_s=0.0)
    assert len(crashes) == pytest.approx(1000, abs=100)
    assert [one.at_s for one in crashes] == sorted(one.at_s for one in crashes)
    once = random_crashes(names, 1000.0, 1e9, Random(1), restart_after_s=None)
    assert sorted(one.replica for one in once) == sorted(names)
    with pytest.raises(ConfigError):
        random_crashes(names, 0.0, 1.0, Random(0), restart_after_s=None)


KINDS = st.sampled_from(["crash", "hang", "slow", "corrupt", "partition"])


@settings(max_examples=15, deadline=None)
@given(
    faults=st.lists(st.tuples(KINDS, st.floats(0.0, 4.0), st.integers(0, 2), st.floats(0.0, 3.0)), max_size=6),
    policy=st.sampled_from(["power_of_two", "prefix_precise", "consistent_hash", "least_latency"]),
    disaggregated=st.booleans(),
    retries=st.integers(0, 3),
    patience_s=st.none() | st.floats(0.1, 3.0),
)
def test_nothing_is_lost_whatever_goes_wrong(fleet, faults, policy, disaggregated, retries, patience_s):
    """Invariants hold after every event, every request ends once, and nobody holds anything at the end."""
    makers = {
        "crash": lambda at_s, name, length_s: Crash(at_s, name, length_s, 0.5),
        "hang": Hang,
        "slow": lambda at_s, name, length_s: Slowdown(at_s, name, 5.0, length_s),
        "corrupt": Corruption,
        "partition": Partition,
    }
    bench = fleet.Bench(
        replicas=3,
        policy=policy,
        settings={"block_tokens": 16} if policy == "prefix_precise" else None,
        decode=2 if disaggregated else 0,
        faults=[makers[kind](at_s, f"r{number}", length_s) for kind, at_s, number, length_s in faults],
        retry=RetryPolicy(max_retries=retries, backoff_s=0.2),
        timeouts=AttemptTimeouts(connect_s=0.5, first_token_s=2.0),
        num_blocks=120,
        max_model_len=1000,
        check_steps=True,
    )
    bench.offer(fleet.poisson(len(faults), rate=12.0, count=40, timeout_s=patience_s))
    heard = bench.run()
    assert len(heard.outcomes) == 40
    bench.assert_nothing_left()
