"""What one scope uses in every dimension, and whether a request still fits."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from argosy.fleet.policies.limits import NANO_USD_PER_USD, Demand, Dimension, Limits, LimitStatus, Scope, nano_usd
from argosy.fleet.policies.outcomes import Outcome
from argosy.fleet.policies.windows import BudgetPeriod, SlidingWindow

RETRY_WHEN_ONE_ENDS_S = 1.0
"""Advice where only the end of another request helps, whose time nobody knows."""


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a request got no lease. If several limits deny it, the one that holds longest.

    Attributes:
        scope, dimension: of the limit that denied; None if the ledger itself is full, or its store does not answer.
        limit, remaining: in the dimension's unit, a burst of a soft limit not included.
        retry_after_s: seconds until this limit alone would have let the request pass; None if waiting does not help.
        retryable: whether the same request can ever pass; one above the whole limit cannot.
    """

    outcome: Outcome
    scope: Scope | None = None
    dimension: Dimension | None = None
    limit: float = 0.0
    remaining: float = 0.0
    retry_after_s: float | None = None
    retryable: bool = True

    @property
    def message(self) -> str:
        """One line for the client; it names the limit and, where there is one, the time to wait."""
        if self.scope is None or self.dimension is None:
            return "the gateway cannot account for more requests at present; try again shortly"
        name = self.dimension.value.replace("_", " ")
        unit = "$" if self.dimension is Dimension.BUDGET else ""
        numbers = f"limit {unit}{self.limit:g}, remaining {unit}{self.remaining:g}"
        text = f"{name} limit of this {self.scope.kind} reached: {numbers}"
        if not self.retryable:
            return f"{text}; the request by itself needs more, make it smaller or have the limit raised"
        if self.retry_after_s is None:
            return f"{text}; have the limit raised"
        return f"{text}; try again in {max(self.retry_after_s, 0.001):.3g} s"


