"""What a fleet is asked to do: how many requests a second, how long, how bursty, and how much of prompts is shared."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from argosy.cost.checks import not_negative, positive
from argosy.errors import ConfigError
from argosy.planner.lengths import Lengths


@dataclass(frozen=True, slots=True)
class PrefixReuse:
    """Prompt tokens that requests have in common.

    Attributes:
        share: of prompt tokens that were computed before.
        resident_tokens: KV tokens that must stay cached for that share, once per data rank (a system prompt's length).
    """

    share: float = 0.0
    resident_tokens: float = 0.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a share that leaves a prompt nothing to compute."""
        if not 0 <= self.share < 1:
            raise ConfigError(f"prefix share must be at least 0 and below 1, got {self.share}")
        not_negative(prefix_resident_tokens=self.resident_tokens)


@dataclass(frozen=True, slots=True)
class Traffic:
    """An open stream of requests.

    Attributes:
        requests_per_s: to be planned for (a peak, where traffic has one).
        burstiness: variance over mean of arrivals in a window; 1 for Poisson.
    """

    requests_per_s: float
    prompt: Lengths
    output: Lengths
    prefix: PrefixReuse = field(default_factory=PrefixReuse)
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the field that is impossible."""
        positive(requests_per_s=self.requests_per_s)
        if not (math.isfinite(self.burstiness) and self.burstiness >= 0):
            raise ConfigError(f"burstiness must be finite and not negative, got {self.burstiness}")

    @classmethod
    def of(
        cls,
        requests_per_s: float,
        prompt_tokens: int,
        output_tokens: int,
        *,
        prompt_cv: float = 0.0,
        output_cv: float = 0.0,
        prefix_share: float = 0.0,
        burstiness: float = 1.0,
    ) -> Traffic:
        """Traffic from means and spreads; the shared prefix is one text of `prefix_share` x the mean prompt.

        Raises:
            ConfigError: names the field that is impossible.
        """
        return cls(
            requests_per_s,
            _lengths("prompt", prompt_tokens, prompt_cv),
            _lengths("output", output_tokens, output_cv),
            PrefixReuse(prefix_share, prefix_share * prompt_tokens),
            burstiness,
        )

    @property
    def output_tokens_per_s(self) -> float:
        """Tokens generated a second."""
        return self.requests_per_s * self.output.mean


def _lengths(name: str, tokens: int, cv: float) -> Lengths:
    if not (math.isfinite(tokens) and tokens >= 1 and tokens == int(tokens)):
        raise ConfigError(f"{name}_tokens must be a whole number of at least 1, got {tokens}")
    if not (math.isfinite(cv) and cv >= 0):
        raise ConfigError(f"{name}_cv must be finite and not negative, got {cv}")
    return Lengths.lognormal(float(tokens), cv) if cv > 0 else Lengths.fixed(int(tokens))
