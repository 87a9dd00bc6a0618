"""Wrapping text that arrives in pieces, at spaces, so that no word is broken at the edge of the terminal."""

from __future__ import annotations

import re

from rich.cells import cell_len

PARTS = re.compile(r"\n| +|[^ \n]+")
FENCE = "```"


class WordWrap:
    """Feeds text through; a word is let go once what follows it has begun, or when it fills a line by itself.

    A break takes the place of the spaces it falls on. Lines that begin with a space or stand in a ``` fence keep their
    shape.
    """

    def __init__(self, width: int) -> None:
        self._width = max(width, 1)
        self._column = 0
        self._spaces = ""
        self._word = ""
        self._verbatim = False
        self._fenced = False

    def feed(self, text: str) -> str:
        """The text that can be shown after `text` has arrived."""
        return "".join(self._take(part) for part in PARTS.findall(text))

    def flush(self) -> str:
        """What is still held back; spaces at the end are dropped."""
        word, self._word = self._word, ""
        if not word:
            return ""
        spaces, self._spaces = self._spaces, ""
        if self._column == 0 and word.startswith(FENCE):
            self._fenced = not self._fenced
        cells = len(spaces) + cell_len(word)
        begins = self._column == 0 or not spaces  # a line, or more of a word whose start was let go for its length
        if begins or self._fenced or self._verbatim or self._column + cells <= self._width:
            self._column += cells
            return spaces + word
        self._column = cells - len(spaces)
        return f"\n{word}"

    def _take(self, part: str) -> str:
        if part == "\n":
            shown = self.flush()
            self._column, self._spaces, self._verbatim = 0, "", False
            return f"{shown}\n"
        if part[0] == " ":
            shown = self.flush()
            self._verbatim = self._verbatim or (self._column == 0 and not self._fenced)
            self._spaces += part
            return shown
        self._word += part
        return self.flush() if cell_len(self._word) >= self._width else ""
