import math
from dataclasses import replace
from random import Random

import pytest

from argosy.errors import ConfigError
from argosy.fleet.policies.deep_check import judge_logprobs
from argosy.fleet.policies.health_state import DEFAULT_CHECKS, HealthConfig, HealthPhase, HealthState, ProbeKind, ProbeResult

LIVE, READY, DEEP = ProbeKind.LIVE, ProbeKind.READY, ProbeKind.DEEP
OK, FAILED, LOADING, BUSY = ProbeResult.OK, ProbeResult.FAILED, ProbeResult.LOADING, ProbeResult.BUSY


def serving() -> HealthState:
    state = HealthState(HealthConfig())
    for kind in (LIVE, READY, DEEP):
        state.on_probe(kind, OK, 0.0)
    assert state.phase is HealthPhase.READY
    return state


def test_default_intervals_timeouts_and_failures():
    stated = {kind: (check.interval_s, check.timeout_s, check.failures) for kind, check in DEFAULT_CHECKS.items()}
    assert stated == {LIVE: (10.0, 5.0, 3), READY: (5.0, 3.0, 2), DEEP: (30.0, 10.0, 1)}


def test_probes_are_made_at_their_intervals_and_never_two_of_a_kind():
    state = HealthState(HealthConfig())
    times = {LIVE: [], READY: [], DEEP: []}
    for now_s in range(61):
        for kind in state.due(float(now_s)):
            times[kind].append(now_s)
            state.on_probe(kind, OK, float(now_s))
    assert times == {LIVE: list(range(0, 61, 10)), READY: list(range(0, 61, 5)), DEEP: [0, 30, 60]}
    state.due(70.0)
    assert state.due(200.0) == [DEEP], "live and ready have not answered yet; only the deep one was not due before"


def test_it_is_unknown_until_live_and_ready_have_answered_and_then_ready():
    state = HealthState(HealthConfig())
    assert not state.takes_requests
    assert not state.on_probe(LIVE, OK, 0.0)
    assert state.phase is HealthPhase.UNKNOWN
    assert state.on_probe(READY, OK, 0.0)
    assert state.takes_requests


def test_the_first_failure_of_a_kind_decides_alone_and_later_ones_in_a_row():
    state = HealthState(HealthConfig())
    state.on_probe(LIVE, OK, 0.0)
    state.on_probe(READY, FAILED, 0.0)
    assert state.phase is HealthPhase.UNREADY
    state = serving()
    assert not state.on_probe(READY, FAILED, 5.0)
    assert state.on_probe(READY, FAILED, 10.0)
    assert state.phase is HealthPhase.UNREADY
    assert state.on_probe(READY, OK, 15.0)
    state = serving()
    for _ in range(2):
        state.on_probe(LIVE, FAILED, 10.0)
        assert state.phase is HealthPhase.READY
    state.on_probe(LIVE, FAILED, 30.0)
    assert state.phase is HealthPhase.DOWN


def test_one_failed_deep_probe_takes_it_out_while_live_and_ready_are_fine():
    state = serving()
    assert state.on_probe(DEEP, FAILED, 30.0)
    assert state.phase is HealthPhase.UNREADY
    state.on_probe(READY, OK, 35.0)
    assert state.phase is HealthPhase.UNREADY
    assert DEEP in state.due(60.0), "only a deep probe can bring it back"
    state.on_probe(DEEP, OK, 60.0)
    assert state.phase is HealthPhase.READY


def test_a_busy_server_says_nothing_of_its_model():
    state = serving()
    for _ in range(10):
        assert not state.on_probe(DEEP, BUSY, 30.0)
        assert not state.on_probe(READY, BUSY, 30.0)


def test_no_token_is_asked_of_a_backend_that_is_down_or_loading():
    state = HealthState(HealthConfig())
    state.on_probe(LIVE, OK, 0.0)
    state.on_probe(READY, LOADING, 0.0)
    assert DEEP not in state.due(100.0)
    state.on_probe(LIVE, FAILED, 100.0)
    assert DEEP not in state.due(200.0)


