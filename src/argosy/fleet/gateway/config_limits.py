"""Limits of a key, a team or an organisation, as the file states them."""

from __future__ import annotations

from dataclasses import dataclass, fields

from argosy.cost.checks import at_least_one, not_negative, positive


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """What may pass; None is no limit, and no limit is ever derived from another.

    Attributes:
        rpm, tpm: requests and tokens per minute.
        max_parallel: requests at once; kv_tokens: tokens of all of them, prompt and answer.
        max_input_tokens, max_output_tokens: of one request.
        max_budget_usd: what may be spent in `budget_period_s`.
    """

    rpm: int | None = None
    tpm: int | None = None
    max_parallel: int | None = None
    kv_tokens: int | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    max_budget_usd: float | None = None
    budget_period_s: float = 2_592_000.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the limit that lets nothing pass."""
        for field in fields(self)[:6]:
            value = getattr(self, field.name)
            if value is not None:
                at_least_one(**{field.name: value})
        if self.max_budget_usd is not None:
            not_negative(max_budget_usd=self.max_budget_usd)
        positive(budget_period_s=self.budget_period_s)
