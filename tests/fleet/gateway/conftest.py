"""A scripted backend over real sockets, a gateway in front of it, and what must hold after every test."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import orjson
import pytest

from argosy.errors import Unauthorized, UnknownModel
from argosy.fleet.gateway.backends import BackendPools, PoolLimits
from argosy.fleet.gateway.client_connection import ServerLimits
from argosy.fleet.gateway.config_models import BackendSettings
from argosy.fleet.gateway.config_operations import DrainSettings
from argosy.fleet.gateway.dispatch import PoolDispatchers
from argosy.fleet.gateway.drain import Drain
from argosy.fleet.gateway.estimator import QuantileEstimator
from argosy.fleet.gateway.exchange import AttemptResult, Exchange, Principal
from argosy.fleet.gateway.http_server import HttpServer
from argosy.fleet.gateway.local_ledger import LocalLedger
from argosy.fleet.gateway.pipeline import Pipeline, PipelineSettings, Stages
from argosy.fleet.gateway.prices import PriceTable
from argosy.fleet.gateway.stages import Route, Upstream
from argosy.fleet.gateway.upstream import UpstreamLimits, UpstreamPool
from argosy.fleet.policies.breaker import BreakerConfig
from argosy.fleet.policies.estimates import OutputQuantile
from argosy.fleet.policies.health_state import HealthPhase
from argosy.fleet.policies.limits import Limits, Scope
from argosy.fleet.policies.retries import RetryBudget, RetryPolicy
from argosy.fleet.policies.routing.named import make_policy
from argosy.fleet.policies.saturation import SaturationSettings

CANARY = "CANARY"
KEY = f"sk-{CANARY}-0123456789"
UPSTREAM_KEY = f"sk-{CANARY}-upstream"


@dataclass(frozen=True)
class Script:
    """How a backend answers one request.

    Attributes:
        head_delay_s: before the head; ttft_s: then before the first token; itl_s: between tokens.
        tokens: text of each chunk; `usage`: "exact", "wrong" or None for none, sent if the request asks for it.
        body: instead of what a model would answer.
        cuts: offsets of the body after which a write ends and a moment passes; one_byte: after every byte.
        close_after: bytes of the body after which the connection is closed.
        stall_after: bytes of the body after which nothing more comes.
        cut_at_once: the connection is closed before any byte of an answer.
        linger_s: after the last event, before the end of the answer.
        never_answer: takes the request and is silent.
        chunked: whether a body is sent in chunks; streams always are.
        ends_without_length: the end of the body is the end of the connection.
        close: whether the connection is closed after the answer.
    """

    status: int = 200
    head_delay_s: float = 0.0
    ttft_s: float = 0.0
    itl_s: float = 0.0
    tokens: tuple[str, ...] = ("Hel", "lo", "!")
    usage: str | None = "exact"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    cuts: tuple[int, ...] = ()
    one_byte: bool = False
    close_after: int | None = None
    stall_after: int | None = None
    cut_at_once: bool = False
    linger_s: float = 0.0
    never_answer: bool = False
    chunked: bool = False
    ends_without_length: bool = False
    close: bool = False
    newline: str = "\n"
    done: bool = True


@dataclass
class Received:
    """One request that a backend got; times on the monotonic clock, None until it happened."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    received_s: float
    connection: int
    first_byte_s: float | None = None
    aborted_s: float | None = None
    completed_s: float | None = None

    @property
    def document(self) -> Any:
        return orjson.loads(self.body)


