import asyncio
import io
import sys

import pytest

from argosy.cli.chat.loops import read_lines
from argosy.errors import InvalidRequest


class Lines:
    """A session that notes its lines and leaves at "/exit"."""

    def __init__(self):
        self.taken = []

    async def take(self, line):
        self.taken.append(line)
        return line != "/exit\n"


def read(monkeypatch, data: bytes, *, errors: str = "strict") -> Lines:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", errors=errors))
    session = Lines()
    asyncio.run(read_lines(session))
    return session


def test_each_line_is_a_turn_until_the_end_or_the_wish_to_leave(monkeypatch):
    assert read(monkeypatch, b"").taken == []
    assert read(monkeypatch, "one\n\nzwölf".encode()).taken == ["one\n", "\n", "zwölf"]
    assert read(monkeypatch, b"one\n/exit\ntwo\n").taken == ["one\n", "/exit\n"]


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_bytes_that_are_no_text_are_named_by_their_line(monkeypatch, errors):
    with pytest.raises(InvalidRequest, match="line 2 of the input is not UTF-8 text"):
        read(monkeypatch, b"hi\n" + b"x" * 20_000 + b"\xff\xfe\n", errors=errors)
