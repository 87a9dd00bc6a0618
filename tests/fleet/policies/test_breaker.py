from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.errors import ConfigError
from argosy.fleet.policies.breaker import (
    Breaker,
    BreakerConfig,
    BreakerPair,
    BreakerState,
    Verdict,
    verdict_of_status,
)

CONFIG = BreakerConfig()


def report(breaker: Breaker, verdict: Verdict, now_s: float, **fields) -> None:
    permit = breaker.begin(now_s)
    assert permit is not None
    breaker.on_result(permit, verdict, now_s, **fields)


def opened(now_s: float = 0.0, config: BreakerConfig = CONFIG) -> Breaker:
    breaker = Breaker("b", config)
    for _ in range(config.min_requests):
        report(breaker, Verdict.FAILURE, now_s)
    assert breaker.state(now_s) is BreakerState.OPEN
    return breaker


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (200, Verdict.SUCCESS),
        (204, Verdict.SUCCESS),
        (400, Verdict.NEUTRAL),
        (404, Verdict.NEUTRAL),
        (408, Verdict.NEUTRAL),
        (422, Verdict.NEUTRAL),
        (429, Verdict.THROTTLED),
        (529, Verdict.THROTTLED),
        (500, Verdict.FAILURE),
        (502, Verdict.FAILURE),
        (503, Verdict.FAILURE),
        (504, Verdict.FAILURE),
    ],
)
def test_only_server_errors_are_failures(status, verdict):
    assert verdict_of_status(status) is verdict


def test_a_backend_that_loads_its_model_fails_nothing():
    assert verdict_of_status(503, loading=True) is Verdict.NEUTRAL
    assert verdict_of_status(500, loading=True) is Verdict.FAILURE


def test_half_of_the_answers_failing_opens_it_and_fewer_do_not():
    below, at = Breaker("b", BreakerConfig(min_requests=10)), Breaker("b", BreakerConfig(min_requests=10))
    for _ in range(11):
        report(below, Verdict.SUCCESS, 0.0)
        report(at, Verdict.SUCCESS, 0.0)
    for _ in range(10):
        report(below, Verdict.FAILURE, 0.0)
        report(at, Verdict.FAILURE, 0.0)
    assert below.state(0.0) is at.state(0.0) is BreakerState.CLOSED
    report(at, Verdict.FAILURE, 0.0)
    assert at.state(0.0) is BreakerState.OPEN


def test_a_few_failures_conclude_nothing():
    breaker = Breaker("b", CONFIG)
    for _ in range(4):
        report(breaker, Verdict.FAILURE, 0.0)
    assert breaker.state(0.0) is BreakerState.CLOSED


def test_failures_that_are_long_ago_are_forgotten():
    breaker = Breaker("b", CONFIG)
    for _ in range(4):
        report(breaker, Verdict.FAILURE, 0.0)
    report(breaker, Verdict.FAILURE, 31.0)
    assert breaker.state(31.0) is BreakerState.CLOSED
    fresh = Breaker("b", CONFIG)
    for moment in (0.0, 7.0, 14.0, 21.0, 26.0):
        report(fresh, Verdict.FAILURE, moment)
    assert fresh.state(26.0) is BreakerState.OPEN


def test_bad_clients_and_throttling_never_open_it():
    breaker = Breaker("b", CONFIG)
    for _ in range(100):
        report(breaker, Verdict.NEUTRAL, 0.0)
        report(breaker, Verdict.THROTTLED, 0.0)
    assert breaker.state(0.0) is BreakerState.CLOSED
    report(breaker, Verdict.SUCCESS, 0.0)


def test_bad_clients_do_not_hide_failures_either():
    breaker = Breaker("b", CONFIG)
    for _ in range(100):
        report(breaker, Verdict.NEUTRAL, 0.0)
    for _ in range(5):
        report(breaker, Verdict.FAILURE, 0.0)
    assert breaker.state(0.0) is BreakerState.OPEN


def test_a_stream_that_breaks_is_a_failure_and_no_success():
    breaker = Breaker("b", CONFIG)
    begun = [breaker.begin(0.0) for _ in range(10)]
    for permit in begun:
        breaker.on_result(permit, Verdict.SUCCESS, 1.0, latency_s=1.0)
    for permit in begun[:4]:
        breaker.on_result(permit, Verdict.FAILURE, 9.0)
    assert breaker.state(9.0) is BreakerState.CLOSED
    breaker.on_result(begun[4], Verdict.FAILURE, 9.0)
    assert breaker.state(9.0) is BreakerState.OPEN


