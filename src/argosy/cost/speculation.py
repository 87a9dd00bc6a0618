"""What speculative decoding brings and costs (Leviathan et al. 2023): tokens per round, speed-up, break-even, KV tax."""

from __future__ import annotations

from dataclasses import dataclass

from argosy.cost.checks import at_least_one, fraction, not_negative, positive
from argosy.cost.step_time_model import StepTimeModel


def expected_tokens(acceptance: float, drafts: int) -> float:
    """Tokens that a round of `drafts` yields: (1 - α^(K+1))/(1 - α), the target's own token included."""
    fraction(acceptance=acceptance)
    at_least_one(drafts=drafts)
    return drafts + 1.0 if acceptance == 1.0 else (1.0 - acceptance ** (drafts + 1)) / (1.0 - acceptance)


def speedup(acceptance: float, drafts: int, draft_cost: float, verify_cost: float = 1.0) -> float:
    """Speed-up over plain decoding.

    Args:
        draft_cost: time of one draft step over that of one plain step of the target.
        verify_cost: time of the verifying step over that of a plain one; 1 while decoding is bound by memory.
    """
    not_negative(draft_cost=draft_cost)
    positive(verify_cost=verify_cost)
    return expected_tokens(acceptance, drafts) / (verify_cost + drafts * draft_cost)


@dataclass(frozen=True, slots=True)
class Speculation:
    """A draft model that proposes `drafts` tokens a round, each accepted with probability `acceptance`."""

    draft: StepTimeModel
    drafts: int
    acceptance: float

    def __post_init__(self) -> None:
        """Raise `ConfigError` for an acceptance outside 0 to 1, or no draft."""
        expected_tokens(self.acceptance, self.drafts)

    @property
    def tokens(self) -> float:
        """Expected tokens of a round."""
        return expected_tokens(self.acceptance, self.drafts)


@dataclass(frozen=True, slots=True)
class SpeculativeRound:
    """One round at a batch and context: times, tokens per sequence, and what they come to.

    Attributes:
        tpot_s: with speculation; plain_tpot_s: without.
    """

    draft_s: float
    verify_s: float
    tokens: float
    plain_tpot_s: float

    @property
    def tpot_s(self) -> float:
        """Seconds per token and sequence."""
        return (self.draft_s + self.verify_s) / self.tokens

    @property
    def speedup(self) -> float:
        """Above 1 where speculation pays."""
        return self.plain_tpot_s / self.tpot_s


def speculative_round(
    target: StepTimeModel, draft: StepTimeModel, *, sequences: float, context: float, drafts: int, acceptance: float
) -> SpeculativeRound:
    """A round in which `draft` proposes `drafts` tokens a sequence, one step each, and `target` verifies them at once.

    Raises:
        ConfigError: an acceptance outside 0 to 1, or no draft.
    """
    tokens = expected_tokens(acceptance, drafts)
    steps = [context + index for index in range(drafts)]
    draft_s = float(draft.decode(sequences, steps).latency_s.sum())
    verify_s = float(target.decode(sequences, context, new=drafts + 1).latency_s[0])
    return SpeculativeRound(draft_s, verify_s, tokens, float(target.decode(sequences, context).latency_s[0]))


def break_even_acceptance(round_at: SpeculativeRound, drafts: int) -> float | None:
    """The acceptance at which the round's times are worth it, or None if none is."""
    wanted = (round_at.draft_s + round_at.verify_s) / round_at.plain_tpot_s
    if wanted > drafts + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, drafts) < wanted else (low, middle)
    return high
