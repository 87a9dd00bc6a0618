import io

from rich.console import Console

from argosy.cli.chat.views import PlainView, TerminalView
from argosy.cli.terminal import complain, printable


def shown(width: int, *pieces: str) -> str:
    file = io.StringIO()
    view = TerminalView(Console(file=file, width=width, color_system=None, highlight=False))
    view.begin_answer()
    for piece in pieces:
        view.show(piece)
    view.end_answer()
    return file.getvalue().replace("…\b \b", "")


def test_an_answer_is_wrapped_and_ends_with_a_blank_line():
    assert shown(12, "\n ", "Hello the", "re, world", "!") == "Hello there,\nworld!\n\n"
    assert shown(12) == "\n\n"


def test_markup_in_an_answer_is_text():
    assert shown(80, "[bold]a[/bold] :smile:") == "[bold]a[/bold] :smile:\n\n"


def test_a_model_cannot_steer_the_terminal():
    assert shown(80, "a\x1b[2Jb\x1b]0;title\x07c\r\x9b31md\u202ee") == "abc31mde\n\n"
    assert shown(80, "a\x1b]0;cut", " in two\x07b") == "a0;cut in twob\n\n"
    assert printable("tab\tand\nline stay: é 日 👍") == "tab\tand\nline stay: é 日 👍"


def test_a_pipe_gets_answers_only(capsys):
    view = PlainView()
    view.begin_answer()
    view.show("Hello")
    view.show(" there")
    view.end_answer()
    view.notice("a notice")
    view.error("an error")
    captured = capsys.readouterr()
    assert captured.out == "Hello there\n"
    assert captured.err == "a notice\nargosy: error: an error\n"


def test_an_error_is_one_line_whatever_it_holds(capsys):
    complain("first\nsecond\x1b[31m")
    assert capsys.readouterr().err == "argosy: error: first second\n"