class ScopeUsage:
    """The counters of one scope. Windows exist only for what is limited; what is in flight is always counted.

    Attributes:
        limits: those of the last request.
        parallel, kv_tokens: of requests in flight.
    """

    __slots__ = ("_unix_offset_s", "_window_s", "budget", "kv_tokens", "limits", "parallel", "requests", "scope", "tokens")

    def __init__(self, scope: Scope, limits: Limits, window_s: float, unix_offset_s: float = 0.0) -> None:
        self.scope = scope
        self.limits = limits
        self._window_s = window_s
        self._unix_offset_s = unix_offset_s
        self.requests: SlidingWindow | None = None
        self.tokens: SlidingWindow | None = None
        self.parallel = 0
        self.kv_tokens = 0
        self.budget: BudgetPeriod | None = None

    def prepare(self, limits: Limits) -> None:
        """Take over `limits`, and begin to count what they limit. Mutates."""
        self.limits = limits
        if limits.rpm is not None and self.requests is None:
            self.requests = SlidingWindow(self._window_s)
        if limits.tpm is not None and self.tokens is None:
            self.tokens = SlidingWindow(self._window_s)
        if limits.budget_nano_usd is not None and self.budget is None:
            self.budget = BudgetPeriod()

    def fits(self, demand: Demand, tokens: int, cost: int, burst: float, now_s: float) -> bool:
        """Whether a request of `tokens` in all and `cost` nano-dollars passes every limit of the scope."""
        limits = self.limits
        if burst == 1.0 or not limits.soft:
            rpm, tpm, parallel, kv_tokens = limits.rpm, limits.tpm, limits.max_parallel, limits.kv_tokens
        else:
            rpm, tpm = stretched(limits.rpm, burst), stretched(limits.tpm, burst)
            parallel, kv_tokens = stretched(limits.max_parallel, burst), stretched(limits.kv_tokens, burst)
        if parallel is not None and self.parallel >= parallel:
            return False
        if kv_tokens is not None and self.kv_tokens + tokens > kv_tokens:
            return False
        if rpm is not None and self.requests is not None and self.requests.used(now_s) >= rpm:
            return False
        if tpm is not None and self.tokens is not None and self.tokens.used(now_s) + tokens > tpm:
            return False
        if limits.budget_nano_usd is not None and self.budget is not None:
            used = self.budget.used(limits.budget_period_s, now_s + self._unix_offset_s)
            if cost and used + cost > limits.budget_nano_usd:
                return False
        return limits_of_one_request_hold(limits, demand)

    def book(self, tokens: int, cost: int, now_s: float) -> Booking:
        """Count an admitted request; what is returned belongs to `end`. Mutates."""
        self.parallel += 1
        self.kv_tokens += tokens
        if self.requests is not None:
            self.requests.add(1, now_s)
        budget = self.budget
        if budget is not None:
            budget.reserved += cost
        return self, budget, -1 if self.tokens is None else self.tokens.add(tokens, now_s)

    def end(self, tokens: int, actual_tokens: int, token_slot: int, now_s: float) -> None:
        """Free what a request of `tokens` held and count what it took. Mutates all but the budget.

        Tokens not taken are given back to the slot they were reserved in; those taken beyond the estimate count from now.
        """
        self.parallel -= 1
        self.kv_tokens -= tokens
        if self.tokens is not None and token_slot >= 0:
            if actual_tokens < tokens:
                self.tokens.take_back(tokens - actual_tokens, token_slot)
            elif actual_tokens > tokens:
                self.tokens.add(actual_tokens - tokens, now_s)

    def end_spending(self, budget: BudgetPeriod, cost: int, actual_cost: int, now_s: float) -> None:
        """Turn a reservation into spending, in the period of `now_s`. Mutates `budget`, which is or was the scope's."""
        budget.used(self.limits.budget_period_s, now_s + self._unix_offset_s)
        budget.reserved -= cost
        budget.spent += actual_cost

    def denials(self, demand: Demand, burst: float, now_s: float) -> list[Denial]:
        """Every limit of the scope that a request exceeds."""
        limits, tokens, cost = self.limits, demand.total_tokens, nano_usd(demand.cost_usd_estimate)
        factor = burst if limits.soft else 1.0
        found = too_large(self.scope, limits, demand)
        for dimension, limit, used, needed in (
            (Dimension.REQUESTS, stretched(limits.rpm, factor), _used(self.requests, now_s), 1),
            (Dimension.TOKENS, stretched(limits.tpm, factor), _used(self.tokens, now_s), tokens),
            (Dimension.PARALLEL, stretched(limits.max_parallel, factor), self.parallel, 1),
            (Dimension.KV_TOKENS, stretched(limits.kv_tokens, factor), self.kv_tokens, tokens),
            (Dimension.BUDGET, limits.budget_nano_usd, self._budget_used(now_s), cost),
        ):
            if limit is not None and used + needed > limit and (needed or dimension is not Dimension.BUDGET):
                wait_s = self._wait_s(dimension, used + needed - limit, now_s)
                found.append(denial_of(self.scope, limits, dimension, used, needed, wait_s))
        return found

    def _budget_used(self, now_s: float) -> int:
        return 0 if self.budget is None else self.budget.used(self.limits.budget_period_s, now_s + self._unix_offset_s)

    def _wait_s(self, dimension: Dimension, excess: int, now_s: float) -> float | None:
        """Seconds until `excess` less is used; None if it never is."""
        window = {Dimension.REQUESTS: self.requests, Dimension.TOKENS: self.tokens}.get(dimension)
        if window is not None:
            return window.wait_s(excess, now_s)
        if dimension is not Dimension.BUDGET:
            return RETRY_WHEN_ONE_ENDS_S
        period_s = self.limits.budget_period_s
        return None if period_s is None or self.budget is None else self.budget.left_s(period_s, now_s + self._unix_offset_s)

    def status(self, dimension: Dimension, now_s: float) -> LimitStatus | None:
        """Where the scope stands; None if it has no limit in that dimension, or one of single requests."""
        limits, unit, reset_s = self.limits, 1, 0.0
        limit: int | None = None
        used = 0
        if dimension is Dimension.REQUESTS and self.requests is not None:
            limit, used, reset_s = limits.rpm, self.requests.used(now_s), self.requests.reset_s(now_s)
        elif dimension is Dimension.TOKENS and self.tokens is not None:
            limit, used, reset_s = limits.tpm, self.tokens.used(now_s), self.tokens.reset_s(now_s)
        elif dimension is Dimension.PARALLEL:
            limit, used = limits.max_parallel, self.parallel
        elif dimension is Dimension.KV_TOKENS:
            limit, used = limits.kv_tokens, self.kv_tokens
        elif dimension is Dimension.BUDGET and self.budget is not None:
            period_s, unit = limits.budget_period_s, NANO_USD_PER_USD
            limit, used = limits.budget_nano_usd, self.budget.used(period_s, now_s + self._unix_offset_s)
            reset_s = 0.0 if period_s is None else self.budget.left_s(period_s, now_s + self._unix_offset_s)
        if limit is None:
            return None
        return LimitStatus(self.scope, dimension, limit / unit, max(0, limit - used) / unit, reset_s)

    def is_idle(self, now_s: float) -> bool:
        """Whether nothing is lost if this object is forgotten. Mutates windows: what is too old is forgotten."""
        if self.parallel or _used(self.requests, now_s) or _used(self.tokens, now_s):
            return False
        return self.budget is None or self.budget.used(self.limits.budget_period_s, now_s + self._unix_offset_s) == 0

    def check_invariants(self) -> None:
        """Raise `AssertionError` unless no counter is negative and the windows are sound."""
        assert self.parallel >= 0, f"{self.scope}: negative number of requests in flight"
        assert self.kv_tokens >= 0, f"{self.scope}: negative KV tokens in flight"
        for window in (self.requests, self.tokens):
            if window is not None:
                window.check_invariants()
        if self.budget is not None:
            assert self.budget.reserved >= 0, f"{self.scope}: negative reservation"
            assert self.budget.spent >= 0, f"{self.scope}: negative spending"


