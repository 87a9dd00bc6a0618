"""Prompts of exact lengths out of common words, no two alike unless a trace says that they begin alike."""

from __future__ import annotations

from collections.abc import Sequence

from argosy.bench.load import PlannedRequest
from argosy.bench.token_counters import TokenCounter
from argosy.errors import ConfigError
from argosy.sim.workload.trace_request import Segment, content_id, segment_tokens

_FREQUENT = """
the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which one you
were all her she there would their we him been has when who will no more if out so up said what its about than into them
can only other time new some could these two may first then do any like my now over such our man me even most made after
also did many off before must well back through years much where your way down should because long each just state those
people too little good world make very year still see work life get here between both under never same another know while
last might us great old day home three place again house small found
"""
WORDS = tuple(_FREQUENT.split())
"""Frequent words of English, each a single token behind a space for the tokenizers in use."""

_TRIES = 8


class PromptMaker:
    """Makes prompts of planned requests. Without a counter a word is taken for a token, and the server's own counts tell.

    Args:
        counter: counts as the server will, or None.
        seed: other seeds give other texts.

    Raises:
        ConfigError: the tokenizer has too few of `WORDS` as single tokens.
    """

    def __init__(self, counter: TokenCounter | None, *, seed: int) -> None:
        self._counter = counter
        self._seed = seed
        self._words: Sequence[str] = WORDS
        self._added = 0
        if counter is not None:
            base = counter.count_prompt("the")
            self._added = base - 1
            if counter.count_prompt(" ".join(WORDS)) != len(WORDS) + self._added:
                self._words = [word for word in WORDS if counter.count_prompt(f"the {word}") == base + 1]
            if len(self._words) < 16:
                raise ConfigError(f"{counter.source} has too few common English words as single tokens to make prompts of")

    def make(self, planned: PlannedRequest) -> str:
        """A text of `planned.prompt_tokens` tokens, the server's BOS included.

        Raises:
            ConfigError: so few tokens that no word fits, or the tokenizer's counts do not settle on it.
        """
        wanted = planned.prompt_tokens
        num_words = wanted - self._added
        if num_words < 1:
            raise ConfigError(f"a prompt of {wanted} tokens is too short: the server adds {self._added} itself")
        words = self._draw(planned, num_words)
        if self._counter is None:
            return " ".join(words)
        for _ in range(_TRIES):
            count = self._counter.count_prompt(" ".join(words[:num_words]))
            if count == wanted:
                return " ".join(words[:num_words])
            num_words = max(1, num_words + wanted - count)
            if num_words > len(words):
                words = self._draw(planned, num_words)
        raise ConfigError(f"cannot make a prompt of exactly {wanted} tokens with the {self._counter.source}")

    def _draw(self, planned: PlannedRequest, count: int) -> list[str]:
        """The first `count` words of the prompt's contents; more than it has continue in a text of its own."""
        segments = (*planned.segments, Segment(content_id("more", planned.index), max(1, count)))
        keys = tuple(Segment(content_id(self._seed, s.content_id), s.num_tokens, s.start) for s in segments)
        return [self._words[index] for index in segment_tokens(keys, len(self._words))[:count]]
