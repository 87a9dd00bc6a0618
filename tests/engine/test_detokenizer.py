from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from argosy.engine.detokenizer import Detokenizer

REPLACEMENT = "\ufffd"
utf8_or_not = st.one_of(
    st.binary(max_size=12),
    st.text(max_size=6).map(str.encode),
    st.lists(st.sampled_from([b"\xed\xa0\x80", b"\xf0\x9f", b"\x94\xa5", b"\xc4", b"\x8f", b"\xf4\x90", b"a"])).map(
        b"".join
    ),
)


@given(st.lists(utf8_or_not, max_size=8), st.data())
@example([b"\xf0", b"\x9f", b"\x94", b"\xa5"], None)
@example([b"\xed", b"\xa0", b"\x80"], None)
def test_pieces_joined_equal_the_whole_decoded(piece_tokenizer, pieces, data):
    specials = data.draw(st.sets(st.integers(0, len(pieces)))) if data is not None else set()
    tokenizer = piece_tokenizer(pieces, special_token_ids=specials)
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=True)
    texts = [detokenizer.append([i]) for i in range(len(pieces))]
    assert "".join(texts) + detokenizer.flush() == tokenizer.decode(range(len(pieces)))


@given(st.text())
def test_valid_text_never_shows_a_replacement_character_and_comes_at_once(byte_tokenizer, text):
    detokenizer = Detokenizer(byte_tokenizer, skip_special_tokens=True)
    for char in text:
        encoded = list(char.encode())
        assert [detokenizer.append([b]) for b in encoded] == [""] * (len(encoded) - 1) + [char]
    assert detokenizer.flush() == ""


@pytest.mark.parametrize("char", ["ď", "🔥"])
def test_a_character_cut_by_the_end_becomes_one_replacement_character(byte_tokenizer, char):
    detokenizer = Detokenizer(byte_tokenizer, skip_special_tokens=True)
    assert [detokenizer.append([b]) for b in char.encode()[:-1]] == [""] * (len(char.encode()) - 1)
    assert detokenizer.flush() == REPLACEMENT


def test_special_tokens_are_silent_only_when_asked_for(byte_tokenizer):
    assert Detokenizer(byte_tokenizer, skip_special_tokens=True).append([65, 258, 66]) == "AB"
    assert Detokenizer(byte_tokenizer, skip_special_tokens=False).append([65, 258, 66]) == "A<mark>B"


def test_a_silent_token_does_not_break_a_character_apart(byte_tokenizer):
    detokenizer = Detokenizer(byte_tokenizer, skip_special_tokens=True)
    first, second = "ď".encode()
    assert [detokenizer.append([first]), detokenizer.append([258]), detokenizer.append([second])] == ["", "", "ď"]


def test_an_id_above_the_vocabulary_gives_no_text(byte_tokenizer):
    assert Detokenizer(byte_tokenizer, skip_special_tokens=True).append([65, 9999]) == "A"
