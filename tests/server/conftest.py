"""A scripted engine, and a real server on a real socket in front of it."""

from __future__ import annotations

import asyncio
import codecs
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import openai
import pytest
import uvicorn

from argosy.engine.admission import CheckedParams
from argosy.engine.client import EngineInfo
from argosy.engine.core.plan import TokenLogprob
from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.outputs import OutputDelta
from argosy.errors import ContextLengthExceeded, EngineUnavailable, InvalidRequest, QueueFull
from argosy.server.app import create_app
from argosy.server.config import ServerConfig
from argosy.server.run import bind, uvicorn_config

BOS, EOS, WIDTH = 256, 257, 260


class ByteTokenizer:
    """Ids below 256 are bytes; 256 is BOS, 257 EOS; 258 and 259 are rows of the logits without a token."""

    vocab_size = 258
    bos_token_id = BOS
    eos_token_ids = frozenset({EOS})
    special_token_ids = frozenset({BOS, EOS})
    has_chat_template = True

    def __init__(self, *, adds_bos: bool = False) -> None:
        self.adds_bos = adds_bos

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [BOS] * (self.adds_bos and add_special_tokens) + list(text.encode())

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else {BOS: b"<s>", EOS: b"</s>"}.get(token_id, b"")

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        kept = (i for i in ids if not (skip_special_tokens and i in self.special_token_ids))
        return b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        if any(m["content"] == "REFUSE" for m in messages):
            raise InvalidRequest("the template refuses these messages")
        lines = [f"<{m['role']}{':' + m['name'] if 'name' in m else ''}>{m['content']}" for m in messages]
        text = "\n".join(lines) + ("" if continue_final_message else "\n")
        return text + ("<assistant>" if add_generation_prompt else "") + json.dumps(variables or {}).replace("{}", "")


@dataclass(frozen=True)
class Script:
    """What the engine does with every request, until replaced.

    `*_at` are token positions: there the sequence fails, hangs until aborted, is given up, or the engine dies.
    """

    text: str = "Hello world"
    delay_s: float = 0.0
    finish_reason: str = "stop"
    stop_reason: int | str | None = None
    cached: int = 0
    fail_at: int | None = None
    hang_at: int | None = None
    abort_at: int | None = None
    die_at: int | None = None
    raise_at: int | None = None
    logprob: float = -0.5
    top_gap: float = 1.0


class FakeStream:
    def __init__(self, engine: FakeEngine, submission: Submission, script: Script) -> None:
        self.engine, self.submission, self.script = engine, submission, script
        self.aborted = asyncio.Event()
        self.decoders = [codecs.getincrementaldecoder("utf-8")() for _ in range(submission.params.n)]
        self.loop = asyncio.get_running_loop()

    def abort(self) -> None:
        self.submission.aborted = True
        self.engine.running.discard(self.submission.request_id)
        self.loop.call_soon_threadsafe(self.aborted.set)

    async def __aiter__(self) -> AsyncIterator[OutputDelta]:
        s, params = self.script, self.submission.params
        tokens = list(s.text.encode())
        limit = len(tokens) if params.max_tokens is None else min(params.max_tokens, len(tokens))
        reason, stop = s.finish_reason, s.stop_reason
        if limit < len(tokens):
            reason, stop = "length", "max_tokens"
        for position in range(max(limit, 1)):
            if self.aborted.is_set():
                return
            await asyncio.sleep(s.delay_s)
            if self.engine.stopping:
                reason, limit = "abort", position + 1
            for index in range(params.n):
                yield await self._delta(index, position, tokens, limit, reason, stop)
            if reason == "abort":
                break
        self.engine.running.discard(self.submission.request_id)
        self.submission.finished = True

    async def _delta(self, index, position, tokens, limit, reason, stop) -> OutputDelta:
        s, sub = self.script, self.submission
        if position == s.hang_at:
            await self.aborted.wait()
            await asyncio.sleep(3600)
        if position == s.die_at:
            self.engine.alive = False
            raise EngineUnavailable("the engine died")
        if position == s.raise_at:
            raise ZeroDivisionError("secret detail")
        error = "logits are not finite" if position == s.fail_at else ""
        reason = "error" if error else "abort" if position == s.abort_at else reason
        last = position + 1 >= limit or reason in ("error", "abort")
        ids = tuple(tokens[position : position + 1]) if limit else ()
        k = sub.params.logprobs
        return OutputDelta(
            request_id=sub.request_id,
            index=index,
            text=self.decoders[index].decode(bytes(ids)),
            token_ids=ids,
            logprobs=None if k is None else tuple(self._logprob(t, k) for t in ids),
            prompt_logprobs=self._prompt_logprobs() if position == index == 0 else None,
            finish_reason=reason if last else None,
            stop_reason=stop if last and reason in ("stop", "length") else None,
            error=error,
            num_prompt_tokens=len(sub.prompt),
            num_cached_tokens=s.cached,
            num_output_tokens=position + bool(limit),
        )

    def _logprob(self, token: int, k: int) -> TokenLogprob:
        top = tuple(((token + j) % 256, self.script.logprob - j * self.script.top_gap) for j in range(k))
        return TokenLogprob(token, self.script.logprob, 1, top)

    def _prompt_logprobs(self) -> tuple[TokenLogprob | None, ...] | None:
        k = self.submission.params.prompt_logprobs
        if k is None:
            return None
        return (None, *(self._logprob(t, k) for t in self.submission.prompt[1:]))


