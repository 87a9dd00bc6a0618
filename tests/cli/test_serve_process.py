"""`argosy serve` and `argosy chat` as processes, with a real model."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from argosy.models.resolve import resolve

pytestmark = [pytest.mark.model, pytest.mark.slow]
SMALL = ["--kv-cache-memory", "128MiB", "--threads", "1"]


class Served:
    """A server process; stdout goes to a file, which the address is read from."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self._out, self.err = folder / "out", folder / "err"
        command = [sys.executable, "-m", "argosy", "serve", "smollm2-135m", "--port", "0", *SMALL, *flags]
        with self._out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(command, stdout=out, stderr=err)

    def wait_for_greeting(self) -> str:
        deadline = time.monotonic() + 240
        while (found := re.search(r"is served at (http://\S+) ", self._out.read_text())) is None:
            assert self.process.poll() is None, self.err.read_text()
            assert time.monotonic() < deadline, self.err.read_text()
            time.sleep(0.1)
        return found[1]


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[tuple[Served, str]]:
    server = Served(tmp_path_factory.mktemp("served"), "--api-key", "sk-1", "--served-model-name", "small")
    try:
        yield server, server.wait_for_greeting()
    finally:
        server.process.kill()
        server.process.wait()


def chat(*arguments: str, question: str = "Name the capital of France.\n") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "argosy", "chat", "--temperature", "0", "--max-tokens", "12", *arguments]
    return subprocess.run(command, input=question, capture_output=True, text=True, timeout=240)


def test_the_openai_client_gets_an_answer(served):
    _, url = served
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="sk-1")
    message = {"role": "user", "content": "Name the capital of France."}
    answer = client.chat.completions.create(model="small", messages=[message], temperature=0, max_tokens=12)
    assert "Paris" in (answer.choices[0].message.content or "")


def test_the_key_is_asked_for_and_kept_out_of_the_log(served):
    server, url = served
    assert httpx.get(f"{url}/v1/models").status_code == 401
    assert chat("--url", url).stderr.startswith("argosy: error: an API key is needed")
    assert "Paris" in chat("--url", url, "--api-key", "sk-1").stdout
    assert "sk-1" not in server.err.read_text()


def test_a_chat_without_a_server_gives_the_same_answer(served):
    _, url = served
    remote = chat("--url", url, "--api-key", "sk-1")
    local = chat("smollm2-135m", *SMALL)
    assert (local.returncode, local.stdout) == (0, remote.stdout)


def test_a_truncated_model_is_one_line(tmp_path):
    whole = resolve("smollm2-135m").path
    cut = tmp_path / "cut.gguf"
    with whole.open("rb") as source:
        cut.write_bytes(source.read(30_000_000))
    command = [sys.executable, "-m", "argosy", "serve", str(cut), "--port", "0", *SMALL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (2, "")
    errors = [line for line in done.stderr.splitlines() if not re.match(r"\d{4}-", line)]
    assert len(errors) == 1
    assert errors[0].startswith(f"argosy: error: {cut} is truncated")


def test_sigterm_ends_it_with_success(tmp_path):
    server = Served(tmp_path)
    try:
        server.wait_for_greeting()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0
        assert "Traceback" not in server.err.read_text()
    finally:
        server.process.kill()
        server.process.wait()
