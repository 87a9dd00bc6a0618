import pytest

from argosy import errors
from argosy.fleet.policies.outcomes import REPLIES, Outcome, RequestDropped, outcome_of_error

# The values that llm-d's clients and dashboards know.
DROPPED_REASONS = {
    "rejected-saturated",
    "rejected-no-endpoints",
    "rejected-ttl-expired",
    "rejected-context-cancelled",
    "rejected-shutting-down",
    "evicted-queue-pressure",
    "evicted-priority",
}


def test_every_outcome_is_told_and_nothing_else():
    assert set(REPLIES) == set(Outcome)


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.DISPATCHED])
def test_every_drop_has_an_error_and_names_known_reasons(outcome):
    reply = REPLIES[outcome]
    assert 400 <= reply.http_status <= 599
    assert reply.type
    assert reply.code
    assert reply.dropped_reason in DROPPED_REASONS | {None}
    assert outcome.value == outcome.name.lower()


@pytest.mark.parametrize(
    ("outcome", "status", "reason"),
    [
        (Outcome.REJECTED_CAPACITY, 429, "rejected-saturated"),
        (Outcome.EVICTED_TTL, 429, "rejected-ttl-expired"),
        (Outcome.REJECTED_NO_BACKEND, 503, "rejected-no-endpoints"),
        (Outcome.REJECTED_SHUTTING_DOWN, 503, "rejected-shutting-down"),
        (Outcome.EVICTED_CLIENT_GONE, 499, "rejected-context-cancelled"),
        (Outcome.EVICTED_PRIORITY, 429, "evicted-priority"),
        (Outcome.REJECTED_RATE, 429, None),
    ],
)
def test_pressure_is_429_while_capacity_exists_and_503_when_there_is_none(outcome, status, reason):
    dropped = RequestDropped(outcome, "no")
    assert dropped.http_status == status
    assert dropped.headers().get("x-llm-d-request-dropped-reason") == reason


def test_every_429_of_a_quota_may_be_retried_but_that_of_a_spent_budget():
    quotas = [outcome for outcome in Outcome if REPLIES[outcome].http_status == 429]
    assert [outcome for outcome in quotas if not REPLIES[outcome].retryable] == [Outcome.REJECTED_BUDGET]
    assert RequestDropped(Outcome.REJECTED_BUDGET, "spent", retry_after_s=86_400.0).headers() == {"x-should-retry": "false"}


def test_the_wait_is_rounded_up_in_both_units():
    headers = RequestDropped(Outcome.REJECTED_RATE, "slow down", retry_after_s=1.2341).headers()
    assert headers == {"x-should-retry": "true", "retry-after": "2", "retry-after-ms": "1235"}
    assert RequestDropped(Outcome.REJECTED_RATE, "now", retry_after_s=-1.0).headers()["retry-after"] == "0"
    assert "retry-after" not in RequestDropped(Outcome.REJECTED_RATE, "who knows").headers()


def test_the_error_body_follows_from_the_outcome():
    dropped = RequestDropped(Outcome.REJECTED_CAPACITY, "8 requests wait, as many as may")
    assert (dropped.type, dropped.code, dropped.message) == (
        "overloaded_error",
        "queue_full",
        "8 requests wait, as many as may",
    )


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (errors.Unauthorized("no"), Outcome.REJECTED_UNAUTHENTICATED),
        (errors.PermissionDenied("no"), Outcome.REJECTED_FORBIDDEN),
        (errors.UnknownModel("no"), Outcome.REJECTED_UNKNOWN_MODEL),
        (errors.InvalidRequest("no"), Outcome.REJECTED_INVALID),
        (errors.UnsupportedMediaType("no"), Outcome.REJECTED_INVALID),
        (errors.StoreUnavailable("no"), Outcome.FAILED_STORE),
        (errors.NoReplicaAvailable("no"), Outcome.REJECTED_NO_BACKEND),
        (errors.ConfigError("no"), Outcome.FAILED_INTERNAL),
        (RequestDropped(Outcome.EVICTED_TTL, "no"), Outcome.EVICTED_TTL),
    ],
)
def test_every_error_is_an_outcome(error, outcome):
    assert outcome_of_error(error) is outcome
