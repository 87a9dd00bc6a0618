import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.errors import ConfigError
from argosy.fleet.policies.alerts import (
    AlertConfig,
    FairShareRule,
    LatencyRule,
    QuotaRule,
    RollingPercentile,
    Sustained,
)

CONFIG = AlertConfig(latency_target_s=1.0)


@pytest.mark.parametrize(
    "setting",
    [
        {"latency_target_s": 0.0}, {"latency_factor": 0.9}, {"quota_ratio": 0.0}, {"quota_ratio": 1.1},
        {"fair_share_factor": 1.0}, {"hold_s": -1.0}, {"window_s": 0.0}, {"max_subjects": 0}, {"hold_s": math.nan},
    ],
)  # fmt: skip
def test_settings_out_of_range(setting):
    with pytest.raises(ConfigError, match=next(iter(setting))):
        AlertConfig(**setting)


def test_a_condition_fires_only_when_it_holds_without_a_break():
    state = Sustained(300.0)
    assert not state.observe(True, 0.0)
    assert not state.observe(True, 299.0)
    assert not state.observe(False, 299.5)
    assert not state.observe(True, 300.0)
    assert not state.observe(True, 599.0)
    assert state.observe(True, 600.0)
    assert state.is_firing
    assert not state.observe(True, 900.0)
    assert state.observe(False, 901.0)
    assert not state.is_firing


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=300), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_percentile_is_exact_to_its_bucket(values, fraction):
    rolling = RollingPercentile(60.0)
    for value in values:
        rolling.observe(value, 10.0)
    exact = sorted(values)[max(0, math.ceil(fraction * len(values) - 1e-9) - 1)]
    found = rolling.value(fraction, 10.0)
    assert exact * (1 - 1e-9) <= found <= exact * RollingPercentile.GROWTH * (1 + 1e-9)


def test_old_values_leave_the_window():
    rolling = RollingPercentile(60.0)
    rolling.observe(9.0, 0.0)
    assert rolling.value(0.99, 59.0) == pytest.approx(9.0, rel=0.03)
    assert rolling.value(0.99, 60.0) is None


def test_a_percentile_takes_bounded_memory():
    rolling, rng = RollingPercentile(60.0), Random(1)
    for step in range(20_000):
        rolling.observe(rng.lognormvariate(0, 8), step * 0.05)
    buckets = math.log(rolling.HIGHEST / rolling.LOWEST, rolling.GROWTH) + 2
    assert sum(len(counts) for _, counts in rolling._slots) <= rolling.SLOTS * buckets


def observe_latency(rule: LatencyRule, latency_s: float, begin_s: int, end_s: int) -> list:
    changes = []
    for now_s in range(begin_s, end_s, 5):
        rule.observe("m", latency_s, float(now_s))
        changes += rule.changes(float(now_s))
    return changes


def test_latency_above_110_percent_of_its_target_for_five_minutes_alerts():
    rule = LatencyRule(CONFIG)
    changes = observe_latency(rule, 1.2, 0, 400)
    assert [(change.alert, change.subject, change.is_firing, change.at_s) for change in changes] == [
        ("latency", "m", True, 300.0)
    ]
    assert changes[0].threshold == pytest.approx(1.1)
    # Slow answers stay in the window for a minute; when they are out of it the alert is over.
    over = observe_latency(rule, 0.5, 400, 600)
    assert [(change.is_firing, change.at_s) for change in over] == [(False, 450.0)]


@pytest.mark.parametrize("latency_s", [1.0, 1.07])
def test_latency_just_above_its_target_does_not(latency_s):
    assert observe_latency(LatencyRule(CONFIG), latency_s, 0, 1000) == []


def test_a_break_begins_the_five_minutes_again():
    rule = LatencyRule(CONFIG)
    assert observe_latency(rule, 2.0, 0, 250) == []
    assert observe_latency(rule, 0.1, 250, 350) == []
    changes = observe_latency(rule, 2.0, 350, 700)
    assert [change.at_s for change in changes] == [650.0]


