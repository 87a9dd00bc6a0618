from random import Random

import pytest

from argosy.fleet.policies.attempts import Attempts
from argosy.fleet.policies.retries import RetryBudget, RetryPolicy


def calls_of_a_request(policy: RetryPolicy, budget: RetryBudget | None, *, fallbacks: int = 0, **fields) -> int:
    """All calls fail; after the retries of one model the next one of the chain is tried."""
    attempts = Attempts(policy, budget, Random(0), **fields)
    left = fallbacks
    attempts.begin("b0")
    while True:
        if attempts.retry_wait_s(0.0) is None:
            if not left or not attempts.may_fall_back(0.0):
                return attempts.num_calls
            left -= 1
        attempts.begin(f"b{attempts.num_calls}")


def test_three_retries_are_four_calls_whatever_the_layers():
    assert calls_of_a_request(RetryPolicy(max_retries=3), None) == 4
    assert calls_of_a_request(RetryPolicy(max_retries=3), None, fallbacks=5) == 4
    assert calls_of_a_request(RetryPolicy(max_retries=0), None, fallbacks=5) == 1


def test_further_calls_are_a_tenth_of_the_requests_with_fallbacks_too():
    budget = RetryBudget(ratio=0.1, max_credits=10.0)
    calls = sum(calls_of_a_request(RetryPolicy(max_retries=3), budget, fallbacks=2) for _ in range(5000))
    assert calls - 5000 == pytest.approx(500, abs=11)


def test_retries_of_the_client_earn_none_here():
    budget = RetryBudget(ratio=1.0, max_credits=2.0)
    assert calls_of_a_request(RetryPolicy(max_retries=2), budget, client_retry_count=1) == 3
    assert calls_of_a_request(RetryPolicy(max_retries=2), budget, client_retry_count=2) == 1
    assert calls_of_a_request(RetryPolicy(max_retries=2), budget) == 2


def test_nothing_after_the_first_byte_and_nothing_after_the_deadline():
    attempts = Attempts(RetryPolicy(max_retries=3, backoff_s=1.0), None, Random(0), deadline_s=10.0)
    attempts.begin("a")
    assert attempts.retry_wait_s(5.0, retry_after_s=5.0) is None
    assert attempts.retry_wait_s(10.0) is None
    assert not attempts.may_fall_back(10.0)
    assert attempts.retry_wait_s(5.0, retry_after_s=4.0) == 4.0
    attempts.first_byte_sent = True
    assert attempts.retry_wait_s(5.0) is None
    assert not attempts.may_fall_back(5.0)


def test_a_model_that_refuses_a_prompt_costs_no_budget():
    budget = RetryBudget(ratio=0.0, max_credits=1.0)
    attempts = Attempts(RetryPolicy(max_retries=3), budget, Random(0))
    attempts.begin("a")
    assert attempts.may_fall_back(0.0, pays=False)
    assert attempts.may_fall_back(0.0)
    assert not attempts.may_fall_back(0.0)
    assert attempts.num_fallbacks == 2


def test_the_client_is_told_not_to_retry_what_was_retried_here():
    attempts = Attempts(RetryPolicy(), None, Random(0))
    attempts.begin("a")
    assert attempts.should_client_retry
    attempts.begin("b")
    assert not attempts.should_client_retry
    assert attempts.tried == {"a", "b"}


def test_a_wait_that_is_asked_for_and_too_long_is_the_clients():
    attempts = Attempts(RetryPolicy(max_retry_after_s=60.0), None, Random(0))
    attempts.begin("a")
    assert attempts.retry_wait_s(0.0, retry_after_s=60.1) is None
    assert attempts.retry_wait_s(0.0, retry_after_s=60.0) == 60.0
