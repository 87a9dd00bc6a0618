"""Where the lines of a chat come from: a person at a terminal, or a pipe."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.formatted_text import HTML
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from argosy.cli.chat.conversation import COMMANDS
from argosy.cli.chat.session import ChatSession
from argosy.cli.chat.views import View
from argosy.errors import ArgosyError, InvalidRequest


async def talk(session: ChatSession, view: View, history: Path) -> None:
    """Prompt, answer, until Ctrl-D or /exit. A failed turn is shown and the chat goes on."""
    prompt = _prompt_session(history)
    leaving = False
    while True:
        try:
            line = await prompt.prompt_async(HTML("<ansigreen><b>&gt;</b></ansigreen> "))
            leaving = False
        except KeyboardInterrupt:
            if leaving:
                return
            leaving = True
            view.notice("Ctrl-C once more, Ctrl-D or /exit leaves")
            continue
        except EOFError:
            return
        try:
            with _no_echo():
                if not await session.take(line):
                    return
        except ArgosyError as error:
            view.error(error.message)


@contextmanager
def _no_echo() -> Iterator[None]:
    """Keep what is typed during an answer out of the answer; it stands at the next prompt."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    quiet = before.copy()
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


async def read_lines(session: ChatSession) -> None:
    """Take each line of stdin as a turn; the first failure ends it.

    Raises:
        InvalidRequest: a line is not text; and what a turn raises.
    """
    for number in itertools.count(1):
        line = await asyncio.to_thread(_read_line, number)
        if not line or not await session.take(line):
            return


def _read_line(number: int) -> str:
    try:
        line = sys.stdin.readline()
        line.encode()  # in some locales bytes that are no text pass as lone surrogates
    except UnicodeError:
        raise InvalidRequest(f"line {number} of the input is not UTF-8 text") from None
    return line


def _prompt_session(history: Path) -> PromptSession[str]:
    history.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(history, os.O_CREAT | os.O_APPEND, 0o600))  # what people ask is nobody else's business
    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _insert_line_break(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    commands = WordCompleter([command.split()[0] for command in COMMANDS], sentence=True)
    return PromptSession(
        history=FileHistory(str(history)),
        key_bindings=keys,
        completer=commands,
        complete_while_typing=False,
        prompt_continuation="  ",
    )
