import pytest

from argosy.errors import ConfigError, InvalidRequest
from argosy.fleet.policies.priorities import ClassSettings, Priority, QueueSettings, priority_for
from argosy.fleet.policies.queued_request import QueuedRequest

CRITICAL, STANDARD, BEST_EFFORT = Priority.CRITICAL, Priority.STANDARD, Priority.BEST_EFFORT


@pytest.mark.parametrize(
    ("asked", "default", "highest", "got"),
    [
        (None, STANDARD, CRITICAL, STANDARD),
        ("critical", STANDARD, CRITICAL, CRITICAL),
        ("critical", STANDARD, STANDARD, STANDARD),
        (" Best_Effort ", STANDARD, CRITICAL, BEST_EFFORT),
        ("best-effort", CRITICAL, CRITICAL, BEST_EFFORT),
        (None, CRITICAL, STANDARD, STANDARD),
    ],
)
def test_a_request_may_ask_for_its_keys_class_or_a_lower_one(asked, default, highest, got):
    assert priority_for(asked, default=default, highest=highest) is got


def test_labels_are_spelt_as_in_the_configuration():
    assert [priority.label for priority in Priority] == ["best_effort", "standard", "critical"]
    with pytest.raises(InvalidRequest, match="best_effort, standard, critical"):
        priority_for("urgent", default=STANDARD, highest=CRITICAL)


def test_an_unknown_class_is_refused_with_the_nearest_known_one():
    with pytest.raises(InvalidRequest, match="did you mean 'critical'"):
        priority_for("critcal", default=STANDARD, highest=CRITICAL)


def test_settings_of_a_class_are_found_by_it():
    settings = QueueSettings(ClassSettings(1), ClassSettings(2), ClassSettings(3))
    assert [settings.of(priority).max_requests for priority in (CRITICAL, STANDARD, BEST_EFFORT)] == [1, 2, 3]


@pytest.mark.parametrize(
    "make",
    [
        lambda: ClassSettings(max_requests=-1),
        lambda: ClassSettings(max_bytes=-1),
        lambda: ClassSettings(ttl_s=0.0),
        lambda: ClassSettings(guaranteed_share=0.5),
        lambda: QueueSettings(max_requests=-1),
        lambda: QueueSettings(headroom=0.6),
        lambda: QueueSettings(linger_s=-1.0),
        lambda: QueueSettings(max_tenants=-1),
        lambda: QueuedRequest("r", "t", STANDARD, -1),
        lambda: QueuedRequest("r", "t", STANDARD, 1, weight=0.0),
        lambda: QueuedRequest("r", "t", STANDARD, 1, weight=float("nan")),
    ],
)
def test_impossible_values_are_refused(make):
    with pytest.raises(ConfigError):
        make()
