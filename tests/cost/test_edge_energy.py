import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.cost.edge_energy import bandwidth_ratio, battery_share, seconds_on_battery
from argosy.errors import ConfigError


def test_half_an_hour_at_four_and_a_half_watts():
    assert battery_share(4.5, 30 * 60, 15) == pytest.approx(0.15)


def test_server_memory_against_edge_memory():
    ratio = bandwidth_ratio(3350e9, 64e9, 100e9)
    assert (ratio.low, ratio.high) == pytest.approx((33.5, 52.3), rel=0.005)
    assert (round(ratio.low), round(ratio.high)) == (34, 52)


@given(st.floats(0.1, 100), st.floats(0.1, 1000), st.floats(0.01, 1))
def test_time_on_battery_inverts_the_share(power, capacity, share):
    assert battery_share(power, seconds_on_battery(power, capacity, share), capacity) == pytest.approx(share)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: battery_share(-1, 1, 1), "power_w"),
        (lambda: battery_share(1, float("nan"), 1), "seconds"),
        (lambda: battery_share(1, 1, 0), "battery_wh"),
        (lambda: seconds_on_battery(0, 1), "power_w"),
        (lambda: seconds_on_battery(1, 1, 1.5), "share"),
        (lambda: bandwidth_ratio(1, 2, 1), "low to high"),
        (lambda: bandwidth_ratio(0, 1, 2), "server"),
    ],
)
def test_nonsense_is_refused_by_name(call, field):
    with pytest.raises(ConfigError, match=field):
        call()
