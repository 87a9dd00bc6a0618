import re

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from argosy.cli.chat.word_wrap import WordWrap

TEXT = st.text(alphabet="ab é日\n", max_size=200)


def wrap(text: str, width: int, *cuts: int) -> str:
    wrapping, pieces, last = WordWrap(width), [], 0
    for cut in [*sorted(cuts), len(text)]:
        pieces.append(wrapping.feed(text[last:cut]))
        last = max(last, cut)
    return "".join(pieces) + wrapping.flush()


def test_a_word_that_does_not_fit_starts_a_new_line():
    assert wrap("one two three", 8) == "one two\nthree"
    assert wrap("one two three", 7) == "one two\nthree"
    assert wrap("日本 日本", 8) == "日本\n日本"


def test_a_word_longer_than_a_line_is_left_whole():
    assert wrap("a " + "b" * 12 + " c", 8) == "a\n" + "b" * 12 + "\nc"


def test_indented_lines_and_fenced_code_keep_their_shape():
    assert wrap("    indented code stays", 10) == "    indented code stays"
    code = "```py\nprint('a long line of code')\n```"
    assert wrap(code, 10) == code
    assert wrap(code + "\nand words wrap again", 10) == code + "\nand words\nwrap again"


def test_a_word_is_shown_as_soon_as_a_space_follows():
    wrapping = WordWrap(40)
    assert wrapping.feed("hel") == ""
    assert wrapping.feed("lo ") == "hello"
    assert wrapping.feed("world") == ""
    assert wrapping.flush() == " world"


@given(TEXT, st.integers(1, 20), st.lists(st.integers(0, 200), max_size=5))
def test_how_the_text_is_cut_does_not_matter(text, width, cuts):
    cuts = [min(cut, len(text)) for cut in cuts]
    assert wrap(text, width, *cuts) == wrap(text, width)


@given(TEXT, st.integers(2, 20))
def test_words_stay_and_lines_fit(text, width):
    wrapped = wrap(text, width)
    assert wrapped.split() == text.split()
    for line in wrapped.split("\n"):
        words = line.split()
        assert cell_len(line) <= width or len(words) == 1 or line.startswith(" ")
    assert re.sub(r"[ \n]+", " ", wrapped).strip() == re.sub(r"[ \n]+", " ", text).strip()
