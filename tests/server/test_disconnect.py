"""The client leaves, in every state: what it asked for stops."""

import json
import signal
import socket
import struct
import subprocess
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})
TEXT = ("/v1/completions", {"prompt": "x"})
MANY = ("/v1/completions", {"prompt": ["a", "b", "c"], "n": 2})


def leave(connection, how):
    if how == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("request_", [CHAT, TEXT, MANY], ids=["chat", "text", "many"])
@pytest.mark.parametrize("at", [0, 3], ids=["before the first token", "between tokens"])
def test_leaving_aborts(server, script, wait_until, how, stream, request_, at):
    server.engine.script = script(hang_at=at)
    path, body = request_
    prompts = len(body["prompt"]) if isinstance(body.get("prompt"), list) else 1
    connection = server.send_post(path, {**body, "stream": stream})
    wait_until(lambda: len(server.engine.running) == prompts)
    if stream and at:
        wait_until(lambda: b"data:" in connection.recv(65536))
    leave(connection, how)
    wait_until(lambda: not server.engine.running)
    assert all(s.aborted and not s.finished for s in server.engine.submissions)
    server.engine.script = script()
    assert server.chat().status_code == 200


def test_leaving_while_tokens_flow(server, script, wait_until):
    server.engine.script = script(text="x" * 5000, delay_s=0.002)
    connection = server.send_post("/v1/completions", {"prompt": "x", "stream": True, "max_tokens": None})
    for _ in range(3):
        connection.recv(200)
    connection.close()
    wait_until(lambda: not server.engine.running)
    assert server.last.aborted
    assert not server.last.finished


def test_leaving_without_reading_anything(server, script, wait_until):
    """The response is stuck in full buffers when the client goes."""
    server.engine.script = script(text="x" * 200_000)
    connection = server.send_post("/v1/completions", {"prompt": "x", "stream": True, "max_tokens": None})
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    wait_until(lambda: server.engine.running)
    leave(connection, "reset")
    wait_until(lambda: not server.engine.running)


def test_leaving_before_the_body_is_complete(server, wait_until):
    with server.connect() as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    assert server.chat().status_code == 200
    assert len(server.engine.submissions) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_with_another_request_behind(server, script, wait_until, stream):
    """A second request on the same connection must not hide that the client of the first has gone."""
    server.engine.script = script(hang_at=1)
    data = json.dumps({"prompt": "x", "stream": stream}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    connection = server.connect()
    connection.sendall((head + data) * 3)
    wait_until(lambda: server.engine.running)
    connection.close()
    wait_until(lambda: not server.engine.running)
    assert len(server.engine.submissions) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_killed_client(server, script, wait_until, stream):
    server.engine.script = script(hang_at=2)
    body = {"prompt": "x", "stream": stream}
    code = f"import httpx; httpx.post('{server.url}/v1/completions', json={body}, timeout=60)"
    client = subprocess.Popen([sys.executable, "-c", code])
    wait_until(lambda: server.engine.running, 30)
    client.send_signal(signal.SIGKILL)
    client.wait()
    wait_until(lambda: not server.engine.running)
    server.engine.script = script()
    assert server.chat().status_code == 200


def test_a_finished_request_is_not_aborted(server):
    for stream in (False, True):
        assert server.chat(stream=stream).status_code == 200
        assert server.last.finished
        assert not server.last.aborted


def test_disconnects_are_counted_and_nothing_stays_in_flight(make_server, script, wait_until):
    server = make_server()
    server.engine.script = script(hang_at=1)
    for stream in (False, True):
        connection = server.send_post("/v1/completions", {"prompt": "x", "stream": stream})
        wait_until(lambda: server.engine.running)
        connection.close()
        wait_until(lambda: not server.engine.running)

    def values():
        families = text_string_to_metric_families(server.http.get("/metrics").text)
        return {s.name: s.value for f in families for s in f.samples}

    wait_until(lambda: values()["argosy_http_client_disconnects_total"] == 2)
    assert values()["argosy_http_requests_in_flight"] == 1  # the scrape itself
    assert server.app.state.server.in_flight == 0
