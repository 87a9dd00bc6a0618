from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.errors import ConfigError
from argosy.fleet.policies.autoscaling.autoscaler import Autoscaler, ScalingLimits
from argosy.fleet.policies.autoscaling.reactive import TargetUtilisation
from argosy.fleet.policies.autoscaling.signals import FleetSignals, ScaleReason


@dataclass
class Wants:
    """Wants what it is told, one value per call."""

    values: list[float] = field(default_factory=list)

    def wanted(self, signals: FleetSignals) -> float:
        return self.values.pop(0)


def decide_all(limits: ScalingLimits, wants: list[float], *, ready: int, every_s: float = 15.0, running: int = 1):
    """Decisions in a row; what is decided is there at the next call."""
    scaler, current, decisions = Autoscaler(Wants(list(wants)), limits), ready, []
    for number in range(len(wants)):
        decisions.append(scaler.decide(FleetSignals(number * every_s, current, num_running=running)))
        current = decisions[-1].num_replicas
    return decisions


def numbers(decisions) -> list[int]:
    return [decision.num_replicas for decision in decisions]


def test_what_is_starting_is_not_asked_for_again():
    """Twice the load on 2 replicas that take 5 minutes to start: 4 at every tick, not 8 and 16."""
    scaler = Autoscaler(TargetUtilisation(0.8), ScalingLimits())
    starting = 0
    for tick in range(20):
        decision = scaler.decide(FleetSignals(tick * 15.0, 2, starting, utilisation=1.6, num_running=9))
        assert decision.num_replicas == 4
        assert decision.reason is (ScaleReason.STEADY if starting else ScaleReason.UP)
        starting = decision.num_replicas - 2


def test_load_moves_to_the_survivors():
    """2 replicas at 0.7 with a target of 0.8: one alone would be at 1.4."""
    scaler = Autoscaler(TargetUtilisation(0.8), ScalingLimits(down_window_s=0.0))
    for tick in range(10):
        assert scaler.decide(FleetSignals(tick * 15.0, 2, utilisation=0.7, num_running=9)).num_replicas == 2


def test_a_steady_load_never_oscillates():
    """Whatever the load, once it is answered the answer stays."""
    for load in (0.1, 0.79, 0.81, 1.59, 1.61, 2.4, 3.0):
        scaler, current = Autoscaler(TargetUtilisation(0.8), ScalingLimits(down_window_s=30.0)), 3
        seen = []
        for tick in range(40):
            signals = FleetSignals(tick * 15.0, current, utilisation=load / current, num_running=1)
            current = scaler.decide(signals).num_replicas
            seen.append(current)
        assert len(set(seen[10:])) == 1
        assert load / seen[-1] <= 0.8 * 1.1


class TestHysteresis:
    def test_a_little_more_is_not_more(self):
        decisions = decide_all(ScalingLimits(tolerance=0.1), [10.9, 11.1, 11.0], ready=10)
        assert numbers(decisions) == [10, 12, 12]
        assert [d.reason for d in decisions] == [ScaleReason.STEADY, ScaleReason.UP, ScaleReason.STEADY]

    def test_the_survivors_must_have_room(self):
        limits = ScalingLimits(tolerance=0.1, down_window_s=0.0)
        assert numbers(decide_all(limits, [9.0, 8.3, 8.1], ready=10)) == [10, 10, 9]

    def test_without_tolerance_it_follows(self):
        limits = ScalingLimits(tolerance=0.0, down_window_s=0.0)
        assert numbers(decide_all(limits, [10.1, 9.0, 9.01], ready=10)) == [11, 9, 10]


class TestWindows:
    def test_it_shrinks_to_the_most_wanted_in_the_window_once_that_is_full(self):
        limits = ScalingLimits(tolerance=0.0, down_window_s=60.0)
        wants = [10.0, 4.0, 6.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0]
        decisions = decide_all(limits, wants, ready=10)
        assert numbers(decisions) == [10, 10, 10, 10, 10, 6, 6, 3, 3]
        assert decisions[3].reason is ScaleReason.DOWN_HELD

    def test_a_first_look_at_little_load_shrinks_nothing(self):
        assert numbers(decide_all(ScalingLimits(down_window_s=300.0), [1.0] * 20, ready=8)) == [8] * 20
        assert numbers(decide_all(ScalingLimits(down_window_s=300.0), [1.0] * 21, ready=8))[-1] == 2

    def test_it_grows_to_the_least_wanted_in_the_window(self):
        limits = ScalingLimits(tolerance=0.0, up_window_s=30.0)
        decisions = decide_all(limits, [5.0, 9.0, 8.0, 9.0, 9.0, 9.0], ready=5)
        assert numbers(decisions) == [5, 5, 5, 8, 8, 9]
        assert decisions[2].reason is ScaleReason.UP_HELD

    def test_a_spike_shorter_than_the_window_changes_nothing(self):
        wants = [5.0] * 4 + [20.0] + [5.0] * 4
        assert set(numbers(decide_all(ScalingLimits(up_window_s=30.0), wants, ready=5))) == {5}

    def test_memory_is_bounded_by_the_windows(self):
        scaler = Autoscaler(Wants([1.0] * 5000), ScalingLimits(down_window_s=300.0))
        for tick in range(5000):
            scaler.decide(FleetSignals(tick * 15.0, 1))
        assert len(scaler._wanted) <= 21


