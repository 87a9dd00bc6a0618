import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.bench.load import PlannedRequest
from argosy.bench.prompts import WORDS, PromptMaker
from argosy.errors import ConfigError
from argosy.sim.workload.trace_request import Segment


class Counter:
    """Counts `added` tokens and one per word; words in `double` take two, and a pair in `merged` one together."""

    source = "a counter"

    def __init__(self, added=0, double=(), merged=None) -> None:
        self.added, self.double, self.merged = added, set(double), merged

    def count_prompt(self, text: str) -> int:
        words = text.split()
        pairs = text.count(self.merged) if self.merged else 0
        return self.added + sum(1 + (word in self.double) for word in words) - pairs

    def count_output(self, text: str) -> int:
        return self.count_prompt(text) - self.added


def planned(index=0, *segments: tuple[int, int]) -> PlannedRequest:
    return PlannedRequest(index, tuple(Segment(*s) for s in segments), 1)


@given(st.integers(3, 300), st.integers(0, 2), st.sets(st.sampled_from(WORDS[1:]), max_size=40))
def test_prompts_have_exactly_the_tokens_asked_for(tokens, added, double):
    counter = Counter(added, double)
    text = PromptMaker(counter, seed=1).make(planned(7, (5, tokens)))
    assert counter.count_prompt(text) == tokens


@pytest.mark.parametrize("tokens", [40, 41, 400])
def test_counts_that_do_not_add_up_are_corrected(tokens):
    counter = Counter(merged="d t")
    maker = PromptMaker(counter, seed=0)
    texts = [maker.make(planned(i, (i, tokens))) for i in range(60)]
    assert {counter.count_prompt(text) for text in texts} == {tokens}
    assert any("d t" in text for text in texts)


def test_equal_leading_contents_are_equal_leading_text_and_others_are_not():
    maker = PromptMaker(Counter(1), seed=0)
    first, second, third = (maker.make(planned(i, s, (50 + i, 100))) for i, s in enumerate([(1, 64), (1, 64), (2, 64)]))
    assert first.split()[:64] == second.split()[:64]
    assert first.split()[64:] != second.split()[64:]
    assert first.split()[:16] != third.split()[:16]
    assert PromptMaker(Counter(1), seed=9).make(planned(0, (1, 64), (50, 100))).split()[:16] != first.split()[:16]


def test_without_a_counter_a_word_is_a_token():
    assert len(PromptMaker(None, seed=0).make(planned(0, (1, 77))).split()) == 77


def test_what_cannot_be_made_is_told():
    with pytest.raises(ConfigError, match=re.escape("a prompt of 2 tokens is too short: the server adds 2 itself")):
        PromptMaker(Counter(2), seed=0).make(planned(0, (1, 2)))
    with pytest.raises(ConfigError, match="too few common English words"):
        PromptMaker(Counter(0, WORDS[1:]), seed=0)

    class Drifting(Counter):
        calls = 0

        def count_prompt(self, text: str) -> int:
            self.calls += 1
            return len(text.split()) + (self.calls > 2) * (1 + self.calls % 2)

    with pytest.raises(ConfigError, match="cannot make a prompt of exactly 20 tokens"):
        PromptMaker(Drifting(), seed=0).make(planned(0, (1, 20)))


def test_words_are_distinct_and_plain():
    assert len(set(WORDS)) == len(WORDS)
    assert all(re.fullmatch("[a-z]+", word) for word in WORDS)
