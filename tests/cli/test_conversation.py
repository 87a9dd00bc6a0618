import pytest

from argosy.cli.chat.conversation import Command, Conversation, parse, unknown_command


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("  \n", None),
        ("hello there\n", "hello there"),
        ("/exit", Command("exit", "")),
        ("  /System  Be brief. Be kind. ", Command("system", "Be brief. Be kind.")),
        ("//etc/hosts is what?", "/etc/hosts is what?"),
    ],
)
def test_what_a_line_means(line, meaning):
    assert parse(line) == meaning


def test_messages_hold_system_prompt_turns_and_question():
    conversation = Conversation("Be brief.")
    conversation.keep("a?", "A.")
    assert conversation.messages_with("b?") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a?"},
        {"role": "assistant", "content": "A."},
        {"role": "user", "content": "b?"},
    ]


def test_without_a_system_prompt_none_is_sent_and_empty_answers_are_not_kept():
    conversation = Conversation()
    conversation.keep("a?", "")
    assert conversation.messages_with("b?") == [{"role": "user", "content": "b?"}]
    conversation.keep("a?", "A.")
    conversation.reset()
    assert conversation.messages_with("b?") == [{"role": "user", "content": "b?"}]


def test_an_unknown_command_is_answered_with_the_nearest():
    assert "did you mean /reset?" in unknown_command("rest")
    assert "/help" in unknown_command("zzz")
