import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.cost.scaling import (
    LOCAL_SSD_BYTES_PER_S,
    OBJECT_STORE_BYTES_PER_S,
    ColdStart,
    daily_schedule,
    load_time_s,
    reactive_peak_replicas,
    reactive_replicas,
    replicas_for_rate,
    replicas_wanted,
    scheduled_replica_hours,
    spike,
)
from argosy.errors import ConfigError

DAY = ((0, 500), (6, 1500), (9, 3000), (17, 2000), (20, 1000))


def test_cold_start_of_seven_minutes():
    assert ColdStart().total_s == 420
    assert ColdStart(load_weights_s=0).total_s == 120


def test_load_time_of_seventy_billion_parameters():
    assert load_time_s(140e9, LOCAL_SSD_BYTES_PER_S) == pytest.approx(23.3, rel=0.005)
    assert load_time_s(140e9, OBJECT_STORE_BYTES_PER_S) == pytest.approx(280)


def test_spike_to_three_times_the_traffic():
    hit = spike(10, 0.7, 1000, 3000, cold_start_s=420)
    assert hit.utilisation == pytest.approx(2.10)
    assert (hit.replicas_wanted, hit.extra_replicas) == (30, 20)
    assert hit.backlog_requests == pytest.approx((3000 - 1000 / 0.7) * 420)
    assert spike(10, 0.7, 1000, 500).extra_replicas == 0


def test_replicas_wanted_by_queue_by_latency_and_by_forecast():
    assert reactive_replicas(10, observed=25, target=10) == 25
    assert reactive_replicas(10, observed=1.2, target=0.5) == 24
    assert reactive_replicas(3, observed=1.01, target=1.0) == 4
    assert reactive_replicas(3, observed=0, target=1.0) == 1
    assert replicas_wanted(predicted=12, reactive=9, buffer=2) == 14
    assert replicas_wanted(predicted=5, reactive=9, buffer=2) == 11


def test_warm_pool_for_a_peak_of_twice_the_usual():
    usual = 1000.0
    assert replicas_for_rate(2 * usual, usual, margin=1.5) == 3


def test_a_quotient_that_is_whole_costs_no_extra_replica():
    assert replicas_for_rate(0.3, 0.1) == 3
    assert reactive_replicas(10, observed=0.3, target=0.1) == 30


def test_daily_schedule_is_half_an_hour_early_up_and_on_time_down():
    schedule = daily_schedule(DAY, 100)
    assert [(entry.clock, entry.replicas) for entry in schedule] == [
        ("00:00", 5),
        ("05:30", 15),
        ("08:30", 30),
        ("17:00", 20),
        ("20:00", 10),
    ]
    assert reactive_peak_replicas(3000, 100) == 45
    assert scheduled_replica_hours(schedule) == pytest.approx(5 * 5.5 + 15 * 3 + 30 * 8.5 + 20 * 3 + 10 * 4)


def test_a_rise_at_midnight_starts_the_evening_before():
    schedule = daily_schedule(((0, 500), (12, 100)), 100)
    assert [(entry.clock, entry.replicas) for entry in schedule] == [("12:00", 1), ("23:30", 5)]
    assert scheduled_replica_hours(schedule) == pytest.approx(11.5 * 1 + 12.5 * 5)


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=8), st.floats(0, 1))
def test_scheduled_replicas_are_enough_at_every_minute(rates, lead_h):
    traffic = [(3 * index, rate) for index, rate in enumerate(rates)]
    schedule = daily_schedule(traffic, 100, lead_h=lead_h)

    def at(entries, hour):
        earlier = [value for start, value in entries if start <= hour]
        return earlier[-1] if earlier else entries[-1][1]

    running = [(entry.at_h, entry.replicas) for entry in schedule]
    for tenth in range(240):
        assert at(running, tenth / 10) >= math.ceil(at(traffic, tenth / 10) / 100)


@given(st.floats(0, 1e6), st.floats(0.1, 1e4), st.floats(1, 5))
def test_replicas_carry_the_rate(rate, each, margin):
    count = replicas_for_rate(rate, each, margin=margin)
    assert count * each >= rate * margin * (1 - 1e-9)
    assert count == 1 or (count - 1) * each < rate * margin


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: ColdStart(warm_up_s=-1), "warm_up_s"),
        (lambda: load_time_s(1, 0), "bytes_per_s"),
        (lambda: spike(0, 0.7, 1, 1), "replicas"),
        (lambda: spike(1, 0.7, 0, 1), "rate_per_s"),
        (lambda: spike(1, math.nan, 1, 1), "utilisation"),
        (lambda: reactive_replicas(1, observed=1, target=0), "target"),
        (lambda: reactive_replicas(1, observed=-1, target=1), "observed"),
        (lambda: replicas_wanted(predicted=-1, reactive=1), "predicted"),
        (lambda: replicas_for_rate(-5, 1), "rate_per_s"),
        (lambda: replicas_for_rate(5, 1, margin=0), "margin"),
        (lambda: daily_schedule([], 100), "hour 0"),
        (lambda: daily_schedule([(1, 5)], 100), "hour 0"),
        (lambda: daily_schedule([(0, 5), (25, 6)], 100), "rise within"),
        (lambda: daily_schedule([(0, 5), (0, 6)], 100), "rise within"),
        (lambda: daily_schedule([(0, 5), (math.nan, 6)], 100), "rise within"),
        (lambda: daily_schedule([(0, 100), (0.25, 600)], 100), "lead_h 0.5"),
        (lambda: daily_schedule([(0, 100)], 100, lead_h=-1), "lead_h"),
        (lambda: scheduled_replica_hours(()), "at least one entry"),
    ],
)
def test_nonsense_is_refused_by_name(call, field):
    with pytest.raises(ConfigError, match=field):
        call()
