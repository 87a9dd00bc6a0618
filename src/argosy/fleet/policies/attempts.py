"""The upstream calls of one client request, counted in one place.

Retries of a backend, fallbacks to another model and the client's own retries are layers that multiply when each counts for
itself. Here each further call of a request asks the same object, whatever the reason for it.
"""

from __future__ import annotations

from random import Random

from argosy.fleet.policies.retries import RetryBudget, RetryPolicy


class Attempts:
    """Decides whether a request that failed is sent once more. One per client request.

    Attributes:
        num_calls: upstream calls begun.
        num_fallbacks: of them, those that went to another model than the one before.
        tried: ids of the backends called, for `RoutingRequest.tried`.
        first_byte_sent: whether the client has seen part of an answer; set it then.
    """

    __slots__ = (
        "_budget",
        "_deadline_s",
        "_earns",
        "_policy",
        "_rng",
        "first_byte_sent",
        "num_calls",
        "num_fallbacks",
        "tried",
    )

    def __init__(
        self,
        policy: RetryPolicy,
        budget: RetryBudget | None,
        rng: Random,
        *,
        deadline_s: float | None = None,
        client_retry_count: int = 0,
    ) -> None:
        """Nothing is called yet.

        Args:
            policy: bounds the calls of the whole request, fallbacks included, to `1 + max_retries`.
            budget: shared by all requests of this process.
            deadline_s: on the caller's clock; no call is begun that could not answer before it.
            client_retry_count: which retry of its client this request is (`x-stainless-retry-count`); a client's retry
                earns no further ones.
        """
        self._policy = policy
        self._budget = budget
        self._rng = rng
        self._deadline_s = deadline_s
        self._earns = client_retry_count == 0
        self.num_calls = 0
        self.num_fallbacks = 0
        self.tried: frozenset[str] = frozenset()
        self.first_byte_sent = False

    def begin(self, backend_id: str) -> None:
        """An upstream call is made."""
        if self.num_calls == 0 and self._earns and self._budget is not None:
            self._budget.on_request()
        self.num_calls += 1
        self.tried |= {backend_id}

    def retry_wait_s(self, now_s: float, *, retry_after_s: float | None = None) -> float | None:
        """Seconds to wait before the next call after a failure, or None: the failure is final. Pays for the call."""
        return self._policy.wait_s(
            max(1, self.num_calls),
            self._budget,
            self._rng,
            first_byte_sent=self.first_byte_sent,
            left_s=None if self._deadline_s is None else self._deadline_s - now_s,
            retry_after_s=retry_after_s,
        )

    def may_fall_back(self, now_s: float, *, pays: bool = True) -> bool:
        """Whether another model may be called at once. Counts against the same bound of calls as retries do.

        Args:
            pays: False where the model itself refused (the prompt is too long for it) and no backend is in trouble.
        """
        if self.first_byte_sent or self.num_calls > self._policy.max_retries:
            return False
        if self._deadline_s is not None and now_s >= self._deadline_s:
            return False
        if pays and self._budget is not None and not self._budget.take():
            return False
        self.num_fallbacks += 1
        return True

    @property
    def should_client_retry(self) -> bool:
        """Value for `x-should-retry` of a failure: a request that was tried again here is not to be tried again there."""
        return self.num_calls <= 1