def test_a_probe_whose_stream_breaks_was_no_success():
    breaker = opened(0.0)
    probe = breaker.begin(30.0)
    breaker.on_result(probe, Verdict.SUCCESS, 31.0)
    breaker.on_result(probe, Verdict.FAILURE, 32.0)
    report(breaker, Verdict.SUCCESS, 33.0)
    assert breaker.state(33.0) is BreakerState.HALF_OPEN
    report(breaker, Verdict.SUCCESS, 34.0)
    assert breaker.state(34.0) is BreakerState.CLOSED


def test_open_for_thirty_seconds_then_one_probe_at_a_time_and_two_successes_close():
    breaker = opened(0.0)
    assert breaker.begin(29.99) is None
    assert breaker.allowed_at_s(10.0) == 30.0
    first = breaker.begin(30.0)
    assert first is not None
    assert first.is_probe
    assert breaker.state(30.0) is BreakerState.HALF_OPEN
    assert not breaker.allow(30.0)
    assert breaker.begin(31.0) is None
    breaker.on_result(first, Verdict.SUCCESS, 31.0)
    second = breaker.begin(31.0)
    assert second is not None
    assert breaker.begin(31.0) is None
    breaker.on_result(second, Verdict.SUCCESS, 32.0)
    assert breaker.state(32.0) is BreakerState.CLOSED
    assert not breaker.begin(32.0).is_probe
    assert breaker.begin(32.0) is not None


def test_of_five_probes_two_must_succeed():
    breaker = opened(0.0)
    for verdict in (Verdict.FAILURE, Verdict.SUCCESS, Verdict.FAILURE, Verdict.FAILURE):
        assert breaker.state(30.0) is BreakerState.HALF_OPEN
        report(breaker, verdict, 30.0)
    assert breaker.state(30.0) is BreakerState.HALF_OPEN
    report(breaker, Verdict.SUCCESS, 30.0)
    assert breaker.state(30.0) is BreakerState.CLOSED


def test_four_failed_probes_open_it_again_for_thirty_seconds():
    breaker = opened(0.0)
    for _ in range(4):
        report(breaker, Verdict.FAILURE, 40.0)
    assert breaker.state(69.9) is BreakerState.OPEN
    assert breaker.state(70.0) is BreakerState.HALF_OPEN
    assert breaker.num_opened == 2


@pytest.mark.parametrize("verdict", [Verdict.NEUTRAL, Verdict.THROTTLED])
def test_a_probe_that_says_nothing_gives_its_place_back(verdict):
    breaker = opened(0.0)
    for _ in range(20):
        report(breaker, verdict, 30.0)
    assert breaker.state(30.0) is BreakerState.HALF_OPEN
    assert breaker.allow(30.0)


def test_a_probe_that_is_never_reported_does_not_keep_it_half_open_for_ever():
    breaker = opened(0.0)
    lost = breaker.begin(30.0)
    assert breaker.begin(149.9) is None
    found = breaker.begin(150.0)
    assert found is not None
    breaker.on_result(lost, Verdict.FAILURE, 151.0)
    assert not breaker.allow(151.0), "the probe that was given up must not free the place of the other"
    breaker.on_result(found, Verdict.SUCCESS, 151.0)
    assert breaker.allow(151.0)


def test_what_began_before_it_opened_says_nothing_after():
    breaker = Breaker("b", CONFIG)
    early = [breaker.begin(0.0) for _ in range(20)]
    for permit in early[:5]:
        breaker.on_result(permit, Verdict.FAILURE, 1.0)
    assert breaker.state(31.0) is BreakerState.HALF_OPEN
    for permit in early[5:10]:
        breaker.on_result(permit, Verdict.SUCCESS, 31.0)
    assert breaker.state(31.0) is BreakerState.HALF_OPEN
    for permit in early[10:]:
        breaker.on_result(permit, Verdict.FAILURE, 31.0)
    assert breaker.state(31.0) is BreakerState.HALF_OPEN


def test_twice_the_usual_latency_opens_it():
    breaker = Breaker("b", CONFIG)
    now_s = 0.0
    for _ in range(100):
        report(breaker, Verdict.SUCCESS, now_s, latency_s=1.0)
        now_s += 0.1
    now_s += 30.0
    for _ in range(19):
        report(breaker, Verdict.SUCCESS, now_s, latency_s=2.1)
    assert breaker.state(now_s) is BreakerState.CLOSED
    report(breaker, Verdict.SUCCESS, now_s, latency_s=2.1)
    assert breaker.state(now_s) is BreakerState.OPEN


