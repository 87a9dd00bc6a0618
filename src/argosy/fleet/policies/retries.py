"""When a request that failed is tried again: one layer decides, within a budget that all requests share.

Retry layers multiply: three tries at each of three layers are 27 calls of a backend that is down already. And retries feed
an overload: a share of the requests that succeed earns them, so that they cannot keep a fleet down by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from argosy.errors import ConfigError


@dataclass(slots=True)
class RetryBudget:
    """Retries in proportion to requests (Finagle's retry budget): a bucket of `ratio` credits per request.

    Attributes:
        ratio: retries allowed per request, such as 0.1.
        max_credits: retries that a quiet time can save up, and those a cold start has.
    """

    ratio: float = 0.1
    max_credits: float = 10.0
    _credits: float = -1.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range; the bucket begins full."""
        if not 0.0 <= self.ratio <= 1.0:
            raise ConfigError(f"ratio of a retry budget must be within [0, 1], got {self.ratio}")
        if not self.max_credits >= 0.0:
            raise ConfigError(f"max_credits of a retry budget must not be negative, got {self.max_credits}")
        self._credits = self.max_credits

    def on_request(self) -> None:
        """A first attempt is made: it earns `ratio` of a retry."""
        self._credits = min(self.max_credits, self._credits + self.ratio)

    def take(self) -> bool:
        """Pay for one retry; False, and nothing is paid, if the budget is spent."""
        if self._credits < 1.0 - 1e-9:
            return False
        self._credits -= 1.0
        return True


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how late a request is tried again.

    The wait before retry i is drawn uniformly from [0, min(max_backoff_s, backoff_s x 2^(i-1))]: full jitter, so that
    requests that failed together do not come back together.

    Attributes:
        max_retries: after the first attempt; 3 means at most 4 calls.
        max_retry_after_s: a backend that asks for a longer wait than this is not tried again: its client is told instead.
    """

    max_retries: int = 2
    backoff_s: float = 0.1
    max_backoff_s: float = 5.0
    max_retry_after_s: float = 60.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        if self.max_retries < 0:
            raise ConfigError(f"max_retries must not be negative, got {self.max_retries}")
        if not 0.0 <= self.backoff_s <= self.max_backoff_s:
            raise ConfigError(f"backoff_s must be from 0 to max_backoff_s, got {self.backoff_s} and {self.max_backoff_s}")
        if not self.max_retry_after_s >= 0.0:
            raise ConfigError(f"max_retry_after_s must not be negative, got {self.max_retry_after_s}")

    def wait_s(
        self,
        num_failed: int,
        budget: RetryBudget | None,
        rng: Random,
        *,
        first_byte_sent: bool,
        left_s: float | None = None,
        retry_after_s: float | None = None,
    ) -> float | None:
        """Seconds to wait before the next attempt, or None: the failure is final. Pays from `budget` for an attempt.

        Args:
            budget: None for no bound.
            num_failed: attempts that have failed so far, 1 or more.
            first_byte_sent: whether the client has seen part of an answer, which a second one would contradict.
            left_s: until the request's deadline, None for no deadline. There is no retry that it would not live to see.
            retry_after_s: what the backend asked for; it is waited for at least.
        """
        if first_byte_sent or num_failed > self.max_retries:
            return None
        wait_s = rng.uniform(0.0, min(self.max_backoff_s, self.backoff_s * 2.0 ** (num_failed - 1)))
        if retry_after_s is not None:
            if retry_after_s > self.max_retry_after_s:
                return None
            wait_s = max(wait_s, retry_after_s)
        if left_s is not None and wait_s >= left_s:
            return None
        return wait_s if budget is None or budget.take() else None
