import asyncio
import os
import signal

import pytest

from argosy.cli.chat.answers import AnswerPiece, ChatSettings
from argosy.cli.chat.conversation import Conversation
from argosy.cli.chat.session import AnswerStats, ChatSession
from argosy.errors import ContextLengthExceeded, GenerationFailed


class ScriptedSource:
    """Gives the scripted pieces; an exception in the script is raised, None waits for ever."""

    model_name = "scripted"

    def __init__(self, *scripts):
        self.scripts = list(scripts)
        self.asked = []
        self.stopped = 0

    async def answer(self, messages, settings):
        self.asked.append((list(messages), settings))
        ended = False
        try:
            for item in self.scripts.pop(0):
                if item is None:
                    await asyncio.sleep(3600)
                if isinstance(item, Exception):
                    raise item
                yield item
            ended = True
        finally:
            self.stopped += not ended

    async def close(self):
        pass


class RecordingView:
    def __init__(self):
        self.text, self.notices, self.open = "", [], False

    def begin_answer(self):
        self.open = True

    def show(self, text):
        self.text += text

    def end_answer(self):
        assert self.open
        self.open = False

    def notice(self, text):
        self.notices.append(text)

    def error(self, text):
        raise AssertionError(text)


def make(*scripts, catch_interrupt=False, clock=None):
    source, view = ScriptedSource(*scripts), RecordingView()
    conversation = Conversation()
    options = {} if clock is None else {"clock": clock}
    session = ChatSession(
        source,
        view,
        conversation=conversation,
        settings=ChatSettings(temperature=0.0),
        catch_interrupt=catch_interrupt,
        **options,
    )
    return session, source, view, conversation


HELLO = [AnswerPiece("Hel"), AnswerPiece("lo."), AnswerPiece("", "stop", 12, 4, 3)]


async def test_an_answer_is_shown_and_remembered():
    session, source, view, _ = make(HELLO, HELLO)
    assert await session.take("hi\n")
    assert view.text == "Hello."
    assert not view.open
    await session.take("again")
    messages, settings = source.asked[1]
    assert [message["content"] for message in messages] == ["hi", "Hello.", "again"]
    assert settings == ChatSettings(temperature=0.0)
    assert source.stopped == 0


async def test_a_failed_turn_leaves_no_trace_in_the_conversation():
    session, _, view, conversation = make([AnswerPiece("Hel"), GenerationFailed("logits are not finite")], HELLO)
    with pytest.raises(GenerationFailed):
        await session.take("hi")
    assert conversation.turns == []
    assert not view.open
    await session.take("hi")
    assert conversation.turns == [("hi", "Hello.")]


async def test_a_conversation_that_outgrew_the_context_is_told_the_way_out():
    session, *_ = make([ContextLengthExceeded("the prompt has 2100 tokens")])
    with pytest.raises(ContextLengthExceeded, match="2100 tokens; /reset starts"):
        await session.take("hi")


async def test_ctrl_c_stops_the_answer_and_keeps_what_came():
    session, source, view, conversation = make([AnswerPiece("Hel"), None], HELLO, catch_interrupt=True)
    before = signal.getsignal(signal.SIGINT)
    asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGINT)
    assert await session.take("hi")
    assert source.stopped == 1
    assert conversation.turns == [("hi", "Hel")]
    assert view.notices == ["stopped"]
    assert not view.open
    await session.take("on")
    assert conversation.turns[-1] == ("on", "Hello.")
    assert signal.getsignal(signal.SIGINT) in (before, signal.default_int_handler)


async def test_an_answer_cut_by_the_limit_says_so():
    session, _, view, _ = make([AnswerPiece("Hel", "length", 1, 0, 1)])
    await session.take("hi")
    assert view.notices == ["the answer was cut at the limit of tokens"]


async def test_commands():
    session, source, view, conversation = make(HELLO, HELLO)
    await session.take("hi")
    await session.take("/reset")
    assert conversation.turns == []
    await session.take("/system Be brief.")
    assert conversation.messages_with("x")[0] == {"role": "system", "content": "Be brief."}
    await session.take("/system")
    assert conversation.system is None
    await session.take("/help")
    assert "/reset" in view.notices[-1]
    await session.take("/nonsense")
    assert "no command /nonsense" in view.notices[-1]
    assert len(source.asked) == 1
    assert await session.take("  ")
    assert not await session.take("/exit")


async def test_stats_of_the_last_answer():
    times = iter([10.0, 10.5, 11.5])
    session, _, view, _ = make(HELLO, clock=lambda: next(times))
    await session.take("/stats")
    assert view.notices == ["no answer yet"]
    await session.take("hi")
    await session.take("/stats")
    assert view.notices[-1] == (
        "12 tokens of prompt (4 from the cache), 3 tokens of answer, first text after 0.50 s, 1.50 s in all, 2.0 tokens/s"
    )


def test_stats_with_little_known():
    assert str(AnswerStats(None, None, None, None, 0.25)) == "0.25 s in all"
    assert AnswerStats(1, 0, 1, 0.1, 0.2).output_tokens_per_s is None
