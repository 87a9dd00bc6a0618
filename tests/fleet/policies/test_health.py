import pytest

from argosy.errors import ConfigError
from argosy.fleet.policies.health import HealthCheck, HealthTracker


def test_failures_and_successes_count_in_a_row():
    tracker = HealthTracker(HealthCheck(failures=2, successes=3))
    assert [tracker.on_failure(), tracker.on_success(), tracker.on_failure()] == [True, True, True]
    assert not tracker.on_failure()
    assert [tracker.on_success(), tracker.on_success(), tracker.on_failure()] == [False] * 3
    assert [tracker.on_success(), tracker.on_success(), tracker.on_success()] == [False, False, True]


@pytest.mark.parametrize("fields", [{"timeout_s": 0.0}, {"timeout_s": 6.0}, {"failures": 0}, {"successes": 0}])
def test_impossible_settings_are_refused(fields):
    with pytest.raises(ConfigError):
        HealthCheck(**fields)
