from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.sequence_text import SequenceText
from argosy.engine.stop_strings import StopAutomaton


def make(tokenizer, **params) -> SequenceText:
    params = SamplingParams(**params)
    return SequenceText(tokenizer, params, StopAutomaton(params.stop) if params.stop else None)


def cut(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The whole-text reference: the first complete stop string ends it, the longest of those that end there."""
    ends = [(text.find(s) + len(s), -len(s), s) for s in stops if s in text]
    if not ends:
        return text, None
    end, _, stop = min(ends)
    return text[: end if include else end - len(stop)], stop


pieces_of_bytes = st.lists(
    st.sampled_from([b"a", b"b", b"ab", b"", b"\xf0\x9f", b"\x94\xa5", b"\xc4", b"\x8f", b"\xff", "🔥".encode()]),
    min_size=1,
    max_size=14,
)
some_stops = st.lists(st.sampled_from(["a", "ab", "ba", "🔥", "bď", "\ufffd", "aab", "a🔥b"]), max_size=4)


@given(pieces_of_bytes, some_stops, st.booleans(), st.data())
def test_any_tokens_in_any_steps_give_the_whole_text_cut_at_the_first_stop_string(
    piece_tokenizer, pieces, stops, include, data
):
    tokenizer = piece_tokenizer(pieces)
    text = make(tokenizer, stop=tuple(stops), include_stop_str_in_output=include)
    expected, stop = cut(b"".join(pieces).decode("utf-8", "replace"), stops, include)
    out, matched, ids = "", None, list(range(len(pieces)))
    while ids and matched is None:
        size = data.draw(st.integers(1, len(ids)))
        step, ids = ids[:size], ids[size:]
        released, num_tokens, matched = text.append(step, is_last=not ids, last_is_silent=False)
        assert num_tokens == len(step) or matched is not None
        out += released
    assert (out, matched) == (expected, stop)


@given(pieces_of_bytes, some_stops, st.integers(0, 15))
def test_text_of_the_first_min_tokens_is_never_searched(piece_tokenizer, pieces, stops, min_tokens):
    tokenizer = piece_tokenizer(pieces)
    text = make(tokenizer, stop=tuple(stops), min_tokens=min_tokens)
    out = ""
    for i in range(len(pieces)):
        released, _, matched = text.append([i], is_last=i == len(pieces) - 1, last_is_silent=False)
        out += released
        if matched is not None:
            assert i >= min_tokens
            assert matched in stops
            break
    whole = b"".join(pieces).decode("utf-8", "replace")
    free = make(tokenizer).append(range(min(min_tokens, len(pieces))), is_last=False, last_is_silent=False).text
    rest, _ = cut(whole[len(free) :], stops, False) if min_tokens < len(pieces) else (whole[len(free) :], None)
    assert out == free + rest


def test_tokens_after_the_one_that_completes_a_stop_string_are_not_counted(byte_tokenizer):
    text = make(byte_tokenizer, stop=("lo",))
    assert text.append(list(b"hello world"), is_last=False, last_is_silent=False) == ("hel", 5, "lo")


@pytest.mark.parametrize("stops", [(), ("xyz",)])
def test_the_token_that_only_ends_the_sequence_gives_no_text_but_counts(byte_tokenizer, stops):
    text = make(byte_tokenizer, stop=stops)
    assert text.append([72, 105, 33], is_last=True, last_is_silent=True) == ("Hi", 3, None)


def test_a_character_cut_by_the_end_is_shown_as_replacement(byte_tokenizer):
    for stops in ((), ("xyz",)):
        text = make(byte_tokenizer, stop=stops)
        assert text.append([0x77, 0xF0, 0x9F], is_last=False, last_is_silent=False).text == "w"
        assert text.append([], is_last=True, last_is_silent=False).text == "\ufffd"


def test_held_text_is_released_by_the_end_and_not_before(byte_tokenizer):
    text = make(byte_tokenizer, stop=("xyz",))
    assert text.append(list(b"wxy"), is_last=False, last_is_silent=False).text == "w"
    assert text.append([], is_last=True, last_is_silent=False).text == "xy"


def test_a_stop_string_across_multi_byte_characters_cut_into_bytes(byte_tokenizer):
    text = make(byte_tokenizer, stop=("🔥ď",))
    updates = [text.append([b], is_last=False, last_is_silent=False) for b in "a🔥ď".encode()]
    assert [u.text for u in updates] == ["a"] + [""] * 6
    assert updates[-1].matched == "🔥ď"
