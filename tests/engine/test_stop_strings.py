from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.engine.stop_strings import StopAutomaton, StopMatcher

letters = st.text("abc", min_size=1, max_size=6)


def first_complete(text: str, stops: list[str]) -> tuple[int, str] | None:
    """Where the first complete stop string ends, and the longest that ends there: the definition, read literally."""
    for end in range(1, len(text) + 1):
        found = [s for s in stops if text[:end].endswith(s)]
        if found:
            return end, max(found, key=len)
    return None


def longest_held(text: str, stops: list[str]) -> str:
    beginnings = {s[:k] for s in stops for k in range(1, len(s))}
    return next((text[i:] for i in range(len(text)) if text[i:] in beginnings), "")


@given(st.lists(st.text("abc", max_size=5), max_size=12), st.lists(letters, min_size=1, max_size=6), st.booleans())
def test_every_split_gives_what_the_definition_gives(pieces, stops, include):
    matcher = StopMatcher(StopAutomaton(stops), include_stop=include)
    fed, out = "", ""
    for piece in pieces:
        fed += piece
        text, matched = matcher.feed(piece)
        out += text
        expected = first_complete(fed, stops)
        if expected is not None:
            end, stop = expected
            assert matched == stop
            assert out == fed[: end if include else end - len(stop)]
            return
        assert matched is None
        assert out == (fed if include else fed[: len(fed) - len(longest_held(fed, stops))])
    assert out + matcher.release() == fed


def feed_all(stops: list[str], pieces: list[str], *, include: bool = False) -> list[tuple[str, str | None]]:
    matcher = StopMatcher(StopAutomaton(stops), include_stop=include)
    return [tuple(matcher.feed(piece)) for piece in pieces]


def test_a_stop_string_over_token_boundaries_never_shows():
    assert feed_all(["DEFGHIJ"], [" ", "DEF", "G", "HI", "JKL"]) == [
        (" ", None),
        ("", None),
        ("", None),
        ("", None),
        ("", "DEFGHIJ"),
    ]


def test_text_that_cannot_be_a_stop_string_is_not_held_however_long_the_stop_string_is():
    assert feed_all(["abcdefgh"], ["Hello", " world"]) == [("Hello", None), (" world", None)]


def test_a_tag_that_only_resembles_the_stop_string_is_released_in_one_piece():
    assert feed_all(["</x>"], ["a</", "think>"]) == [("a", None), ("</think>", None)]


def test_including_the_stop_string_holds_nothing_and_ends_after_it():
    assert feed_all(["stop"], ["so st", "o", "p and more"], include=True) == [
        ("so st", None),
        ("o", None),
        ("p", "stop"),
    ]


def test_of_stop_strings_complete_at_one_character_the_longest_is_cut():
    assert feed_all(["c", "abc", "bc"], ["xabc"]) == [("x", "abc")]


def test_the_stop_string_complete_first_wins_inside_a_longer_one():
    assert feed_all(["abcdef", "cd"], ["xabcdef"]) == [("xab", "cd")]


@pytest.mark.parametrize("stop", ["ď", "🔥🔥", "e\u0301"])
def test_multi_byte_stop_strings(stop):
    fed = feed_all([stop], ["a", *stop])
    assert "".join(text for text, _ in fed) == "a"
    assert fed[-1] == ("", stop)


def test_work_is_linear_in_the_text_with_many_stop_strings_that_almost_match():
    """Steps are counted, not timed: each character moves the state forward once and falls back at most as often."""
    automaton = StopAutomaton(["a" * k + "b" for k in range(1, 65)])
    fallback, followed = automaton._fallback, 0

    class Counting(list):
        def __getitem__(self, state):
            nonlocal followed
            followed += 1
            return fallback[state]

    automaton._fallback = Counting()
    matcher = StopMatcher(automaton, include_stop=False)
    text = ("a" * 64 + "c") * 100
    for char in text:
        matcher.feed(char)
    assert followed <= 2 * len(text)