@dataclass
class Submission:
    request_id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    priority: int
    cache_salt: str
    aborted: bool = False
    finished: bool = False


@dataclass
class FakeEngine:
    """Implements `EngineClient`. Tests read `submissions` and `running` and replace `script`."""

    tokenizer: ByteTokenizer = field(default_factory=ByteTokenizer)
    script: Script = field(default_factory=Script)
    submissions: list[Submission] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    alive: bool = True
    ready: bool = True
    stopping: bool = False
    queue_limit: int | None = None
    submit_error: Exception | None = None
    info: EngineInfo = field(
        default_factory=lambda: EngineInfo(
            model_name="fake-model",
            model_path="/secret/path",
            max_model_len=512,
            logits_width=WIDTH,
            block_size=16,
            num_blocks=64,
            max_num_seqs=8,
            max_num_batched_tokens=256,
            max_waiting=64,
            dtype="float32",
            kv_dtype="float32",
            device="cpu",
            deterministic=False,
            enable_prefix_caching=True,
            follows_priority=True,
            default_sampling={},
        )
    )

    @property
    def is_alive(self) -> bool:
        return self.alive

    @property
    def is_ready(self) -> bool:
        return self.alive and self.ready

    def check(self, params: SamplingParams) -> CheckedParams:
        for name, tokens in (("stop_token_ids", params.stop_token_ids), ("logit_bias", [t for t, _ in params.logit_bias])):
            if any(token >= WIDTH for token in tokens):
                raise InvalidRequest(f"{name} must be below {WIDTH}", param=name)
        return CheckedParams(params, frozenset(), ())

    def submit(self, request_id, prompt_token_ids, checked, *, priority=0, cache_salt="") -> FakeStream:
        params = checked.params
        if not self.is_ready:
            raise EngineUnavailable("the engine is not ready")
        if self.submit_error is not None:
            raise self.submit_error
        if self.queue_limit is not None and len(self.running) >= self.queue_limit:
            raise QueueFull("the queue is full", retry_after_s=3)
        for token in prompt_token_ids:
            if token >= WIDTH:
                raise InvalidRequest(f"prompt has the token id {token}, the model has {WIDTH}", param="prompt")
        if len(prompt_token_ids) >= self.info.max_model_len:
            raise ContextLengthExceeded(f"the prompt has {len(prompt_token_ids)} tokens", param="prompt")
        submission = Submission(request_id, prompt_token_ids, params, priority, cache_salt)
        self.submissions.append(submission)
        self.running.add(request_id)
        return FakeStream(self, submission, self.script)

    async def drain(self, timeout_s: float) -> bool:
        self.ready = False
        deadline = time.monotonic() + timeout_s
        while self.running and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        self.stopping = bool(self.running)
        return not self.running