class FakeBackend:
    """An HTTP/1.1 server that does as it is told. `script` holds for all requests, `scripts` for the next ones."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or Script()
        self.scripts: list[Script] = []
        self.log: list[Received] = []
        self.health_status = 200
        self.kv_usage = 0.0
        self.queue_len = 0
        self.metrics_text: str | None = None
        self.num_connections = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def reply(self, **how: Any) -> None:
        """The answer to all requests from here on."""
        self.script = replace(Script(), **how)

    def reply_once(self, **how: Any) -> None:
        """The answer to the next request that has none yet."""
        self.scripts.append(replace(Script(), **how))

    async def start(self, ssl: Any = None) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=ssl, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def until(self, condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
        await until(condition, timeout_s)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.num_connections += 1
        number = next(self._numbers)
        try:
            while await self._serve_one(reader, writer, number):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.num_connections -= 1
            self._tasks.discard(task)
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        if method == "GET":
            await self._serve_get(path, writer)
            return True
        received = Received(method, path, headers, body, time.monotonic(), number)
        self.log.append(received)
        script = self.scripts.pop(0) if self.scripts else self.script
        answering = asyncio.ensure_future(self._answer(script, received, writer))
        watching = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((answering, watching), return_when=asyncio.FIRST_COMPLETED)
            if answering.done() and answering.exception() is None:
                received.completed_s = time.monotonic()
            else:
                received.aborted_s = time.monotonic()
                return False
        finally:
            answering.cancel()
            watching.cancel()
            await asyncio.gather(answering, watching, return_exceptions=True)
        return not (script.close or script.ends_without_length or script.close_after is not None)

    async def _serve_get(self, path: str, writer: asyncio.StreamWriter) -> None:
        status, body, kind = 404, b"", "text/plain"
        if path.startswith("/health"):
            status, body = self.health_status, b"{}"
        elif path == "/metrics":
            text = self.metrics_text
            if text is None:
                text = f"vllm:num_requests_waiting {self.queue_len}\nvllm:kv_cache_usage_perc {self.kv_usage}\n"
            status, body = 200, text.encode()
        elif path == "/v1/models":
            status, body, kind = 200, b'{"object":"list","data":[]}', "application/json"
        writer.write(f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()

    async def _answer(self, script: Script, received: Received, writer: asyncio.StreamWriter) -> None:
        if script.never_answer:
            await asyncio.sleep(3600)
        await asyncio.sleep(script.head_delay_s)
        if script.cut_at_once:
            raise ConnectionResetError
        streams = script.body is None and script.status == 200 and bool(received.document.get("stream"))
        kind = "text/event-stream" if streams else "application/json"
        body = b"" if streams else script.body if script.body is not None else answer_body(script, received)
        chunked = streams or script.chunked
        head = [f"HTTP/1.1 {script.status} X", *(f"{name}: {value}" for name, value in script.headers)]
        if not any(name == "content-type" for name, _ in script.headers):
            head.append(f"content-type: {kind}")
        if script.ends_without_length:
            head.append("connection: close")
        else:
            head.append("transfer-encoding: chunked" if chunked else f"content-length: {len(body)}")
        writer.write("\r\n".join([*head, "", ""]).encode())
        await writer.drain()
        framed = chunked and not script.ends_without_length
        if streams:
            await self._stream(script, received, writer, framed)
        else:
            await asyncio.sleep(script.ttft_s)
            received.first_byte_s = time.monotonic()
            await self._write(script, body, 0, writer, framed)
        await asyncio.sleep(script.linger_s)
        if framed and script.close_after is None:
            writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _stream(self, script: Script, received: Received, writer: asyncio.StreamWriter, framed: bool) -> None:
        await asyncio.sleep(script.ttft_s)
        received.first_byte_s = time.monotonic()
        sent = 0
        events = list(stream_events(script, received))
        for number, event in enumerate(events):
            if number and script.itl_s and number < len(script.tokens):
                await asyncio.sleep(script.itl_s)
            await self._write(script, event, sent, writer, framed)
            sent += len(event)

    async def _write(self, script: Script, data: bytes, offset: int, writer: asyncio.StreamWriter, framed: bool) -> None:
        if script.close_after is not None and offset + len(data) >= script.close_after:
            data = data[: max(0, script.close_after - offset)]
        stalls = script.stall_after is not None and offset + len(data) >= script.stall_after
        if script.stall_after is not None and stalls:
            data = data[: max(0, script.stall_after - offset)]
        if script.one_byte:
            edges = list(range(len(data) + 1))
        else:
            edges = sorted({0, len(data), *(cut - offset for cut in script.cuts if 0 < cut - offset < len(data))})
        for begin, end in itertools.pairwise(edges):
            piece = data[begin:end]
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if framed else piece)
            await writer.drain()
            if len(edges) > 2:
                await asyncio.sleep(0.001 if script.cuts else 0)
        if script.close_after is not None and offset + len(data) >= script.close_after:
            raise ConnectionResetError
        if stalls:
            await asyncio.sleep(3600)


def usage_of(script: Script, received: Received) -> dict[str, Any]:
    output = len(script.tokens) * (10 if script.usage == "wrong" else 1)
    return {"prompt_tokens": 7, "completion_tokens": output, "total_tokens": 7 + output}


def answer_body(script: Script, received: Received) -> bytes:
    if script.status != 200:
        return orjson.dumps({"error": {"message": "scripted", "type": "api_error", "param": None, "code": None}})
    document = received.document
    answer: dict[str, Any] = {"id": "x-1", "created": 1, "model": document.get("model")}
    if received.path.endswith("/embeddings"):
        answer |= {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.10, 1e-7, -2.5]}]}
    elif received.path.endswith("/chat/completions"):
        message = {"role": "assistant", "content": "".join(script.tokens)}
        answer["choices"] = [{"index": 0, "message": message, "finish_reason": "stop"}]
    else:
        answer["choices"] = [{"index": 0, "text": "".join(script.tokens), "finish_reason": "stop"}]
    if script.usage is not None:
        answer["usage"] = usage_of(script, received)
    return orjson.dumps(answer)


def stream_events(script: Script, received: Received) -> Iterator[bytes]:
    document, newline = received.document, script.newline.encode()
    base = {"id": "x-1", "object": "chat.completion.chunk", "created": 1, "model": document.get("model")}

    def event(data: bytes) -> bytes:
        return b"data: " + data + newline + newline

    for number, token in enumerate(script.tokens):
        last = number == len(script.tokens) - 1
        choice = {"index": 0, "delta": {"content": token}, "finish_reason": "stop" if last else None}
        yield event(orjson.dumps({**base, "choices": [choice]}))
    options = document.get("stream_options") or {}
    if script.usage is not None and options.get("include_usage"):
        yield event(orjson.dumps({**base, "choices": [], "usage": usage_of(script, received)}))
    if script.done:
        yield event(b"[DONE]")


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Wait until a condition holds; fails the test if it never does."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "the condition was not met in time"
        await asyncio.sleep(0.005)


class BlackHole:
    """An address where connections hang: its queue of connections is full and nobody takes one out."""

    def __init__(self) -> None:
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(0)
        self.port = self._listener.getsockname()[1]
        self._fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", self.port))
            self._fillers.append(filler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        for one in (*self._fillers, self._listener):
            one.close()


class StaticKeys:
    """An authenticator that knows a few principals."""

    def __init__(self, principals: Mapping[str, Principal]) -> None:
        self.principals = dict(principals)

    async def authenticate(self, key: str | None, exchange: Exchange) -> Principal:
        principal = self.principals.get(key or "")
        if principal is None:
            raise Unauthorized("the API key is not known")
        return principal


@dataclass
class Chooser:
    """Each model is its own pool; fallbacks as given."""

    models: tuple[str, ...]
    fallbacks: dict[str, str] = field(default_factory=dict)
    edits: dict[str, bytes] = field(default_factory=dict)

    def choose(self, exchange: Exchange) -> Route:
        if exchange.model not in self.models:
            raise UnknownModel(f"there is no model {exchange.model[:80]!r} here", param="model")
        return Route(exchange.model, self.edits)

    def fallback(self, exchange: Exchange, failed: Route, result: AttemptResult, *, context_too_long: bool) -> Route | None:
        del exchange
        if result is AttemptResult.CLIENT_ERROR and not context_too_long:
            return None
        pool = self.fallbacks.get(failed.pool)
        return None if pool is None else Route(pool)

    def visible_models(self, principal: Principal) -> tuple[str, ...]:
        return tuple(model for model in self.models if principal.models is None or model in principal.models)


class Records:
    """Keeps what it is told: a usage sink and an observer."""

    def __init__(self) -> None:
        self.finished_exchanges: list[Exchange] = []
        self.num_started = 0

    def record(self, exchange: Exchange) -> None:
        self.finished_exchanges.append(exchange)

    def started(self, exchange: Exchange) -> None:
        self.num_started += 1

    def first_byte(self, exchange: Exchange) -> None:
        assert exchange.first_byte_s > 0.0

    def finished(self, exchange: Exchange) -> None:
        assert exchange.finished_s >= exchange.received_s


@dataclass
class Gateway:
    """A gateway in front of backends, with every stage real but authentication and choice of models."""

    server: HttpServer
    pipeline: Pipeline
    pools: BackendPools
    ledger: LocalLedger
    dispatcher: PoolDispatchers
    keys: StaticKeys
    chooser: Chooser
    records: Records
    upstreams: list[UpstreamPool]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    @property
    def exchanges(self) -> list[Exchange]:
        return self.records.finished_exchanges

    def set_limits(self, **limits: Any) -> None:
        """Limits of the one key there is."""
        principal = self.keys.principals[KEY]
        self.keys.principals[KEY] = replace(principal, scopes=((Scope("key", "k1"), Limits(**limits)),))

    def check_is_empty(self) -> None:
        """Nothing is in flight, so nothing may be held."""
        assert self.pipeline.num_in_flight == 0
        self.ledger.ledger.check_invariants()
        assert self.ledger.ledger.num_leases == 0
        self.dispatcher.check_invariants()
        self.pools.check_invariants()
        for pool in self.chooser.models:
            assert self.dispatcher.of(pool).queue.num_in_flight == 0
            assert self.dispatcher.of(pool).queue.num_waiting == 0
            for replica in self.pools.replicas(pool):
                assert (replica.booked.requests, replica.booked.tokens, replica.booked.prefill_tokens) == (0, 0, 0)
        for upstream in self.upstreams:
            assert upstream.num_busy == 0


MakeGateway = Callable[..., Awaitable[Gateway]]
MakeBackend = Callable[..., Awaitable[FakeBackend]]


@pytest.fixture
async def make_backend() -> AsyncIterator[MakeBackend]:
    """Starts scripted backends: `await make_backend(ttft_s=0.1)`."""
    backends: list[FakeBackend] = []

    async def make(**how: Any) -> FakeBackend:
        backend = FakeBackend(replace(Script(), **how))
        await backend.start()
        backends.append(backend)
        return backend

    yield make
    for backend in backends:
        await backend.stop()


@pytest.fixture
def black_hole() -> Iterator[BlackHole]:
    """An address where connections hang."""
    hole = BlackHole()
    yield hole
    hole.close()


@pytest.fixture
async def make_gateway(caplog: pytest.LogCaptureFixture) -> AsyncIterator[MakeGateway]:
    """Starts gateways: `await make_gateway(url, …)`, or by model `await make_gateway(m=[url, …])`.

    After the test nothing may be held, and no secret may stand in the log.
    """
    caplog.set_level(logging.DEBUG)
    gateways: list[Gateway] = []

    async def make(
        *urls: str,
        limits: ServerLimits | None = None,
        upstream: UpstreamLimits | None = None,
        settings: PipelineSettings | None = None,
        retries: RetryPolicy | None = None,
        budget: RetryBudget | None = None,
        max_in_flight: int | None = None,
        policy: str = "round_robin",
        models: dict[str, list[str]] | None = None,
        fallbacks: dict[str, str] | None = None,
        backend_model: str = "",
        takes_cache_salt: bool = False,
        ca_file: str | None = None,
        drain: DrainSettings | None = None,
        breaker: BreakerConfig | None = None,
    ) -> Gateway:
        by_model = models or {"m": list(urls)}
        upstreams: list[UpstreamPool] = []

        def connect(given: BackendSettings) -> Upstream:
            pool = UpstreamPool(given.url, upstream, ca_file=ca_file)
            upstreams.append(pool)
            return Upstream(
                given.name,
                pool,
                model=backend_model,
                authorization=f"Bearer {UPSTREAM_KEY}".encode(),
                path_prefix=pool.path_prefix,
                takes_cache_salt=takes_cache_salt,
            )

        # A breaker that never opens unless the test is about it.
        config = breaker or BreakerConfig(min_requests=1000, min_latency_samples=1000)
        pools = BackendPools(connect, Random(1), PoolLimits(breaker=config))
        for name, addresses in by_model.items():
            pools.set_pool(name, make_policy(policy))
            for number, url in enumerate(addresses):
                pools.add(name, BackendSettings(url=url, name=f"{name}-{number}"))
                pools.set_phase(f"{name}-{number}", HealthPhase.READY)
        principal = Principal("k1", "org1", cache_salt="salt-of-org1")
        keys = StaticKeys({KEY: principal})
        chooser = Chooser(tuple(by_model), fallbacks or {})
        ledger = LocalLedger()
        dispatcher = PoolDispatchers(pools, time.monotonic, saturation=SaturationSettings(max_in_flight))
        records = Records()
        stages = Stages(
            keys, chooser, QuantileEstimator(OutputQuantile(), PriceTable()), ledger, dispatcher, pools, records, (records,)
        )
        chosen = settings or PipelineSettings(retries=retries or RetryPolicy(max_retries=0))
        pipeline = Pipeline(stages, chosen, rng=Random(2), budget=budget, drain=Drain(drain or DrainSettings()))
        server = HttpServer(pipeline.handle, limits or ServerLimits())
        await server.start("127.0.0.1", 0)
        gateway = Gateway(server, pipeline, pools, ledger, dispatcher, keys, chooser, records, upstreams)
        gateways.append(gateway)
        return gateway

    yield make
    for gateway in gateways:
        await until(lambda gateway=gateway: gateway.pipeline.num_in_flight == 0)
        await gateway.pipeline.settle_down()
        gateway.check_is_empty()
        await gateway.server.close()
        for pool in gateway.upstreams:
            await pool.close()
        for exchange in gateway.exchanges:
            assert CANARY not in exchange.detail
            assert CANARY not in str(exchange.tags)
    assert CANARY not in caplog.text


@dataclass
class Answer:
    """What came back over a raw connection."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return orjson.loads(self.body)

    @property
    def events(self) -> list[bytes]:
        """Data of the events of a stream."""
        return [event[6:] for event in self.body.split(b"\n\n") if event.startswith(b"data: ")]


