"""One chat: lines go in, answers come out, the conversation grows."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass

from argosy.cli.chat.answers import AnswerPiece, AnswerSource, ChatSettings
from argosy.cli.chat.conversation import COMMANDS, Command, Conversation, parse, unknown_command
from argosy.cli.chat.views import View
from argosy.errors import ContextLengthExceeded


@dataclass(frozen=True, slots=True)
class AnswerStats:
    """Counts and times of one answer; None where the source does not tell or nothing came."""

    num_prompt_tokens: int | None
    num_cached_tokens: int | None
    num_output_tokens: int | None
    time_to_first_text_s: float | None
    duration_s: float

    def __str__(self) -> str:
        """One line for people."""
        parts = []
        if self.num_prompt_tokens is not None:
            cached = f" ({self.num_cached_tokens} from the cache)" if self.num_cached_tokens else ""
            parts.append(f"{self.num_prompt_tokens} tokens of prompt{cached}")
        if self.num_output_tokens is not None:
            parts.append(f"{self.num_output_tokens} tokens of answer")
        if self.time_to_first_text_s is not None:
            parts.append(f"first text after {self.time_to_first_text_s:.2f} s")
        parts.append(f"{self.duration_s:.2f} s in all")
        if (rate := self.output_tokens_per_s) is not None:
            parts.append(f"{rate:.1f} tokens/s")
        return ", ".join(parts)

    @property
    def output_tokens_per_s(self) -> float | None:
        """Tokens after the first text per second."""
        if not self.num_output_tokens or self.num_output_tokens < 2 or self.time_to_first_text_s is None:
            return None
        decode_s = self.duration_s - self.time_to_first_text_s
        return (self.num_output_tokens - 1) / decode_s if decode_s > 0 else None


class ChatSession:
    """Takes lines one after another. With `catch_interrupt`, Ctrl-C stops the answer instead of the program."""

    def __init__(
        self,
        source: AnswerSource,
        view: View,
        *,
        conversation: Conversation,
        settings: ChatSettings,
        catch_interrupt: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._view = view
        self._conversation = conversation
        self._settings = settings
        self._catch_interrupt = catch_interrupt
        self._clock = clock
        self._last: AnswerStats | None = None

    async def take(self, line: str) -> bool:
        """Act on one line; False if it asks to leave.

        Raises:
            ArgosyError: the turn failed; the conversation is as it was before.
        """
        match parse(line):
            case None:
                return True
            case Command("exit" | "quit" | "bye", _):
                return False
            case Command(name, argument):
                self._obey(name, argument)
            case str(question):
                await self._ask(question)
        return True

    def _obey(self, name: str, argument: str) -> None:
        match name:
            case "help":
                width = max(map(len, COMMANDS))
                self._view.notice("\n".join(f"{command:<{width}}  {what}" for command, what in COMMANDS.items()))
            case "reset":
                self._conversation.reset()
                self._view.notice("the conversation starts anew")
            case "system":
                self._conversation.system = argument or None
                self._conversation.reset()
                self._view.notice("system prompt set" if argument else "system prompt removed")
            case "stats":
                self._view.notice(str(self._last) if self._last else "no answer yet")
            case _:
                self._view.notice(unknown_command(name))

    async def _ask(self, question: str) -> None:
        answer: list[str] = []
        self._view.begin_answer()
        task = asyncio.create_task(self._receive(question, answer))
        try:
            with self._interrupt_cancels(task):
                last = await task
        except asyncio.CancelledError:
            if not self._catch_interrupt:
                raise
            self._view.end_answer()
            self._view.notice("stopped")
            self._conversation.keep(question, "".join(answer))
            return
        except ContextLengthExceeded as error:
            self._view.end_answer()
            raise ContextLengthExceeded(f"{error.message}; /reset starts a fresh conversation") from error
        except BaseException:
            self._view.end_answer()
            raise
        self._view.end_answer()
        if last.finish_reason == "length":
            self._view.notice("the answer was cut at the limit of tokens")
        self._conversation.keep(question, "".join(answer))

    async def _receive(self, question: str, answer: list[str]) -> AnswerPiece:
        """Show pieces as they come and collect them in `answer`; returns the last one."""
        started_s, first_s, last = self._clock(), None, AnswerPiece()
        async with aclosing(self._source.answer(self._conversation.messages_with(question), self._settings)) as pieces:
            async for piece in pieces:
                last = piece
                if piece.text:
                    first_s = self._clock() - started_s if first_s is None else first_s
                    answer.append(piece.text)
                    self._view.show(piece.text)
        duration_s = self._clock() - started_s
        self._last = AnswerStats(last.num_prompt_tokens, last.num_cached_tokens, last.num_output_tokens, first_s, duration_s)
        return last

    @contextmanager
    def _interrupt_cancels(self, task: asyncio.Task[AnswerPiece]) -> Iterator[None]:
        if not self._catch_interrupt:
            yield
            return
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, task.cancel)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)
