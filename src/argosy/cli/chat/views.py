"""How a chat looks: in a terminal, and in a pipe."""

from __future__ import annotations

import sys
from typing import Protocol

from rich.console import Console
from rich.text import Text

from argosy.cli.chat.word_wrap import WordWrap
from argosy.cli.terminal import complain, printable


class View(Protocol):
    """Where the session shows what happens."""

    def begin_answer(self) -> None:
        """The model is about to speak."""
        ...

    def show(self, text: str) -> None:
        """A piece of the answer."""
        ...

    def end_answer(self) -> None:
        """The model has finished, or was stopped."""
        ...

    def notice(self, text: str) -> None:
        """Something the chat itself has to say."""
        ...

    def error(self, text: str) -> None:
        """Something went wrong with this turn."""
        ...


class PlainView:
    """Answers on stdout and nothing else; errors on stderr."""

    def begin_answer(self) -> None:
        """Nothing to show."""

    def show(self, text: str) -> None:
        """Write the piece as it is: a pipe is no terminal that could be steered."""
        sys.stdout.write(text)
        sys.stdout.flush()

    def end_answer(self) -> None:
        """End the line."""
        sys.stdout.write("\n")
        sys.stdout.flush()

    def notice(self, text: str) -> None:
        """Keep stdout for answers."""
        print(text, file=sys.stderr, flush=True)

    def error(self, text: str) -> None:
        """One line on stderr."""
        complain(text)


class TerminalView:
    """Answers wrapped at words and cleaned of control characters; notices dimmed, errors red."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._wrap = WordWrap(self._console.width)
        self._blank = True

    def begin_answer(self) -> None:
        """Start anew at the left edge; a thinking mark stands until the first piece."""
        self._wrap = WordWrap(self._console.width)
        self._blank = True
        self._write("…", style="dim")

    def show(self, text: str) -> None:
        """Write what the wrapping lets go; blank space before the first word is dropped."""
        text = printable(text)
        if self._blank:
            text = text.lstrip()
            if not text:
                return
            self._erase_mark()
        self._write(self._wrap.feed(text))

    def end_answer(self) -> None:
        """Write the rest and leave a blank line."""
        if self._blank:
            self._erase_mark()
        self._write(self._wrap.flush())
        self._write("\n\n")

    def notice(self, text: str) -> None:
        """Dimmed."""
        self._console.print(Text(printable(text), style="dim"))

    def error(self, text: str) -> None:
        """Red."""
        self._console.print(Text(printable(text), style="red"))

    def _erase_mark(self) -> None:
        self._blank = False
        self._console.file.write("\b \b")

    def _write(self, text: str, style: str | None = None) -> None:
        self._console.out(text, style=style, end="", highlight=False)
        self._console.file.flush()