def test_loading_is_no_failure_and_ends_with_ready():
    state = HealthState(HealthConfig(loading_timeout_s=100.0))
    state.on_probe(LIVE, OK, 0.0)
    for now_s in (0.0, 5.0, 40.0):
        state.on_probe(READY, LOADING, now_s)
        assert state.phase is HealthPhase.LOADING
    state.on_probe(READY, OK, 45.0)
    assert state.phase is HealthPhase.READY
    state.on_probe(READY, LOADING, 50.0)
    state.on_probe(READY, LOADING, 149.0)
    assert state.phase is HealthPhase.LOADING
    state.on_probe(READY, LOADING, 150.0)
    assert state.phase is HealthPhase.UNREADY


def test_a_load_that_fails_is_not_ready():
    state = HealthState(HealthConfig())
    state.on_probe(LIVE, OK, 0.0)
    state.on_probe(READY, LOADING, 0.0)
    state.on_probe(READY, FAILED, 5.0)
    assert state.phase is HealthPhase.UNREADY
    state = HealthState(HealthConfig())
    state.on_probe(READY, LOADING, 0.0)
    for now_s in range(3):
        state.on_probe(LIVE, FAILED, float(now_s))
    assert state.phase is HealthPhase.DOWN
    state.on_probe(LIVE, OK, 5000.0)
    state.on_probe(READY, LOADING, 5000.0)
    assert state.phase is HealthPhase.LOADING, "a load begun anew has all its time again"


def test_a_model_that_is_not_in_memory_takes_no_requests_and_no_deep_probes():
    state = serving()
    state.on_probe(READY, ProbeResult.ASLEEP, 5.0)
    assert state.phase is HealthPhase.ASLEEP
    assert DEEP not in state.due(100.0)
    state.on_probe(READY, LOADING, 6.0)
    assert state.phase is HealthPhase.LOADING
    state.on_probe(READY, OK, 46.0)
    assert state.phase is HealthPhase.READY


def test_it_remembers_whether_it_was_ready_since_it_was_down():
    state = HealthState(HealthConfig())
    assert not state.was_ready
    state = serving()
    state.on_probe(DEEP, FAILED, 1.0)
    assert state.was_ready
    for _ in range(3):
        state.on_probe(LIVE, FAILED, 2.0)
    assert not state.was_ready


def test_a_suspect_is_probed_at_once_but_costs_no_token():
    state = serving()
    state.due(0.0)
    for kind in (LIVE, READY, DEEP):
        state.on_probe(kind, OK, 0.1)
    assert state.due(1.0) == []
    state.suspect()
    assert state.next_due_s() == -math.inf
    assert set(state.due(1.0)) == {LIVE, READY}


def test_a_backend_that_is_not_probed_is_ready():
    state = HealthState(replace(HealthConfig(), checks={}))
    assert state.takes_requests
    assert state.due(0.0) == []
    assert state.next_due_s() == math.inf
    with pytest.raises(ConfigError, match="loading_timeout_s"):
        HealthConfig(loading_timeout_s=0.0)


def top_of(weights: list[float], k: int = 5) -> list[float]:
    total = sum(weights)
    return [math.log(weight / total) for weight in sorted(weights, reverse=True)[:k]]


def test_plausible_distributions_are_sane():
    for seed in range(50):
        rng = Random(seed)
        assert judge_logprobs(top_of([math.exp(rng.gauss(0.0, 2.0)) for _ in range(1000)])) is None


def test_broken_distributions_are_not():
    assert "finite" in judge_logprobs([math.nan, -1.0])
    assert "finite" in judge_logprobs([0.5, -1.0])
    assert "finite" in judge_logprobs([math.inf])
    assert "entropy" in judge_logprobs(top_of([1.0] * 32_000))
    assert "entropy" in judge_logprobs([0.0, -30.0, -31.0])
    assert "entropy" in judge_logprobs([0.0, -math.inf, -math.inf])
    assert judge_logprobs([-math.inf, -math.inf]) == "no token has a probability above 0"
    assert judge_logprobs([]) == "no token has a probability above 0"


def test_a_single_logprob_is_judged_by_its_value_only():
    assert judge_logprobs([-0.2]) is None
    assert judge_logprobs([-0.2, -2.0], band=(0.99, 1.0)) is not None
