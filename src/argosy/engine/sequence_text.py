"""The text of one sequence: bytes joined to characters, stop strings found, the ending token left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.detokenizer import Detokenizer
from argosy.engine.stop_strings import StopAutomaton, StopMatcher
from argosy.models.loaded import Tokenizer


class TextUpdate(NamedTuple):
    """What some tokens gave.

    Attributes:
        text: released for output.
        num_tokens: how many of the tokens belong to the sequence; those after the one that completed a stop string do not.
        matched: the stop string that ended the text, or None.
    """

    text: str
    num_tokens: int
    matched: str | None


class SequenceText:
    """Turns a sequence's tokens into its output text.

    Stop strings are looked for in the text of the tokens after the first `min_tokens` only, so the text of those is always
    whole.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, automaton: StopAutomaton | None) -> None:
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=params.skip_special_tokens)
        self._matcher = None if automaton is None else StopMatcher(automaton, include_stop=params.include_stop_str_in_output)
        self._min_tokens = params.min_tokens
        self._num_tokens = 0

    def append(self, token_ids: Sequence[int], *, is_last: bool, last_is_silent: bool) -> TextUpdate:
        """Take the next tokens.

        Args:
            token_ids: may be empty.
            is_last: the sequence has ended with them: release everything held.
            last_is_silent: the last token only ended the sequence and gives no text.
        """
        num_speaking = len(token_ids) - last_is_silent
        if self._matcher is None:
            self._num_tokens += len(token_ids)
            text = self._detokenizer.append(token_ids[:num_speaking])
            return TextUpdate(text + self._detokenizer.flush() if is_last else text, len(token_ids), None)
        return self._append_matching(self._matcher, token_ids, num_speaking, is_last)

    def _append_matching(
        self, matcher: StopMatcher, token_ids: Sequence[int], num_speaking: int, is_last: bool
    ) -> TextUpdate:
        pieces: list[str] = []
        for taken, token_id in enumerate(token_ids[:num_speaking], start=1):
            self._num_tokens += 1
            text = self._detokenizer.append((token_id,))
            if self._num_tokens <= self._min_tokens:
                pieces.append(text)
                continue
            released, matched = matcher.feed(text)
            pieces.append(released)
            if matched is not None:
                return TextUpdate("".join(pieces), taken, matched)
        if is_last:
            # A character that stays incomplete becomes U+FFFD, which a stop string may contain.
            rest = self._detokenizer.flush()
            if self._num_tokens > self._min_tokens:
                rest, matched = matcher.feed(rest)
                if matched is not None:
                    return TextUpdate("".join([*pieces, rest]), len(token_ids), matched)
            pieces += (rest, matcher.release())
        return TextUpdate("".join(pieces), len(token_ids), None)