Booking = tuple[ScopeUsage, BudgetPeriod | None, int]
"""What one request holds in one scope: the budget it has reserved in, and the slot of its tokens, -1 if not limited."""

_OUTCOMES = {
    Dimension.REQUESTS: Outcome.REJECTED_RATE,
    Dimension.TOKENS: Outcome.REJECTED_TOKENS,
    Dimension.PARALLEL: Outcome.REJECTED_CONCURRENCY,
    Dimension.KV_TOKENS: Outcome.REJECTED_KV,
    Dimension.BUDGET: Outcome.REJECTED_BUDGET,
}


def too_large(scope: Scope, limits: Limits, demand: Demand) -> list[Denial]:
    """The bounds of a single request that `demand` exceeds."""
    if limits_of_one_request_hold(limits, demand):
        return []
    output_tokens = max(demand.output_tokens_estimate, demand.max_output_tokens or 0)
    return [
        Denial(Outcome.REJECTED_TOO_LARGE, scope, dimension, limit, limit, retryable=False)
        for dimension, limit, tokens in (
            (Dimension.INPUT_TOKENS, limits.max_input_tokens, demand.input_tokens),
            (Dimension.OUTPUT_TOKENS, limits.max_output_tokens, output_tokens),
        )
        if limit is not None and tokens > limit
    ]


def denial_of(
    scope: Scope, limits: Limits, dimension: Dimension, used: int, needed: int, retry_after_s: float | None
) -> Denial:
    """The denial of a request that needs more of `dimension` than is left: in tokens, requests or nano-dollars."""
    nominal = {
        Dimension.REQUESTS: limits.rpm,
        Dimension.TOKENS: limits.tpm,
        Dimension.PARALLEL: limits.max_parallel,
        Dimension.KV_TOKENS: limits.kv_tokens,
        Dimension.BUDGET: limits.budget_nano_usd,
    }[dimension]
    assert nominal is not None, "only a limit denies"
    unit = NANO_USD_PER_USD if dimension is Dimension.BUDGET else 1
    remaining = max(0, nominal - used) / unit
    return Denial(
        _OUTCOMES[dimension], scope, dimension, nominal / unit, remaining, retry_after_s, retryable=needed <= nominal
    )


def longest(denials: Iterable[Denial]) -> Denial:
    """The denial that holds longest: after its time, the request is not denied once more. One without an end comes first."""

    def how_long(denial: Denial) -> tuple[bool, float]:
        return not denial.retryable, math.inf if denial.retry_after_s is None else denial.retry_after_s

    return max(denials, key=how_long)


def limits_of_one_request_hold(limits: Limits, demand: Demand) -> bool:
    """Whether a request is within the bounds of a single one."""
    if limits.max_input_tokens is not None and demand.input_tokens > limits.max_input_tokens:
        return False
    bound = limits.max_output_tokens
    return bound is None or (demand.output_tokens_estimate <= bound and (demand.max_output_tokens or 0) <= bound)


def stretched(limit: int | None, burst: float) -> int | None:
    """A soft limit while the fleet has room, rounded down."""
    return limit if limit is None or burst == 1.0 else int(limit * burst)


def _used(window: SlidingWindow | None, now_s: float) -> int:
    return 0 if window is None else window.used(now_s)
