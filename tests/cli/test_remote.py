import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from argosy.cli.chat.answers import AnswerPiece, ChatSettings
from argosy.cli.chat.remote import RemoteAnswers
from argosy.errors import EngineUnavailable, GenerationFailed, InvalidRequest, Unauthorized, UnknownModel

NO_SETTINGS = ChatSettings()


@dataclass
class ScriptedServer:
    url: str = ""
    status: int = 200
    models: bytes = b'{"data": [{"id": "m1"}, {"id": "m2"}]}'
    events: list[str] = field(default_factory=list)
    bodies: list[dict] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    scripted = ScriptedServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            scripted.keys.append(self.headers["Authorization"])
            self.answer(scripted.models if scripted.status == 200 else b'{"error": {"message": "wrong key"}}')

        def do_POST(self) -> None:
            scripted.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            if scripted.status != 200:
                self.answer(b'{"error": {"message": "temperature is out of range"}}')
            else:
                self.answer("".join(f"{event}\n\n" for event in scripted.events).encode())

        def answer(self, body: bytes) -> None:
            self.send_response(scripted.status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    scripted.url = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield scripted
    http.shutdown()
    http.server_close()
    thread.join()


async def ask(server, settings=NO_SETTINGS) -> list[AnswerPiece]:
    source = await RemoteAnswers.connect(server.url, model=None, api_key=None)
    try:
        return [piece async for piece in source.answer([{"role": "user", "content": "hi"}], settings)]
    finally:
        await source.close()


async def test_the_first_model_is_taken_and_the_key_is_sent(server):
    source = await RemoteAnswers.connect(server.url + "/v1/", model=None, api_key="sk-1")
    assert source.model_name == f"m1 at {server.url}"
    assert server.keys == ["Bearer sk-1"]
    await source.close()


async def test_who_cannot_be_talked_to_is_told(server):
    with pytest.raises(UnknownModel, match="does not serve 'm3'; it serves m1, m2"):
        await RemoteAnswers.connect(server.url, model="m3", api_key=None)
    server.models = b"<html>"
    with pytest.raises(EngineUnavailable, match="does not speak the OpenAI protocol"):
        await RemoteAnswers.connect(server.url, model=None, api_key=None)
    server.status = 401
    with pytest.raises(Unauthorized, match="wrong key"):
        await RemoteAnswers.connect(server.url, model=None, api_key=None)
    for nobody in ("http://127.0.0.1:9", "127.0.0.1:9", "http://[bad"):
        with pytest.raises(EngineUnavailable, match="no server answers at"):
            await RemoteAnswers.connect(nobody, model=None, api_key=None)


async def test_events_become_pieces_and_counts(server):
    server.events = [
        'data: {"choices": [{"delta": {"role": "assistant"}, "finish_reason": null}]}',
        ": keep-alive",
        'data: {"choices": [{"delta": {"content": "Hel"}, "finish_reason": null}]}',
        'data: {"choices": [{"delta": {"content": "lo"}, "finish_reason": "length"}]}',
        'data: {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2, '
        '"prompt_tokens_details": {"cached_tokens": 3}}}',
        "data: [DONE]",
    ]
    pieces = await ask(server, ChatSettings(temperature=0.5, max_tokens=7))
    assert pieces == [AnswerPiece("Hel"), AnswerPiece("lo"), AnswerPiece("", "length", 5, 3, 2)]
    assert server.bodies[0] == {
        "model": "m1",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "max_tokens": 7,
    }


async def test_what_the_server_refuses_is_passed_on(server):
    source = await RemoteAnswers.connect(server.url, model=None, api_key=None)
    server.status = 400
    with pytest.raises(InvalidRequest, match="temperature is out of range"):
        async for _ in source.answer([], ChatSettings()):
            pass
    await source.close()


async def test_an_answer_that_breaks_off_is_an_error(server):
    server.events = ['data: {"choices": [{"delta": {"content": "Hel"}}]}']
    with pytest.raises(EngineUnavailable, match="before it was complete"):
        await ask(server)
    server.events = ['data: {"error": {"message": "logits are not finite"}}']
    with pytest.raises(GenerationFailed, match="logits are not finite"):
        await ask(server)
