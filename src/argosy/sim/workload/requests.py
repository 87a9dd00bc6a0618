"""What generated requests say: lengths, shared system prompts, conversations that grow."""

from __future__ import annotations

from dataclasses import dataclass

from argosy.cost.checks import at_least_one, not_negative
from argosy.errors import ConfigError
from argosy.sim.workload.distributions import AnyDistribution, Fixed

MAX_SYSTEM_PROMPTS = 1_000_000


@dataclass(frozen=True, slots=True)
class SystemPrompts:
    """Texts that many prompts begin with; prompt k of `count` is drawn with a share in proportion to k^-zipf, k = 1, 2, …

    Attributes:
        count: how many there are.
        tokens: the length of each, drawn once.
        zipf: exponent of the shares; 0 makes all alike.
    """

    count: int
    tokens: AnyDistribution
    zipf: float = 1.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` for no prompts, more than a million, or a negative exponent."""
        at_least_one(count=self.count)
        not_negative(zipf=self.zipf)
        if self.count > MAX_SYSTEM_PROMPTS:
            raise ConfigError(f"count must be at most {MAX_SYSTEM_PROMPTS}, got {self.count}")


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns of one session: each prompt repeats all earlier ones and their answers, and adds what the user says.

    Attributes:
        turns: how many turns a session has.
        think_s: seconds between the end of an answer and the next turn.
        max_prompt_tokens: the session ends before a turn whose prompt would be longer; its first turn is always sent.
    """

    turns: AnyDistribution
    think_s: AnyDistribution
    max_prompt_tokens: int | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a limit below 1."""
        if self.max_prompt_tokens is not None:
            at_least_one(max_prompt_tokens=self.max_prompt_tokens)


@dataclass(frozen=True, slots=True)
class RequestShape:
    """What each arrival of a generated source brings: one request, or the first turn of a conversation.

    Attributes:
        user_tokens: tokens of what the user says in a turn, system prompt and history not included.
        output_tokens: tokens of an answer.
        lengths_from: a trace file whose (prompt, output) lengths are drawn as pairs instead of `user_tokens` and
            `output_tokens`, so that long prompts keep their own answers; reading it keeps two numbers a request.
        system_prompts: texts to begin with, or None.
        conversation: further turns, or None for single requests.
    """

    user_tokens: AnyDistribution | None = None
    output_tokens: AnyDistribution | None = None
    lengths_from: str | None = None
    system_prompts: SystemPrompts | None = None
    conversation: Conversation | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` unless lengths are given exactly once."""
        given = [self.user_tokens is not None, self.output_tokens is not None]
        if self.lengths_from is None and not all(given):
            raise ConfigError("needs user_tokens and output_tokens, or lengths_from with a trace file")
        if self.lengths_from is not None and any(given):
            raise ConfigError("lengths_from stands for user_tokens and output_tokens; leave those out")


SINGLE_TURN = Conversation(turns=Fixed(1.0), think_s=Fixed(0.0))