@pytest.mark.parametrize("latency_s", [1.9, 0.499])
def test_less_than_twice_and_less_than_the_floor_do_not(latency_s):
    usual_s = 1.0 if latency_s > 1.0 else 0.01
    breaker = Breaker("b", CONFIG)
    for number in range(40):
        report(breaker, Verdict.SUCCESS, 0.1 * number, latency_s=usual_s)
    for _ in range(100):
        report(breaker, Verdict.SUCCESS, 50.0, latency_s=latency_s)
    assert breaker.state(50.0) is BreakerState.CLOSED


def test_one_very_slow_answer_does_not_open_it():
    breaker = Breaker("b", CONFIG)
    for number in range(200):
        report(breaker, Verdict.SUCCESS, 0.05 * number, latency_s=1.0)
    report(breaker, Verdict.SUCCESS, 10.0, latency_s=120.0)
    assert breaker.state(10.0) is BreakerState.CLOSED


def test_a_slow_probe_does_not_close_it_but_one_that_stays_slow_becomes_usual():
    breaker = Breaker("b", CONFIG)
    for number in range(40):
        report(breaker, Verdict.SUCCESS, 0.1 * number, latency_s=1.0)
    for _ in range(5 + 40):
        if breaker.state(5.0) is BreakerState.CLOSED:
            report(breaker, Verdict.FAILURE, 5.0)
    now_s = 35.0
    report(breaker, Verdict.SUCCESS, now_s, latency_s=3.0)
    report(breaker, Verdict.SUCCESS, now_s, latency_s=3.0)
    assert breaker.state(now_s) is BreakerState.HALF_OPEN
    while breaker.state(now_s) is not BreakerState.CLOSED:
        now_s += 31.0
        assert now_s < 1800.0
        if breaker.allow(now_s):
            report(breaker, Verdict.SUCCESS, now_s, latency_s=3.0)
    assert now_s > 100.0


def test_a_429_keeps_requests_away_for_as_long_as_it_asks():
    breaker = Breaker("b", CONFIG)
    report(breaker, Verdict.THROTTLED, 10.0, retry_after_s=5.0)
    assert not breaker.allow(14.9)
    assert breaker.allowed_at_s(12.0) == 15.0
    assert breaker.allow(15.0)
    assert breaker.state(12.0) is BreakerState.CLOSED
    report(breaker, Verdict.THROTTLED, 20.0, retry_after_s=86_400.0)
    assert not breaker.allow(79.9)
    assert breaker.allow(80.0)


def test_a_pair_is_let_through_only_together():
    prefill, decode = opened(0.0), Breaker("d", CONFIG)
    pair = BreakerPair(decode, prefill)
    assert pair.begin(1.0) is None
    permits = pair.begin(30.0)
    assert [permit.backend_id for permit in permits] == ["d", "b"]
    assert pair.begin(30.0) is None
    assert decode.allow(30.0)
    other = opened(0.0)
    assert BreakerPair(prefill, other).begin(30.0) is None
    assert other.allow(30.0), "the probe of the one that is free must not have been taken"


@given(st.lists(st.tuples(st.sampled_from(list(Verdict)), st.floats(0.0, 20.0), st.booleans()), max_size=80), st.integers())
def test_never_more_than_one_probe_and_never_a_request_while_open(steps, seed):
    rng, breaker, now_s = Random(seed), Breaker("b", BreakerConfig(probe_timeout_s=1e6)), 0.0
    held = []
    for verdict, wait_s, reports in steps:
        now_s += wait_s
        state = breaker.state(now_s)
        permit = breaker.begin(now_s)
        if state is BreakerState.OPEN:
            assert permit is None
        if permit is not None:
            held.append(permit)
        probes = [each for each in held if each.is_probe and each.epoch == breaker._epoch]
        assert len(probes) <= 1
        if reports and held:
            breaker.on_result(held.pop(rng.randrange(len(held))), verdict, now_s, latency_s=1.0)
            probes = [each for each in held if each.is_probe and each.epoch == breaker._epoch]
        if breaker.state(now_s) is BreakerState.HALF_OPEN:
            assert breaker.allow(now_s) == (not probes)


@pytest.mark.parametrize(
    "fields",
    [
        {"error_fraction": 0.0},
        {"latency_ratio": 1.0},
        {"min_requests": 0},
        {"min_latency_samples": 0},
        {"close_successes": 0},
        {"max_probes": 1},
        {"window_s": 0.0},
        {"open_s": float("inf")},
        {"baseline_decay_s": 0.0},
        {"probe_timeout_s": 0.0},
        {"latency_floor_s": -1.0},
        {"max_throttle_s": -1.0},
    ],
)
def test_impossible_settings_are_refused(fields):
    with pytest.raises(ConfigError, match=next(iter(fields))):
        BreakerConfig(**fields)