class RawClient:
    """A client that controls every byte it sends and sees every byte it gets."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def send(
        self,
        body: bytes | dict[str, Any],
        *,
        path: str = "/v1/chat/completions",
        headers: Mapping[str, str] | None = None,
        method: str = "POST",
        key: str | None = KEY,
    ) -> None:
        text = body if isinstance(body, bytes) else orjson.dumps(body)
        lines = [f"{method} {path} HTTP/1.1", "host: gateway", f"content-length: {len(text)}"]
        lines.append("content-type: application/json")
        if key is not None:
            lines.append(f"authorization: Bearer {key}")
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self.write("\r\n".join([*lines, "", ""]).encode("latin-1") + text)

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
        return int(lines[0].split(" ")[1]), headers

    async def chunk(self) -> bytes:
        """One chunk of a chunked body; b"" for the last."""
        size = int((await self.reader.readline()).split(b";")[0], 16)
        data = await self.reader.readexactly(size)
        await self.reader.readexactly(2)
        return data

    async def until_cut(self) -> bytes:
        """What comes of a chunked body until the connection is closed within it."""
        received = b""
        while not self.reader.at_eof():
            try:
                chunk = await self.chunk()
            except (asyncio.IncompleteReadError, ConnectionError, ValueError):
                return received
            assert chunk, "the body came to its proper end"
            received += chunk
        return received

    async def answer_body(self) -> bytes:
        """What is left of a chunked body."""
        chunks = []
        while chunk := await self.chunk():
            chunks.append(chunk)
        return b"".join(chunks)

    async def answer(self) -> Answer:
        status, headers = await self.head()
        if headers.get("transfer-encoding") == "chunked":
            body = await self.answer_body()
        elif "content-length" in headers:
            body = await self.reader.readexactly(int(headers["content-length"]))
        else:
            body = await self.reader.read()
        return Answer(status, headers, body)

    async def ask(self, body: bytes | dict[str, Any], **how: Any) -> Answer:
        self.send(body, **how)
        return await self.answer()

    def close(self) -> None:
        """Leave at once, as a client that is killed does."""
        self.writer.transport.abort()


Connect = Callable[[str], Awaitable[RawClient]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Opens raw connections: `await connect(gateway.url)`."""
    clients: list[RawClient] = []

    async def open_connection(url: str) -> RawClient:
        port = int(url.rsplit(":", 1)[1])
        client = RawClient(*await asyncio.open_connection("127.0.0.1", port, limit=2**20))
        clients.append(client)
        return client

    yield open_connection
    for client in clients:
        client.close()


@pytest.fixture
def chat() -> Callable[..., dict[str, Any]]:
    """A chat request: `chat("hi", stream=True)`."""

    def make(text: str = "hi", **fields: Any) -> dict[str, Any]:
        return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}

    return make


@pytest.fixture
def wait_until() -> Callable[..., Awaitable[None]]:
    """Waits for a condition."""
    return until