class TestZero:
    LIMITS = ScalingLimits(min_replicas=0, idle_to_zero_s=100.0, down_window_s=0.0)

    def test_it_goes_to_zero_after_the_idle_time_and_not_before(self):
        scaler = Autoscaler(Wants([0.0] * 4), self.LIMITS)
        assert scaler.decide(FleetSignals(0.0, 2, num_running=1)).num_replicas == 1
        assert scaler.decide(FleetSignals(99.0, 1)).num_replicas == 1
        decision = scaler.decide(FleetSignals(100.0, 1))
        assert (decision.num_replicas, decision.reason) == (0, ScaleReason.TO_ZERO)
        assert scaler.decide(FleetSignals(200.0, 0)).reason is ScaleReason.STEADY

    @pytest.mark.parametrize("busy", [{"num_waiting": 1}, {"num_running": 1}, {"arrivals_per_s": 0.1}])
    def test_any_request_keeps_it_up_and_brings_it_back(self, busy):
        scaler = Autoscaler(Wants([0.0] * 9), self.LIMITS)
        for at_s in (0.0, 90.0, 180.0):
            assert scaler.decide(FleetSignals(at_s, 1, **busy)).num_replicas == 1
        assert scaler.decide(FleetSignals(400.0, 1)).num_replicas == 0
        decision = scaler.decide(FleetSignals(500.0, 0, **busy))
        assert (decision.num_replicas, decision.reason) == (1, ScaleReason.FROM_ZERO)
        assert scaler.decide(FleetSignals(515.0, 0, 1, **busy)).num_replicas == 1

    def test_what_is_wanted_comes_at_once_from_zero(self):
        scaler = Autoscaler(Wants([4.2]), ScalingLimits(min_replicas=0))
        assert scaler.decide(FleetSignals(0.0, 0, num_waiting=50)).num_replicas == 5

    def test_a_replica_that_starts_for_a_waiting_request_is_not_given_up(self):
        """Utilisation of no ready replica wants none."""
        scaler = Autoscaler(TargetUtilisation(0.7), ScalingLimits(min_replicas=0, down_window_s=0.0))
        for tick in range(10):
            assert scaler.decide(FleetSignals(tick * 15.0, 0, 1, num_waiting=1)).num_replicas == 1


class TestLimits:
    def test_bounds_hold(self):
        limits = ScalingLimits(min_replicas=2, max_replicas=6, down_window_s=0.0)
        assert numbers(decide_all(limits, [50.0, 0.0, 3.0], ready=4)) == [6, 2, 3]

    def test_no_more_start_at_once_than_may(self):
        scaler = Autoscaler(Wants([50.0] * 3), ScalingLimits(max_starting=4))
        assert scaler.decide(FleetSignals(0.0, 10)).num_replicas == 14
        assert scaler.decide(FleetSignals(15.0, 10, 4)).num_replicas == 14
        assert scaler.decide(FleetSignals(30.0, 13, 1)).num_replicas == 17

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"min_replicas": 5, "max_replicas": 4}, "min_replicas"),
            ({"min_replicas": 0, "max_replicas": 0}, "max_replicas"),
            ({"tolerance": -0.1}, "tolerance"),
            ({"down_window_s": 100.0, "cold_start_s": 420.0}, "down_window_s .* cold_start_s"),
            ({"idle_to_zero_s": 60.0}, "idle_to_zero_s needs min_replicas 0"),
            ({"max_starting": 0}, "max_starting"),
        ],
    )
    def test_impossible_settings_are_refused(self, fields, message):
        with pytest.raises(ConfigError, match=message):
            ScalingLimits(**fields)

    @settings(max_examples=200, deadline=None)
    @given(
        wants=st.lists(st.floats(0.0, 100.0), min_size=1, max_size=30),
        ready=st.integers(0, 40),
        bounds=st.tuples(st.integers(1, 10), st.integers(10, 40)),
        windows=st.tuples(st.floats(0.0, 90.0), st.floats(0.0, 90.0)),
        max_starting=st.none() | st.integers(1, 5),
    )
    def test_decisions_stay_within_all_limits(self, wants, ready, bounds, windows, max_starting):
        limits = ScalingLimits(*bounds, up_window_s=windows[0], down_window_s=windows[1], max_starting=max_starting)
        decisions = decide_all(limits, wants, ready=ready)
        for before, decision in zip([ready, *numbers(decisions)], decisions, strict=False):
            assert bounds[0] <= decision.num_replicas <= bounds[1] or (max_starting and decision.num_replicas < bounds[0])
            if max_starting and decision.num_replicas > before:
                assert decision.num_replicas - before <= max_starting
            if decision.num_replicas > max(before, bounds[0]):
                assert decision.wanted > before
            if decision.num_replicas < min(before, bounds[1]):
                assert decision.wanted < before
