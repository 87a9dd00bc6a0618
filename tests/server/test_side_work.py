"""What is large is worked on beside the event loop: others are answered meanwhile, and it is bounded."""

import json
import threading

import pytest

from argosy.errors import ContextLengthExceeded
from argosy.server.prompts import MAX_CHARACTERS_PER_TOKEN, MAX_TEXT_CHARACTERS, check_text_length
from argosy.server.side_work import INLINE_SIZE, LARGE_SIZE

TIMEOUT_S = 20
MEDIUM_TEXT, LARGE_TEXT = "x" * (INLINE_SIZE + 1), "x" * (LARGE_SIZE + 1)


@pytest.fixture
def gated(byte_tokenizer):
    """A tokenizer whose `encode` of large texts waits until `gate` is set; it counts who is in it."""

    class Gated(byte_tokenizer):
        def __init__(self):
            super().__init__()
            self.gate, self.lock = threading.Event(), threading.Lock()
            self.inside = self.most_inside = self.calls = 0

        def encode(self, text, *, add_special_tokens=True):
            if len(text) <= LARGE_SIZE:
                return super().encode(text, add_special_tokens=add_special_tokens)
            with self.lock:
                self.calls += 1
                self.inside += 1
                self.most_inside = max(self.most_inside, self.inside)
            assert self.gate.wait(TIMEOUT_S)
            with self.lock:
                self.inside -= 1
            return [65]

    return Gated()


@pytest.fixture
def gated_server(make_server, fake_engine, gated):
    yield make_server(fake_engine(tokenizer=gated))
    gated.gate.set()


PATHS = {
    "/v1/completions": lambda text: {"prompt": text},
    "/v1/chat/completions": lambda text: {"messages": [{"role": "user", "content": text}]},
    "/tokenize": lambda text: {"prompt": text},
}


@pytest.mark.parametrize("path", PATHS)
def test_others_are_answered_while_a_large_text_is_encoded(gated_server, gated, wait_until, path):
    with gated_server.send_post(path, PATHS[path](LARGE_TEXT)) as connection:
        wait_until(lambda: gated.inside == 1)
        assert gated_server.http.get("/health/live").status_code == 200
        assert gated_server.complete("hi", stream=True).text.endswith("data: [DONE]\n\n")
        assert gated_server.http.post("/tokenize", json={"prompt": MEDIUM_TEXT}).json()["count"] == len(MEDIUM_TEXT)
        gated.gate.set()
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_large_texts_are_encoded_one_at_a_time(gated_server, gated, wait_until):
    connections = [gated_server.send_post("/tokenize", {"prompt": LARGE_TEXT}) for _ in range(4)]
    wait_until(lambda: gated.inside == 1)
    assert gated_server.http.post("/tokenize", json={"prompt": MEDIUM_TEXT}).status_code == 200
    gated.gate.set()
    for connection in connections:
        with connection:
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    assert (gated.calls, gated.most_inside) == (4, 1)


def test_a_client_that_leaves_the_queue_costs_nothing(gated_server, gated, wait_until):
    first = gated_server.send_post("/tokenize", {"prompt": LARGE_TEXT})
    wait_until(lambda: gated.inside == 1)
    for path, body in PATHS.items():
        gated_server.send_post(path, body(LARGE_TEXT)).close()
    wait_until(lambda: 'status="499"' in gated_server.http.get("/metrics").text)
    wait_until(lambda: gated_server.app.state.server.in_flight == 1)
    gated.gate.set()
    with first:
        assert first.recv(65536).startswith(b"HTTP/1.1 200")
    assert gated_server.http.post("/tokenize", json={"prompt": LARGE_TEXT}).status_code == 200
    assert gated.calls == 2
    assert not gated_server.engine.submissions


def test_what_work_beside_the_loop_refuses_is_refused_as_ever(server):
    for size in (10, INLINE_SIZE + 1, LARGE_SIZE + 1):
        answer = server.http.post("/v1/completions", json={"prompt": "x" * size, "temperature": 1000})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "temperature"
        answer = server.http.post("/detokenize", json={"tokens": [65] * size + [10**6]})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == f"tokens[{size}]"


def test_parameters_are_checked_once_for_all_prompts(server, monkeypatch):
    checked = []
    check = type(server.engine).check
    monkeypatch.setattr(type(server.engine), "check", lambda engine, params: checked.append(params) or check(engine, params))
    assert server.complete(["a", "b", "c"], bad_words=["x", "y"]).status_code == 200
    assert len(checked) == 1
    assert len(server.engine.submissions) == 3


def test_long_logprobs_are_the_same_written_beside_the_loop(server, script, events):
    """A stream writes each token's, an answer at once writes all, here more than the event loop would."""
    server.engine.script = script("x" * 400)
    fields = {"echo": True, "logprobs": 20, "n": 2, "max_tokens": 400}
    answer = server.complete("some prompt", **fields).json()
    assert len(json.dumps(answer)) > INLINE_SIZE
    streamed = [
        {name: [] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")} for _ in answer["choices"]
    ]
    for event in events(server.complete("some prompt", stream=True, **fields).text)[:-1]:
        for choice in event["choices"]:
            for name, values in (choice["logprobs"] or {}).items():
                streamed[choice["index"]][name] += values
    assert [choice["logprobs"] for choice in answer["choices"]] == streamed


@pytest.mark.parametrize("path", PATHS)
def test_a_text_not_worth_encoding_is_refused(server, monkeypatch, path):
    encoded = []
    monkeypatch.setattr(
        server.engine.tokenizer, "encode", lambda text, **_: encoded.append(len(text)) or [65], raising=False
    )
    answer = server.http.post(path, json=PATHS[path]("x" * (MAX_TEXT_CHARACTERS + 1)))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["param"] in ("prompt", "messages")
    assert not encoded
    assert server.http.post(path, json=PATHS[path]("x" * (MAX_TEXT_CHARACTERS - 100))).status_code == 200
    assert encoded


def test_a_long_context_takes_longer_texts():
    limit = MAX_TEXT_CHARACTERS * 4
    check_text_length(limit, "prompt", limit // MAX_CHARACTERS_PER_TOKEN)
    with pytest.raises(ContextLengthExceeded, match="prompt"):
        check_text_length(limit + 1, "prompt", limit // MAX_CHARACTERS_PER_TOKEN)
