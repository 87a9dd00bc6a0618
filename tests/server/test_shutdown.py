"""Signals to a server process of its own."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

PROGRAM = """
import runpy, sys
from argosy.observe.logs import configure_logging
from argosy.server.config import ServerConfig
from argosy.server.run import run_server
scripted = runpy.run_path(sys.argv[1])
engine = scripted["FakeEngine"]()
engine.script = scripted["Script"](text=sys.argv[2], delay_s=float(sys.argv[3]))
configure_logging("info", "json")
config = ServerConfig(port=0, drain_timeout_s=float(sys.argv[4]))
sys.exit(run_server(engine, config, on_started=lambda url: print(url, flush=True)))
"""


@pytest.fixture
def start():
    processes = []

    def run(*, text="abcdefgh", delay_s=0.1, drain_timeout_s=20.0):
        conftest = Path(__file__).parent / "conftest.py"
        command = [sys.executable, "-c", PROGRAM, conftest, text, str(delay_s), str(drain_timeout_s)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:"), process.stderr.read()
        return process, url

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def stream(url):
    return httpx.stream(
        "POST", f"{url}/v1/completions", json={"prompt": "x", "stream": True, "max_tokens": None}, timeout=30
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_ends_cleanly(start, number):
    process, _ = start()
    process.send_signal(number)
    assert process.wait(20) == 0
    assert "Traceback" not in process.stderr.read()


def test_running_streams_finish_and_nothing_new_begins(start, wait_until):
    process, url = start(delay_s=0.4)
    with stream(url) as answer:
        lines = answer.iter_lines()
        first = next(lines)
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(f"{url}/health/ready").status_code == 503)
        assert httpx.get(f"{url}/health/live").status_code == 200
        refused = httpx.post(f"{url}/v1/completions", json={"prompt": "x"})
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "service_unavailable"
        assert refused.headers["connection"] == "close"
        rest = [first, *lines]
    text = "".join(json.loads(line[6:])["choices"][0]["text"] for line in rest if line.startswith("data: {"))
    assert text == "abcdefgh"
    assert rest[-2] == "data: [DONE]"
    assert process.wait(20) == 0


def test_the_drain_has_an_end(start):
    process, url = start(text="x" * 10_000, delay_s=0.05, drain_timeout_s=0.3)
    with stream(url) as answer:
        lines = answer.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        events = [line for line in lines if line]
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "service_unavailable"
    assert process.wait(20) == 0


def test_a_second_signal_quits_at_once(start, wait_until):
    process, url = start(text="x" * 10_000, delay_s=0.05, drain_timeout_s=600)
    with stream(url) as answer:
        lines = answer.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(f"{url}/health/ready").status_code == 503)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 128 + signal.SIGINT


def test_a_stuck_reader_does_not_hold_up_the_end(start):
    process, url = start(text="x" * 100_000, delay_s=0.0, drain_timeout_s=0.5)
    port = int(url.rpartition(":")[2])
    body = json.dumps({"prompt": "x", "stream": True, "max_tokens": None}).encode()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        connection.recv(100)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_the_log_of_a_request_has_no_prompt_and_no_key(start):
    process, url = start(delay_s=0.0)
    secret = "the prompt is a secret"
    answer = httpx.post(
        f"{url}/v1/chat/completions",
        json={"messages": [{"role": "user", "content": secret}], "user": "ann", "metadata": {"run": "7"}},
        headers={
            "x-request-id": "id-1",
            "authorization": "Bearer sk-hidden",
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        },
    )
    fine = [{"role": "user", "content": "x"}]
    bad = [
        {"messages": secret},
        {"messages": [{"role": secret, "content": "x"}]},
        {"messages": fine, secret: 1},
        {"stop": 5, "model": secret},
    ]
    assert [httpx.post(f"{url}/v1/chat/completions", json=body).status_code for body in bad] == [400] * 4
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    log = process.stderr.read()
    assert secret not in log
    assert "sk-hidden" not in log
    events = [json.loads(line) for line in log.splitlines()]
    access = [event for event in events if event["logger"] == "argosy.access"]
    assert len(access) == 5
    line = access[0]
    expected = {
        "request_id": "id-1", "method": "POST", "route": "/v1/chat/completions", "status": 200, "output_tokens": 8,
        "user": "ann", "metadata": {"run": "7"}, "stream": False, "completion_id": answer.json()["id"],
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "parent_span_id": "00f067aa0ba902b7",
    }  # fmt: skip
    assert {name: line[name] for name in expected} == expected
    assert line["prompt_tokens"] == answer.json()["usage"]["prompt_tokens"]
    assert 0 <= line["ttft_s"] <= line["duration_s"]
    assert access[1]["status"] == 400
    assert "trace_id" not in access[1]
    assert access[1]["error"] == "invalid_request_error: messages"
    assert access[3]["error"] == "invalid_request_error"