class RunningServer:
    """A server on a loopback socket; `engine` is the scripted one behind it."""

    def __init__(self, engine: FakeEngine, config: ServerConfig, port: int, app: Any) -> None:
        self.engine, self.config, self.port, self.app = engine, config, port, app
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=20)

    @property
    def last(self) -> Submission:
        return self.engine.submissions[-1]

    def openai(self, key: str = "unused") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=20)

    def chat(self, text: str = "hi", **fields: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": text}], **fields}
        return self.http.post("/v1/chat/completions", json=body)

    def complete(self, prompt: Any = "hi", **fields: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json={"prompt": prompt, **fields})

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def send_post(self, path: str, body: dict[str, Any]) -> socket.socket:
        """Send a request over a socket of its own and leave the answer to the caller."""
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        connection = self.connect()
        connection.sendall(head.encode() + data)
        return connection


def wait_until(condition: Callable[[], Any], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.005)


@contextmanager
def serving(engine: FakeEngine, config: ServerConfig) -> Iterator[RunningServer]:
    """Run uvicorn on a thread until the block ends."""
    listener = bind(config)
    app = create_app(engine, config)
    server = uvicorn.Server(uvicorn_config(app, config))
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    thread.start()
    running = RunningServer(engine, config, listener.getsockname()[1], app)
    try:
        wait_until(lambda: server.started)
        yield running
    finally:
        running.http.close()
        server.should_exit = True
        server.force_exit = True
        thread.join(10)
    assert not thread.is_alive()


@pytest.fixture
def make_server() -> Iterator[Callable[..., RunningServer]]:
    """Start servers with settings of one's own: `make_server(engine=..., max_body_bytes=...)`."""
    with ExitStack() as stack:

        def start(engine: FakeEngine | None = None, **settings: Any) -> RunningServer:
            config = ServerConfig(**{"port": 0, "ping_interval_s": 0.0, **settings})
            return stack.enter_context(serving(engine or FakeEngine(), config))

        yield start


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RunningServer]:
    with serving(FakeEngine(), ServerConfig(port=0, ping_interval_s=0.0)) as server:
        yield server


@pytest.fixture
def server(shared_server: RunningServer) -> RunningServer:
    """A server with default settings, its engine back in its initial state."""
    engine = shared_server.engine
    engine.script, engine.alive, engine.ready = Script(), True, True
    engine.queue_limit = engine.submit_error = None
    engine.tokenizer = ByteTokenizer()
    engine.submissions.clear()
    engine.running.clear()
    return shared_server


@pytest.fixture
def script() -> type[Script]:
    return Script


@pytest.fixture
def fake_engine() -> type[FakeEngine]:
    return FakeEngine


@pytest.fixture
def byte_tokenizer() -> type[ByteTokenizer]:
    return ByteTokenizer


@pytest.fixture(name="wait_until")
def wait_until_fixture() -> Callable[..., None]:
    return wait_until


@pytest.fixture
def events() -> Callable[[str], list[Any]]:
    """Parse an event stream into its data; `[DONE]` stays a string."""

    def parse(text: str) -> list[Any]:
        blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
        assert all(block.startswith("data: ") for block in blocks)
        return [d if d == "[DONE]" else json.loads(d) for d in (block[6:] for block in blocks)]

    return parse


@pytest.fixture
def with_default_sampling() -> Callable[..., FakeEngine]:
    def build(**defaults: float) -> FakeEngine:
        engine = FakeEngine()
        engine.info = replace(engine.info, default_sampling=defaults)
        return engine

    return build
