"""What may pass and what a request asks for: the words of the admission ledger."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

from argosy.errors import ConfigError

NANO_USD_PER_USD = 1_000_000_000
MAX_BUDGET_USD = 9_000_000.0  # in nano-dollars still an exact double, which is what a Lua script counts in

ScopeKind = Literal["key", "team", "org"]


class Scope(NamedTuple):
    """Who a limit holds for. Two scopes with the same id and another kind have nothing in common."""

    kind: ScopeKind
    id: str


class Dimension(StrEnum):
    """What is counted per scope; each has one state of its own. The value is the word in messages and metric labels."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    PARALLEL = "parallel"
    KV_TOKENS = "kv_tokens"
    BUDGET = "budget"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"


@dataclass(frozen=True, slots=True)
class Limits:
    """What may pass in one scope. None is no limit, and no limit is ever derived from another.

    Attributes:
        rpm, tpm: requests and tokens in any 60 seconds.
        max_parallel: requests at once; kv_tokens: input and expected output tokens of all of them.
        max_input_tokens, max_output_tokens: of one request.
        max_budget_usd: what may be spent in `budget_period_s`; without a period, what may be spent at all.
        soft: whether rpm, tpm, max_parallel and kv_tokens may be exceeded while the fleet has room (`SoftQuota`).
            Budgets and the bounds of one request never may.
    """

    rpm: int | None = None
    tpm: int | None = None
    max_parallel: int | None = None
    kv_tokens: int | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    max_budget_usd: float | None = None
    budget_period_s: float | None = None
    soft: bool = False
    budget_nano_usd: int | None = field(init=False, default=None, compare=False, repr=False)
    is_empty: bool = field(init=False, default=True, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the limit that is out of range; zero is a limit that lets nothing pass."""
        names = ("rpm", "tpm", "max_parallel", "kv_tokens", "max_input_tokens", "max_output_tokens")
        for name in names:
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(f"{name} must not be negative, got {value}; leave it out for no limit")
        if self.max_budget_usd is not None:
            if not 0.0 <= self.max_budget_usd <= MAX_BUDGET_USD:
                raise ConfigError(f"max_budget_usd must be from 0 to {MAX_BUDGET_USD:.0f}, got {self.max_budget_usd}")
            object.__setattr__(self, "budget_nano_usd", nano_usd(self.max_budget_usd))
        if self.budget_period_s is not None and not 1.0 <= self.budget_period_s < 1e10:
            raise ConfigError(
                f"budget_period_s must be at least 1 s, got {self.budget_period_s}; leave it out for no period"
            )
        object.__setattr__(self, "is_empty", all(getattr(self, name) is None for name in (*names, "max_budget_usd")))

    def share(self, num_parts: int) -> Limits:
        """The part of these limits that one of `num_parts` gateways may use by itself.

        Counts are rounded down, so that the parts together stay within the whole, except that a limit of 1 or more stays
        at least 1: a gateway that lets nothing pass is no share. The bounds of one request stay as they are.
        """

        def part(count: int | None) -> int | None:
            return count if not count else max(1, count // num_parts)

        return Limits(
            rpm=part(self.rpm),
            tpm=part(self.tpm),
            max_parallel=part(self.max_parallel),
            kv_tokens=part(self.kv_tokens),
            max_input_tokens=self.max_input_tokens,
            max_output_tokens=self.max_output_tokens,
            max_budget_usd=None if self.max_budget_usd is None else self.max_budget_usd / num_parts,
            budget_period_s=self.budget_period_s,
            soft=self.soft,
        )


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request is expected to take, or at its settlement what it took.

    Attributes:
        cost_usd_estimate: the more of it is estimated, the less can budgets be overspent: pass what the request costs at
            most, if that is known.
        max_output_tokens: the bound that the client set, None if it set none.
    """

    input_tokens: int = 0
    output_tokens_estimate: int = 0
    cost_usd_estimate: float = 0.0
    max_output_tokens: int | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` for a negative amount: it would be a gift to the scope."""
        if self.input_tokens < 0 or self.output_tokens_estimate < 0 or not 0.0 <= self.cost_usd_estimate < 1e9:
            raise ValueError(f"a demand has no negative amounts, got {self}")

    @property
    def total_tokens(self) -> int:
        """Input and output."""
        return self.input_tokens + self.output_tokens_estimate


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """Where a scope stands in one dimension, for `x-ratelimit-*`.

    Attributes:
        limit, remaining: requests, tokens or dollars. `remaining` is never negative.
        reset_s: seconds until nothing counts any more if nothing is added; 0.0 where only requests that end free anything.
    """

    scope: Scope
    dimension: Dimension
    limit: float
    remaining: float
    reset_s: float


def nano_usd(cost_usd: float) -> int:
    """Dollars as a whole number of nano-dollars: sums of those return to exactly zero."""
    return round(cost_usd * NANO_USD_PER_USD)
