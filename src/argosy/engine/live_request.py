"""A request in flight: the text state of its sequences, and its numbers when it has ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from argosy.engine.core.plan import TokenLogprob
from argosy.engine.core.request import FinishReason, Request, Sequence
from argosy.engine.sequence_text import SequenceText
from argosy.engine.stop_strings import StopAutomaton
from argosy.models.loaded import Tokenizer
from argosy.observe.stats import RequestStats


@dataclass(slots=True, eq=False)
class LiveSequence:
    """One sequence as the step loop sees it. `sequence` belongs to the scheduler and is only read here.

    Attributes:
        num_output_tokens: tokens that belong to the output; those after a completed stop string do not.
        last_token_s: when the last of them came, on the engine's clock.
    """

    sequence: Sequence
    text: SequenceText
    num_output_tokens: int = 0
    last_token_s: float | None = None
    finish_reason: FinishReason | None = None

    def count_tokens(self, num_tokens: int, now_s: float) -> tuple[float, ...]:
        """Count tokens that came at `now_s`; return one inter-token latency for each that was not the first.

        Tokens of one step share the time since the step before evenly.
        """
        if num_tokens == 0:
            return ()
        before_s, self.last_token_s = self.last_token_s, now_s
        self.num_output_tokens += num_tokens
        return () if before_s is None else ((now_s - before_s) / num_tokens,) * num_tokens


class LiveRequest:
    """A request from submission to the end of its last sequence.

    Mutated by the step loop only. `num_open` counts the sequences that have not ended.
    """

    def __init__(self, request: Request, sequences: Iterable[Sequence], tokenizer: Tokenizer) -> None:
        self.request = request
        automaton = StopAutomaton(request.params.stop) if request.params.stop else None
        self.sequences = tuple(LiveSequence(s, SequenceText(tokenizer, request.params, automaton)) for s in sequences)
        self.num_open = len(self.sequences)
        self._prompt_logprobs: list[TokenLogprob | None] | None = None if request.params.prompt_logprobs is None else [None]

    def add_prompt_logprobs(self, entries: Iterable[TokenLogprob]) -> None:
        """Take the entries of the next prompt positions, in order."""
        if self._prompt_logprobs is not None:
            self._prompt_logprobs.extend(entries)

    def take_prompt_logprobs(self) -> tuple[TokenLogprob | None, ...] | None:
        """All entries, one per prompt token, once; None before they are complete, afterwards, and if not asked for."""
        entries = self._prompt_logprobs
        if entries is None or len(entries) < len(self.request.prompt_token_ids):
            return None
        self._prompt_logprobs = None
        return tuple(entries)

    def stats(self, now_s: float) -> RequestStats:
        """The numbers of the ended request. With n > 1 the sequences run side by side: the first token is the earliest,
        the last the latest, and the time per output token is that of the longest sequence."""
        arrival_s = self.request.arrival_s
        scheduled_s = _earliest(s.sequence.first_scheduled_s for s in self.sequences)
        first_s = _earliest(s.sequence.first_token_s for s in self.sequences)
        last_s = max((s.last_token_s for s in self.sequences if s.last_token_s is not None), default=None)
        decode_s = None if first_s is None or last_s is None else last_s - first_s
        num_following = max(s.num_output_tokens for s in self.sequences) - 1
        return RequestStats(
            request_id=self.request.request_id,
            finish_reasons=tuple(str(s.finish_reason) for s in self.sequences),
            num_prompt_tokens=len(self.request.prompt_token_ids),
            num_cached_tokens=self.sequences[0].sequence.num_cached_tokens,
            num_generated_tokens=sum(s.num_output_tokens for s in self.sequences),
            n=len(self.sequences),
            max_tokens=self.request.params.max_tokens,
            preemptions=sum(s.sequence.preemptions for s in self.sequences),
            e2e_s=now_s - arrival_s,
            queue_s=None if scheduled_s is None else scheduled_s - arrival_s,
            time_to_first_token_s=None if first_s is None else first_s - arrival_s,
            prefill_s=None if first_s is None or scheduled_s is None else first_s - scheduled_s,
            decode_s=decode_s,
            time_per_output_token_s=None if decode_s is None or num_following < 1 else decode_s / num_following,
        )


def _earliest(times_s: Iterable[float | None]) -> float | None:
    return min((t for t in times_s if t is not None), default=None)
