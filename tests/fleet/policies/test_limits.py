import pytest

from argosy.errors import ConfigError
from argosy.fleet.policies.limits import Demand, Limits, nano_usd


def test_nothing_is_derived_from_another_limit():
    limits = Limits(rpm=5)
    assert limits.tpm is None
    assert limits.max_parallel is None
    assert limits.budget_nano_usd is None
    assert not limits.is_empty
    assert Limits().is_empty
    assert Limits(budget_period_s=60.0).is_empty


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rpm": -1}, "rpm"),
        ({"max_output_tokens": -5}, "max_output_tokens"),
        ({"max_budget_usd": -0.1}, "max_budget_usd"),
        ({"max_budget_usd": 1e9}, "max_budget_usd"),
        ({"budget_period_s": 0.0}, "budget_period_s"),
        ({"max_budget_usd": float("nan")}, "max_budget_usd"),
    ],
)
def test_an_impossible_limit_is_named(settings, named):
    with pytest.raises(ConfigError, match=named):
        Limits(**settings)


def test_shares_stay_within_the_whole_and_are_never_nothing():
    limits = Limits(rpm=10, tpm=100, max_parallel=1, kv_tokens=0, max_input_tokens=50, max_budget_usd=9.0)
    share = limits.share(3)
    assert (share.rpm, share.tpm, share.max_parallel, share.kv_tokens) == (3, 33, 1, 0)
    assert share.max_budget_usd == 3.0
    assert share.max_input_tokens == 50
    assert limits.share(1) == limits


@pytest.mark.parametrize("amounts", [{"input_tokens": -1}, {"output_tokens_estimate": -1}, {"cost_usd_estimate": -0.1}])
def test_a_demand_cannot_be_negative(amounts):
    with pytest.raises(ValueError, match="negative"):
        Demand(**amounts)


def test_nano_dollars_return_to_zero():
    assert nano_usd(0.1) + nano_usd(0.2) - nano_usd(0.3) == 0
