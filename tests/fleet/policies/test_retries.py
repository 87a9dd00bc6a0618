from random import Random

import pytest

from argosy.errors import ConfigError
from argosy.fleet.policies.retries import RetryBudget, RetryPolicy


def retries_of_a_request_that_always_fails(policy: RetryPolicy, budget: RetryBudget, **fields) -> int:
    calls, rng = 1, Random(0)
    while policy.wait_s(calls, budget, rng, first_byte_sent=False, **fields) is not None:
        calls += 1
    return calls - 1


def test_three_retries_are_four_calls():
    assert retries_of_a_request_that_always_fails(RetryPolicy(max_retries=3), RetryBudget(ratio=1.0)) == 3
    assert retries_of_a_request_that_always_fails(RetryPolicy(max_retries=30), None) == 30


def test_retries_are_a_tenth_of_the_requests_when_all_fail():
    budget, policy = RetryBudget(ratio=0.1, max_credits=10.0), RetryPolicy(max_retries=3)
    retries = 0
    for _ in range(10_000):
        budget.on_request()
        retries += retries_of_a_request_that_always_fails(policy, budget)
    assert retries == pytest.approx(1000, abs=11)


def test_a_quiet_time_saves_up_no_more_than_the_bucket_holds():
    budget = RetryBudget(ratio=0.5, max_credits=4.0)
    for _ in range(1000):
        budget.on_request()
    assert [budget.take() for _ in range(6)] == [True] * 4 + [False] * 2
    budget.on_request()
    assert not budget.take()
    budget.on_request()
    assert budget.take()


def test_nothing_is_tried_again_after_the_first_byte():
    budget = RetryBudget()
    assert RetryPolicy().wait_s(1, budget, Random(0), first_byte_sent=True) is None
    assert [budget.take() for _ in range(11)].count(True) == 10


def test_a_retry_that_its_deadline_would_not_see_is_not_made_and_not_paid():
    budget, policy = RetryBudget(max_credits=1.0), RetryPolicy(backoff_s=1.0)
    assert policy.wait_s(1, budget, Random(0), first_byte_sent=False, left_s=0.0) is None
    assert policy.wait_s(1, budget, Random(0), first_byte_sent=False, left_s=5.0, retry_after_s=5.0) is None
    assert policy.wait_s(1, budget, Random(0), first_byte_sent=False, left_s=5.0) is not None


def test_waits_double_up_to_the_limit_with_full_jitter():
    policy = RetryPolicy(max_retries=9, backoff_s=0.1, max_backoff_s=1.0)
    for num_failed, longest in ((1, 0.1), (2, 0.2), (3, 0.4), (6, 1.0)):
        rng = Random(num_failed)
        waits = [policy.wait_s(num_failed, RetryBudget(), rng, first_byte_sent=False) for _ in range(10)]
        assert max(waits) <= longest
        assert max(waits) > 0.6 * longest
        assert min(waits) < 0.4 * longest


def test_what_the_backend_asks_for_is_waited_for():
    assert RetryPolicy().wait_s(1, RetryBudget(), Random(0), first_byte_sent=False, retry_after_s=7.0) == 7.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: RetryBudget(ratio=1.5),
        lambda: RetryBudget(max_credits=-1.0),
        lambda: RetryPolicy(max_retries=-1),
        lambda: RetryPolicy(backoff_s=6.0),
    ],
)
def test_impossible_settings_are_refused(make):
    with pytest.raises(ConfigError):
        make()
