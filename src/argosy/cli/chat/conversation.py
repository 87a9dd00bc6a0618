"""The state of a chat, and what a line typed into it means."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field

COMMANDS = {
    "/help": "show this list",
    "/reset": "forget the conversation, keep the system prompt",
    "/system [TEXT]": "set the system prompt and start anew; without TEXT remove it",
    "/stats": "show tokens and speed of the last answer",
    "/exit": "leave (so does Ctrl-D)",
}


@dataclass(frozen=True, slots=True)
class Command:
    """A line that is for the chat, not for the model: its name without the slash, and the rest of the line."""

    name: str
    argument: str


@dataclass(slots=True)
class Conversation:
    """The messages so far. A question is kept only with its answer, so that a failed turn leaves no trace."""

    system: str | None = None
    turns: list[tuple[str, str]] = field(default_factory=list)

    def messages_with(self, question: str) -> list[dict[str, str]]:
        """The messages to send for the next answer."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for asked, answered in self.turns:
            messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
        return [*messages, {"role": "user", "content": question}]

    def keep(self, question: str, answer: str) -> None:
        """Remember a turn; an answer that was stopped is kept as far as it came, an empty one is not."""
        if answer:
            self.turns.append((question, answer))

    def reset(self) -> None:
        """Forget all turns."""
        self.turns.clear()


def parse(line: str) -> Command | str | None:
    """A command, or the text for the model, or None for a line of blanks. `//x` is the text `/x`."""
    text = line.strip()
    if not text:
        return None
    if text.startswith("//"):
        return text[1:]
    if text.startswith("/"):
        name, _, argument = text[1:].partition(" ")
        return Command(name.lower(), argument.strip())
    return text


def unknown_command(name: str) -> str:
    """What to say to a command that does not exist."""
    names = [command.split()[0] for command in COMMANDS]
    near = difflib.get_close_matches(f"/{name}", names, n=1)
    hint = f"did you mean {near[0]}?" if near else "/help lists them"
    return f"there is no command /{name}; {hint} (to send a line that begins with a slash, double it)"
