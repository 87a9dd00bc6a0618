import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.errors import ConfigError
from argosy.fleet.policies.degradation import Concession, DegradationLadder, LadderSettings, kv_pressure
from argosy.fleet.policies.routing.replica_state import LoadReport, ReplicaInfo, ReplicaState

SHORTER, NO_DRAFTS, SMALLER = Concession.SHORTER_CONTEXT, Concession.NO_SPECULATION, Concession.SMALLER_MODEL
STEPS = {SHORTER: 0.8, NO_DRAFTS: 0.85, SMALLER: 0.95}


def test_steps_are_taken_one_after_the_other_and_at_once():
    ladder = DegradationLadder(LadderSettings(STEPS))
    assert ladder.update(0.8, 0.0) == frozenset()
    assert ladder.update(0.81, 0.0) == {SHORTER}
    assert ladder.update(0.9, 0.0) == {SHORTER, NO_DRAFTS}
    assert DegradationLadder(LadderSettings(STEPS)).update(0.99, 0.0) == {SHORTER, NO_DRAFTS, SMALLER}


def test_a_model_without_steps_gives_up_nothing():
    assert DegradationLadder(LadderSettings()).update(1.0, 0.0) == frozenset()


def test_a_step_ends_once_the_pressure_has_been_well_below_for_a_while():
    ladder = DegradationLadder(LadderSettings({SHORTER: 0.8}, hysteresis=0.1, calm_s=5.0))
    assert ladder.update(0.9, 0.0) == {SHORTER}
    assert ladder.update(0.75, 100.0) == {SHORTER}, "within the hysteresis"
    assert ladder.update(0.6, 101.0) == {SHORTER}
    assert ladder.update(0.75, 103.0) == {SHORTER}, "the calm begins anew"
    assert ladder.update(0.6, 104.0) == {SHORTER}
    assert ladder.update(0.6, 108.9) == {SHORTER}
    assert ladder.update(0.6, 109.0) == frozenset()


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=200), st.floats(0.1, 5.0))
def test_no_step_changes_twice_within_the_calm_unless_the_pressure_rises_above_it(pressures, step_s):
    settings = LadderSettings(STEPS, hysteresis=0.05, calm_s=5.0)
    ladder, before, since_above = DegradationLadder(settings), frozenset(), dict.fromkeys(STEPS, -1e9)
    for number, pressure in enumerate(pressures):
        now_s = number * step_s
        active = ladder.update(pressure, now_s)
        for each, above in STEPS.items():
            if pressure > above:
                assert each in active
                since_above[each] = now_s
            elif each in active:
                assert each in before, "a step begins above its threshold only"
            elif each in before:
                assert now_s - since_above[each] >= 5.0
        before = active


def test_pressure_is_the_mean_of_what_is_known_of_those_that_take_requests():
    known, other, unknown, down = (ReplicaState(ReplicaInfo(name)) for name in "abcd")
    known.take_report(LoadReport(0.0, kv_used_fraction=0.9))
    other.take_report(LoadReport(0.0, kv_used_fraction=0.5))
    down.take_report(LoadReport(0.0, kv_used_fraction=0.0))
    down.healthy = False
    assert kv_pressure([known, other, unknown, down]) == pytest.approx(0.7)
    assert kv_pressure([unknown, down]) == 0.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: LadderSettings({SHORTER: 1.1}),
        lambda: LadderSettings({SHORTER: 0.05}, hysteresis=0.05),
        lambda: LadderSettings(hysteresis=-0.1),
        lambda: LadderSettings(calm_s=-1.0),
    ],
)
def test_impossible_settings_are_refused(make):
    with pytest.raises(ConfigError):
        make()
