"""What one scope uses in every dimension, and whether a request still fits."""

from __future__ import annotations

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
        text = f"{name} limit of this {self.scope.kind} reached: limit {self.limit:g}, remaining {self.remaining:g}"
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

    __slots__ = ("_window_s", "budget", "kv_tokens", "limits", "parallel", "requests", "scope", "tokens")

    def __init__(self, scope: Scope, limits: Limits, window_s: float) -> None:
        self.scope = scope
        self.limits = limits
        self._window_s = window_s
        self.requests: SlidingWindow | None = None
        self.tokens: SlidingWindow | None = None
        self.parallel = 0
        self.kv_tokens = 0
        self.budget: BudgetPeriod | None = None

    def prepare(self, limits: Limits, now_s: float) -> None:
        """Take over `limits`, and begin to count what they limit. Mutates."""
        self.limits = limits
        if limits.rpm is not None and self.requests is None:
            self.requests = SlidingWindow(self._window_s)
        if limits.tpm is not None and self.tokens is None:
            self.tokens = SlidingWindow(self._window_s)
        if limits.budget_nano_usd is not None and self.budget is None:
            self.budget = BudgetPeriod(now_s)

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
            used = self.budget.used(limits.budget_period_s, now_s)
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
        budget.used(self.limits.budget_period_s, now_s)
        budget.reserved -= cost
        budget.spent += actual_cost

    def denials(self, demand: Demand, burst: float, now_s: float) -> list[Denial]:
        """Every limit of the scope that a request exceeds."""
        tokens, cost = demand.total_tokens, nano_usd(demand.cost_usd_estimate)
        found = list(self._too_large(demand))
        for dimension, limit, used, needed in self._counted(tokens, cost, burst, now_s):
            if limit is not None and used + needed > limit and (needed or dimension is not Dimension.BUDGET):
                found.append(self._denial(dimension, limit, used, needed, burst, now_s))
        return found

    def _too_large(self, demand: Demand) -> list[Denial]:
        limits, found = self.limits, []
        output_tokens = max(demand.output_tokens_estimate, demand.max_output_tokens or 0)
        for dimension, limit, tokens in (
            (Dimension.INPUT_TOKENS, limits.max_input_tokens, demand.input_tokens),
            (Dimension.OUTPUT_TOKENS, limits.max_output_tokens, output_tokens),
        ):
            if limit is not None and tokens > limit:
                found.append(Denial(Outcome.REJECTED_TOO_LARGE, self.scope, dimension, limit, limit, retryable=False))
        return found

    def _counted(
        self, tokens: int, cost: int, burst: float, now_s: float
    ) -> tuple[tuple[Dimension, int | None, int, int], ...]:
        """Of every counted dimension the effective limit, what is used, and what the request needs."""
        limits, budget = self.limits, self.budget
        burst = burst if limits.soft else 1.0
        spent = 0 if budget is None else budget.used(limits.budget_period_s, now_s)
        return (
            (Dimension.REQUESTS, stretched(limits.rpm, burst), _used(self.requests, now_s), 1),
            (Dimension.TOKENS, stretched(limits.tpm, burst), _used(self.tokens, now_s), tokens),
            (Dimension.PARALLEL, stretched(limits.max_parallel, burst), self.parallel, 1),
            (Dimension.KV_TOKENS, stretched(limits.kv_tokens, burst), self.kv_tokens, tokens),
            (Dimension.BUDGET, limits.budget_nano_usd, spent, cost),
        )

    def _denial(self, dimension: Dimension, limit: int, used: int, needed: int, burst: float, now_s: float) -> Denial:
        nominal = self._nominal(dimension)
        unit = NANO_USD_PER_USD if dimension is Dimension.BUDGET else 1
        retry_after_s: float | None = RETRY_WHEN_ONE_ENDS_S
        window = {Dimension.REQUESTS: self.requests, Dimension.TOKENS: self.tokens}.get(dimension)
        if window is not None:
            retry_after_s = window.wait_s(used + needed - limit, now_s)
        elif dimension is Dimension.BUDGET:
            period_s = self.limits.budget_period_s
            retry_after_s = None if period_s is None or self.budget is None else self.budget.left_s(period_s, now_s)
        return Denial(
            _OUTCOMES[dimension],
            self.scope,
            dimension,
            nominal / unit,
            max(0, nominal - used) / unit,
            retry_after_s,
            retryable=needed <= nominal,
        )

    def _nominal(self, dimension: Dimension) -> int:
        limit = {
            Dimension.REQUESTS: self.limits.rpm,
            Dimension.TOKENS: self.limits.tpm,
            Dimension.PARALLEL: self.limits.max_parallel,
            Dimension.KV_TOKENS: self.limits.kv_tokens,
            Dimension.BUDGET: self.limits.budget_nano_usd,
        }[dimension]
        assert limit is not None, "only a limit denies"
        return limit

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
            limit, used = limits.budget_nano_usd, self.budget.used(period_s, now_s)
            reset_s = 0.0 if period_s is None else self.budget.left_s(period_s, now_s)
        if limit is None:
            return None
        return LimitStatus(self.scope, dimension, limit / unit, max(0, limit - used) / unit, reset_s)

    def is_idle(self, now_s: float) -> bool:
        """Whether nothing is lost if this object is forgotten. Mutates windows: what is too old is forgotten."""
        if self.parallel or _used(self.requests, now_s) or _used(self.tokens, now_s):
            return False
        return self.budget is None or self.budget.used(self.limits.budget_period_s, now_s) == 0

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
