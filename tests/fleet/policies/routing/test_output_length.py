import pytest

from argosy.errors import ConfigError
from argosy.fleet.policies.routing.output_length import OutputLengthEstimate


def test_groups_are_learnt_apart_and_strangers_get_the_mean_of_all():
    estimate = OutputLengthEstimate(initial_tokens=100.0, weight=0.1)
    assert estimate.tokens("short") == 100
    for _ in range(200):
        estimate.observe("short", 10)
        estimate.observe("long", 500)
    assert (estimate.tokens("short"), estimate.tokens("long")) == (10, 500)
    assert 230 < estimate.tokens("stranger") < 290


def test_groups_are_bounded():
    estimate = OutputLengthEstimate(max_groups=10, weight=1.0)
    for number in range(1000):
        estimate.observe(f"t{number}", number)
    assert len(estimate._of_group) == 10
    assert estimate.tokens("t995") == 995


@pytest.mark.parametrize("fields", [{"initial_tokens": -1.0}, {"weight": 0.0}, {"max_groups": 0}])
def test_impossible_settings_are_refused(fields):
    with pytest.raises(ConfigError):
        OutputLengthEstimate(**fields)