def test_a_model_that_nobody_asks_stops_alerting():
    rule = LatencyRule(CONFIG)
    observe_latency(rule, 2.0, 0, 310)
    assert [(change.subject, change.is_firing) for change in rule.changes(1000.0)] == [("m", False)]
    assert rule.p99_s(1000.0) == {}
    assert not rule._latencies
    assert not rule._states


def test_no_target_no_alert():
    assert observe_latency(LatencyRule(AlertConfig()), 1000.0, 0, 1000) == []


def test_a_quota_alerts_at_90_percent_at_once_and_once():
    rule = QuotaRule(CONFIG)
    assert rule.changes({"key/a/tokens": 0.89}, 1.0) == []
    first = rule.changes({"key/a/tokens": 9 / 10, "key/b/tokens": 1.2}, 2.0)
    assert [(change.subject, change.is_firing) for change in first] == [("key/a/tokens", True), ("key/b/tokens", True)]
    assert rule.changes({"key/a/tokens": 0.95, "key/b/tokens": 1.0}, 3.0) == []
    over = rule.changes({"key/a/tokens": 0.5}, 4.0)
    assert [(change.subject, change.is_firing) for change in over] == [("key/a/tokens", False), ("key/b/tokens", False)]


def serve(rule: FairShareRule, tokens: dict[str, float], begin_s: int, end_s: int, **weights: float) -> list:
    changes = []
    for now_s in range(begin_s, end_s, 5):
        for tenant, amount in tokens.items():
            rule.observe(tenant, amount, float(now_s), weight=weights.get(tenant, 1.0))
        changes += rule.changes(float(now_s))
    return changes


def test_more_than_twice_the_fair_share_for_five_minutes_is_a_noisy_neighbour():
    rule = FairShareRule(CONFIG)
    light = {f"t{number}": 1.0 for number in range(9)}
    changes = serve(rule, {"loud": 91.0, **light}, 0, 400)
    assert [(change.alert, change.subject, change.at_s) for change in changes] == [("noisy_neighbour", "loud", 300.0)]
    assert changes[0].value == pytest.approx(9.1)
    over = serve(rule, {"loud": 1.0, **light}, 400, 500)
    assert [(change.subject, change.is_firing) for change in over] == [("loud", False)]


def test_exactly_twice_is_none():
    rule = FairShareRule(CONFIG)
    assert serve(rule, {"a": 2.0, "b": 0.5, "c": 0.5, "d": 1.0}, 0, 1000) == []
    assert rule.ratios(999.0)["a"] == pytest.approx(2.0)


def test_weights_are_shares():
    rule = FairShareRule(CONFIG)
    assert serve(rule, {"a": 9.0, "b": 1.0}, 0, 600, a=9.0) == []
    assert rule.ratios(599.0) == pytest.approx({"a": 1.0, "b": 1.0})


def test_a_tenant_alone_has_its_fair_share():
    rule = FairShareRule(CONFIG)
    assert serve(rule, {"a": 100.0}, 0, 600) == []
    assert rule.ratios(599.0) == {"a": 1.0}


def test_tenants_and_models_that_are_watched_are_bounded():
    config = AlertConfig(latency_target_s=1.0, max_subjects=10)
    shares, latency = FairShareRule(config), LatencyRule(config)
    for number in range(100):
        shares.observe(f"t{number}", 1.0, 1.0)
        latency.observe(f"m{number}", 1.0, 1.0)
    assert len(shares.ratios(1.0)) == 10
    assert len(latency.p99_s(1.0)) == 10
    # They make room when they are idle.
    assert shares.ratios(100.0) == {}
    latency.changes(100.0)
    shares.observe("new", 1.0, 100.0)
    latency.observe("new", 1.0, 100.0)
    assert set(shares.ratios(100.0)) == set(latency.p99_s(100.0)) == {"new"}
