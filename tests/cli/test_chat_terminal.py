"""`argosy chat` as a person meets it: in a terminal, with a server at the other end that answers slowly."""

import contextlib
import json
import os
import pty
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

# The pseudo-terminal must control the process, so that Ctrl-C in it becomes SIGINT.
WITH_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from argosy.cli.main import main; main()"
PROMPT = "\x1b[?2004h"  # prompt_toolkit turns bracketed paste on whenever it prompts
ANSWER = ["Hel", "lo", " there", "\x1b]0;taken over\x07", "."]


class SlowServer(ThreadingHTTPServer):
    """Answers "Hello there."; a question with "slow" is never finished."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.questions: list[list[str]] = []
        self.cut = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    server: SlowServer

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"data": [{"id": "m1"}]}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.questions.append([message["content"] for message in body["messages"]])
        self.send_response(400 if "bad" in body["messages"][-1]["content"] else 200)
        self.end_headers()
        if "bad" in body["messages"][-1]["content"]:
            self.wfile.write(b'{"error": {"message": "that cannot be served"}}')
            return
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for text in ANSWER:
                self.send(json.dumps({"choices": [{"delta": {"content": text}, "finish_reason": None}]}))
            while "slow" in body["messages"][-1]["content"]:
                time.sleep(0.02)
                self.wfile.write(b": keep-alive\n\n")
            self.send("[DONE]")
            return
        self.server.cut.set()

    def send(self, data: str) -> None:
        self.wfile.write(f"data: {data}\n\n".encode())

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[SlowServer]:
    http = SlowServer()
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield http
    http.shutdown()
    http.server_close()
    thread.join()


class Terminal:
    """A pseudo-terminal with `argosy chat` in it."""

    def __init__(self, url: str, home: str) -> None:
        self._master, slave = pty.openpty()
        environment = {**os.environ, "ARGOSY_HOME": home, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
        command = [sys.executable, "-c", WITH_TERMINAL, "chat", "--url", url]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self.text = ""

    def wait_for(self, text: str, within_s: float = 60.0) -> str:
        """Read until `text` has come; returns what came up to its end, and forgets it."""
        deadline = time.monotonic() + within_s
        while text not in self.text:
            assert time.monotonic() < deadline, f"{text!r} did not come in {self.text!r}"
            if select.select([self._master], [], [], 0.1)[0]:
                self.text += os.read(self._master, 65536).decode(errors="replace")
        before, _, self.text = self.text.partition(text)
        return before + text

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def enter(self, line: str, shows: str) -> str:
        """Type a line and wait for what it shows and the next prompt; returns what came before that."""
        self.type(f"{line}\r")
        shown = self.wait_for(shows)
        return shown + self.wait_for(PROMPT)

    def close(self) -> int:
        code = self.process.wait(timeout=30)
        os.close(self._master)
        return code


@pytest.fixture
def open_terminal(server: SlowServer, tmp_path) -> Iterator[Callable[[], Terminal]]:
    opened: list[Terminal] = []

    def start() -> Terminal:
        opened.append(Terminal(server.url, str(tmp_path)))
        opened[-1].wait_for("/help lists the commands")
        opened[-1].wait_for(PROMPT)
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.process.kill()
        terminal.process.wait()


def test_questions_errors_and_leaving(server, open_terminal, tmp_path):
    terminal = open_terminal()
    assert "taken over" not in terminal.enter("hi", "there.")
    terminal.enter("a bad question", "that cannot be served")
    terminal.enter("and now?", "there.")
    assert [asked[-1] for asked in server.questions] == ["hi", "a bad question", "and now?"]
    assert server.questions[-1] == ["hi", "".join(ANSWER), "and now?"]
    terminal.type("/exit\r")
    assert terminal.close() == 0
    history = tmp_path / "chat_history"
    assert "and now?" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


def test_ctrl_c_stops_the_answer_and_not_the_program(server, open_terminal):
    terminal = open_terminal()
    terminal.type("slow please\r")
    terminal.wait_for("Hello")
    terminal.type("\x03")
    terminal.wait_for("stopped")
    terminal.wait_for(PROMPT)
    assert server.cut.wait(timeout=30)
    terminal.enter("again", "there.")
    asked, stopped_answer, again = server.questions[-1]
    assert (asked, again) == ("slow please", "again")
    assert stopped_answer.startswith("Hello")
    terminal.type("\x04")
    assert terminal.close() == 0


def test_ctrl_c_at_the_prompt_leaves_only_the_second_time(open_terminal):
    terminal = open_terminal()
    terminal.type("\x03")
    terminal.wait_for("Ctrl-C once more")
    terminal.wait_for(PROMPT)
    terminal.type("\x03")
    assert terminal.close() == 0


def test_a_pipe_gets_plain_answers(server, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "argosy", "chat", "--url", server.url, "--system", "Be brief."],
        input="one\n\n/reset\ntwo\n", capture_output=True, text=True, env={**os.environ, "ARGOSY_HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stdout == 2 * ("".join(ANSWER) + "\n")
    assert done.stderr == "the conversation starts anew\n"
    assert server.questions == [["Be brief.", "one"], ["Be brief.", "two"]]
    assert list(tmp_path.iterdir()) == []


def test_in_a_pipe_the_first_failure_ends_it(server, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "argosy", "chat", "--url", server.url],
        input="a bad one\nnever asked\n", capture_output=True, text=True, env={**os.environ, "ARGOSY_HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "argosy: error: that cannot be served\n"
    assert len(server.questions) == 1
