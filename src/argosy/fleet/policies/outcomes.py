"""What becomes of a request at the gateway: one closed list, and for each entry how it is told to client and operator."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from argosy.errors import ArgosyError, StoreUnavailable


class Outcome(StrEnum):
    """Every way a request can end at the gateway. Its value is the metric label.

    Rejected: refused before it waited. Evicted: taken out of the queue, or for `EVICTED_PRIORITY` out of a backend, after
    it was admitted. Failed: handed to a backend, which gave no whole answer. The ledger answers with those from
    `REJECTED_RATE` to `REJECTED_TOO_LARGE`, the queue with those after it and the evictions; what precedes them is found out
    before admission.
    """

    DISPATCHED = "dispatched"
    REJECTED_INVALID = "rejected_invalid"
    REJECTED_UNAUTHENTICATED = "rejected_unauthenticated"
    REJECTED_FORBIDDEN = "rejected_forbidden"
    REJECTED_UNKNOWN_MODEL = "rejected_unknown_model"
    REJECTED_RATE = "rejected_rate"
    REJECTED_TOKENS = "rejected_tokens"
    REJECTED_CONCURRENCY = "rejected_concurrency"
    REJECTED_KV = "rejected_kv"
    REJECTED_BUDGET = "rejected_budget"
    REJECTED_TOO_LARGE = "rejected_too_large"
    REJECTED_CAPACITY = "rejected_capacity"
    REJECTED_NO_BACKEND = "rejected_no_backend"
    REJECTED_SHUTTING_DOWN = "rejected_shutting_down"
    EVICTED_TTL = "evicted_ttl"
    EVICTED_DEADLINE = "evicted_deadline"
    EVICTED_QUEUE_PRESSURE = "evicted_queue_pressure"
    EVICTED_PRIORITY = "evicted_priority"
    EVICTED_CLIENT_GONE = "evicted_client_gone"
    FAILED_CONNECT = "failed_connect"
    FAILED_FIRST_BYTE_TIMEOUT = "failed_first_byte_timeout"
    FAILED_IDLE_TIMEOUT = "failed_idle_timeout"
    FAILED_UPSTREAM = "failed_upstream"
    FAILED_STORE = "failed_store"
    FAILED_INTERNAL = "failed_internal"


@dataclass(frozen=True, slots=True)
class OutcomeReply:
    """How an outcome is told.

    Attributes:
        http_status: 429 is pressure that passes while there is capacity, 503 is no capacity at all.
        type, code: of the OpenAI error body.
        retryable: whether the same request may succeed if it is sent again; the `x-should-retry` that SDKs obey.
        dropped_reason: value of `x-llm-d-request-dropped-reason`, None for no such header: it is for what flow control
            dropped, not for quotas and backends.
    """

    http_status: int
    type: str
    code: str
    retryable: bool
    dropped_reason: str | None = None


def _quota(code: str = "rate_limit_exceeded") -> OutcomeReply:
    return OutcomeReply(429, "rate_limit_error", code, True)


def _pressure(code: str, dropped_reason: str) -> OutcomeReply:
    return OutcomeReply(429, "overloaded_error", code, True, dropped_reason)


REPLIES: Mapping[Outcome, OutcomeReply] = MappingProxyType(
    {
        Outcome.DISPATCHED: OutcomeReply(200, "", "", False),
        Outcome.REJECTED_INVALID: OutcomeReply(400, "invalid_request_error", "invalid_request", False),
        Outcome.REJECTED_UNAUTHENTICATED: OutcomeReply(401, "authentication_error", "invalid_api_key", False),
        Outcome.REJECTED_FORBIDDEN: OutcomeReply(403, "permission_error", "permission_denied", False),
        Outcome.REJECTED_UNKNOWN_MODEL: OutcomeReply(404, "not_found_error", "model_not_found", False),
        Outcome.REJECTED_RATE: _quota(),
        Outcome.REJECTED_TOKENS: _quota(),
        Outcome.REJECTED_CONCURRENCY: _quota(),
        Outcome.REJECTED_KV: _quota(),
        Outcome.REJECTED_BUDGET: OutcomeReply(429, "insufficient_quota", "insufficient_quota", False),
        Outcome.REJECTED_TOO_LARGE: OutcomeReply(400, "invalid_request_error", "request_too_large", False),
        Outcome.REJECTED_CAPACITY: _pressure("queue_full", "rejected-saturated"),
        Outcome.REJECTED_NO_BACKEND: OutcomeReply(503, "api_error", "service_unavailable", True, "rejected-no-endpoints"),
        Outcome.REJECTED_SHUTTING_DOWN: OutcomeReply(
            503, "api_error", "service_unavailable", True, "rejected-shutting-down"
        ),
        Outcome.EVICTED_TTL: _pressure("queue_timeout", "rejected-ttl-expired"),
        Outcome.EVICTED_DEADLINE: OutcomeReply(504, "api_error", "deadline_exceeded", False, "rejected-ttl-expired"),
        Outcome.EVICTED_QUEUE_PRESSURE: _pressure("queue_full", "evicted-queue-pressure"),
        Outcome.EVICTED_PRIORITY: _pressure("preempted", "evicted-priority"),
        Outcome.EVICTED_CLIENT_GONE: OutcomeReply(
            499, "api_error", "client_closed_request", False, "rejected-context-cancelled"
        ),
        Outcome.FAILED_CONNECT: OutcomeReply(502, "api_error", "upstream_connect_failed", True),
        Outcome.FAILED_FIRST_BYTE_TIMEOUT: OutcomeReply(504, "api_error", "upstream_timeout", True),
        Outcome.FAILED_IDLE_TIMEOUT: OutcomeReply(504, "api_error", "upstream_timeout", True),
        Outcome.FAILED_UPSTREAM: OutcomeReply(502, "api_error", "upstream_failed", True),
        Outcome.FAILED_STORE: OutcomeReply(503, "api_error", "store_unavailable", True),
        Outcome.FAILED_INTERNAL: OutcomeReply(500, "api_error", "internal_error", False),
    }
)


_OF_STATUS = MappingProxyType(
    {
        401: Outcome.REJECTED_UNAUTHENTICATED,
        403: Outcome.REJECTED_FORBIDDEN,
        404: Outcome.REJECTED_UNKNOWN_MODEL,
        503: Outcome.REJECTED_NO_BACKEND,
    }
)


def outcome_of_error(error: ArgosyError) -> Outcome:
    """The outcome of a request that ends with `error`."""
    if isinstance(error, RequestDropped):
        return error.outcome
    if isinstance(error, StoreUnavailable):
        return Outcome.FAILED_STORE
    return _OF_STATUS.get(
        error.http_status, Outcome.REJECTED_INVALID if error.http_status < 500 else Outcome.FAILED_INTERNAL
    )


class RequestDropped(ArgosyError):
    """The gateway gives a request up; `outcome` says why, and the rest of the answer follows from it.

    Attributes:
        retry_after_s: seconds until it is worth trying again, None if nobody knows. Sent as whole seconds, rounded up, and
            in milliseconds.
    """

    def __init__(self, outcome: Outcome, message: str, *, retry_after_s: float | None = None) -> None:
        reply = REPLIES[outcome]
        super().__init__(message, code=reply.code)
        self.outcome = outcome
        self.http_status = reply.http_status
        self.type = reply.type
        self.retry_after_s = retry_after_s

    @property
    def reply(self) -> OutcomeReply:
        """How this outcome is told."""
        return REPLIES[self.outcome]

    def headers(self) -> dict[str, str]:
        """Response headers beside the error body: `x-should-retry`, `retry-after(-ms)`, and why flow control dropped it."""
        headers = {"x-should-retry": "true" if self.reply.retryable else "false"}
        if self.reply.dropped_reason is not None:
            headers["x-llm-d-request-dropped-reason"] = self.reply.dropped_reason
        if self.reply.retryable and self.retry_after_s is not None:
            wait_s = max(0.0, self.retry_after_s)
            headers["retry-after"] = str(math.ceil(wait_s))
            headers["retry-after-ms"] = str(math.ceil(wait_s * 1000.0))
        return headers
