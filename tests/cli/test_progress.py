import io
import sys

from argosy.cli.progress import fetch_progress


def test_without_a_terminal_two_lines_tell_of_a_fetch(capsys):
    with fetch_progress() as report:
        for done in range(0, 2_000_001, 500_000):
            report(done, 2_000_000, "tiny-lm")
        report(2_000_000, 2_000_000, "tiny-lm")
    captured = capsys.readouterr()
    assert captured.err == "fetching tiny-lm (2.0 MB) …\nfetched tiny-lm\n"
    assert captured.out == ""


def test_waiting_for_another_process_is_said_once(capsys):
    with fetch_progress() as report:
        report(0, None, "waiting for another process that fetches tiny-lm")
    assert capsys.readouterr().err == "waiting for another process that fetches tiny-lm …\n"


def test_nothing_fetched_nothing_said(capsys):
    with fetch_progress():
        pass
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with fetch_progress() as report:
        report(1_000_000, 2_000_000, "tiny-lm")
        report(2_000_000, 2_000_000, "tiny-lm")
    assert "fetching tiny-lm" in terminal.getvalue()
    assert "2.0/2.0 MB" in terminal.getvalue()
