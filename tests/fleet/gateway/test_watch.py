import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from random import Random

import orjson
import pytest

from argosy.errors import ConfigError
from argosy.fleet.gateway.backend_pool import PoolState
from argosy.fleet.gateway.backends import BackendPools
from argosy.fleet.gateway.config_models import BackendSettings
from argosy.fleet.gateway.config_operations import HealthSettings, ProbeSettings
from argosy.fleet.gateway.deep_probe import judge_completion
from argosy.fleet.gateway.exchange import AttemptResult, Endpoint, Exchange
from argosy.fleet.gateway.probe_client import ProbeClient, ProbeFailed
from argosy.fleet.gateway.stages import Route, Upstream
from argosy.fleet.gateway.upstream import UpstreamPool
from argosy.fleet.gateway.watch import BackendWatch
from argosy.fleet.policies.health_state import HealthPhase, ProbeResult
from argosy.fleet.policies.routing.named import make_policy

# Long enough to be answered on a busy machine.
INTERVAL_S = 0.2
FAST = ProbeSettings(INTERVAL_S, INTERVAL_S, 2)
SETTINGS = HealthSettings(live=FAST, ready=FAST, deep=None, metrics_interval_s=0.03)
DEEP = HealthSettings(live=FAST, ready=FAST, deep=ProbeSettings(INTERVAL_S, INTERVAL_S, 1), metrics_interval_s=1.0)


class Engine:
    """An engine's control endpoints; `answers` by path, as (status, body), or None for silence."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, bytes] | None] = {}
        self.asked: list[tuple[str, bytes]] = []
        self.delay_s: dict[str, float] = {}
        self.authorizations: set[str] = set()
        self.num_connections = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def count(self, path: str) -> int:
        return sum(asked == path for asked, _ in self.asked)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in list(self._open):
                writer.transport.abort()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        self.num_connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                path = head.split(" ")[1]
                length = next((int(line[15:]) for line in head.split("\r\n") if line.startswith("content-length:")), 0)
                self.authorizations |= {line[15:] for line in head.split("\r\n") if line.startswith("authorization: ")}
                self.asked.append((path, await reader.readexactly(length)))
                await asyncio.sleep(self.delay_s.get(path, 0.0))
                answer = self.answers.get(path, (404, b""))
                if answer is None:
                    await asyncio.sleep(60.0)
                    return
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (answer[0], len(answer[1]), answer[1]))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()


class Bench:
    """Pools, watched."""

    def __init__(self, settings: HealthSettings) -> None:
        self.watch = BackendWatch(settings, rng=Random(3), clock=time.monotonic)
        self.changes: list[HealthPhase] = []
        self.pools = BackendPools(
            lambda s: Upstream(s.name, UpstreamPool(s.url), authorization=b"Bearer upstream-key"),
            Random(1),
            watcher=self.watch,
        )
        self.pools.set_pool("m", make_policy("least_load"))

    def add(self, engine: Engine, kind: str, name: str = "b") -> None:
        self.pools.add("m", BackendSettings(engine.url, name=name, kind=kind))

    def phase(self, name: str = "b") -> HealthPhase:
        return next(status.phase for status in self.pools.statuses(0.0) if status.backend_id == name)


@pytest.fixture
async def start_bench() -> AsyncIterator[Callable]:
    benches: list[Bench] = []

    async def start(settings: HealthSettings = SETTINGS) -> Bench:
        bench = Bench(settings)
        await bench.watch.start(bench.pools)
        benches.append(bench)
        return bench

    yield start
    for bench in benches:
        await bench.watch.stop()
        await bench.watch.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "argosy-watch"]


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine()
    engine.answers["/health"] = (200, b"")
    await engine.start()
    yield engine
    await engine.stop()


async def test_a_backend_comes_goes_and_comes_back(start_bench, engine, wait_until):
    bench = await start_bench()
    bench.add(engine, "vllm")
    assert bench.pools.state("m", 0.0) is PoolState.LOADING
    assert bench.watch.health.answer("/ready")[0] == 503
    assert await bench.watch.first_round(5.0)
    assert bench.watch.health.answer("/ready")[0] == 200
    assert bench.phase() is HealthPhase.READY
    assert bench.watch.health.healthy_count == 1
    engine.answers["/health"] = (503, b"")
    await wait_until(lambda: bench.phase() is HealthPhase.UNREADY)
    await wait_until(lambda: bench.watch.health.unhealthy_count == 1)
    engine.answers["/health"] = (200, b"")
    await wait_until(lambda: bench.phase() is HealthPhase.READY)
    await engine.stop()
    await wait_until(lambda: bench.phase() is HealthPhase.DOWN)
    await engine.start()
    await wait_until(lambda: bench.phase() is HealthPhase.READY)
    assert engine.authorizations == {"bearer upstream-key"}
    bench.pools.remove("b")
    await asyncio.sleep(INTERVAL_S)
    asked = len(engine.asked)
    await asyncio.sleep(2 * INTERVAL_S)
    assert len(engine.asked) == asked, "a backend that has left is not probed"


async def test_an_engine_that_is_dead_behind_its_server_is_found_by_the_deep_probe(start_bench, engine, wait_until):
    bench = await start_bench(DEEP)
    good = {
        "choices": [
            {"text": "n", "logprobs": {"top_logprobs": [{"a": -0.5, "b": -1.5, "c": -2.0}], "token_logprobs": [-0.5]}}
        ]
    }
    engine.answers["/v1/completions"] = (200, orjson.dumps(good))
    bench.add(engine, "vllm")
    await bench.watch.first_round(5.0)
    await wait_until(lambda: engine.count("/v1/completions") >= 2)
    assert bench.phase() is HealthPhase.READY
    request = orjson.loads(next(body for path, body in engine.asked if path == "/v1/completions"))
    assert (request["model"], request["max_tokens"]) == ("m", 1)
    engine.answers["/v1/completions"] = None
    await wait_until(lambda: bench.phase() is HealthPhase.UNREADY)
    engine.answers["/v1/completions"] = (200, orjson.dumps(good))
    await wait_until(lambda: bench.phase() is HealthPhase.READY)
    engine.answers["/v1/completions"] = (200, b'{"choices":[{"text":"!","logprobs":{"token_logprobs":[null]}}]}')
    await wait_until(lambda: bench.phase() is HealthPhase.UNREADY)
    engine.answers["/v1/completions"] = (429, b"")
    asked = engine.count("/v1/completions")
    await wait_until(lambda: engine.count("/v1/completions") >= asked + 2)
    assert bench.phase() is HealthPhase.UNREADY, "being busy is no proof of health"


async def test_our_own_engine_judges_itself_and_a_foreign_api_is_asked_nothing(start_bench, engine, wait_until):
    bench = await start_bench(DEEP)
    engine.answers |= {"/health/live": (200, b""), "/health/ready": (200, b""), "/health/inference": (503, b"")}
    bench.add(engine, "argosy")
    await wait_until(lambda: bench.phase() is HealthPhase.UNREADY)
    engine.answers["/health/inference"] = (200, b"")
    await wait_until(lambda: bench.phase() is HealthPhase.READY)
    assert engine.count("/v1/completions") == 0
    bench.pools.remove("b")
    await asyncio.sleep(INTERVAL_S)
    engine.asked.clear()
    bench.add(engine, "openai", "far")
    await bench.watch.first_round(5.0)
    assert bench.phase("far") is HealthPhase.READY
    await asyncio.sleep(2 * INTERVAL_S)
    assert engine.asked == []


async def test_a_backend_that_is_not_probed_counts_apart_until_its_breaker_opens(start_bench, engine, wait_until):
    bench = await start_bench()
    bench.add(engine, "openai", "far")
    bench.add(engine, "vllm", "near")
    await bench.watch.first_round(5.0)
    health = bench.watch.health
    counts = (health.healthy_count, health.unprobed_count, health.unhealthy_count)
    assert (counts, health.breakers) == ((1, 1, 0), {})
    exchange = Exchange(Endpoint("/v1/score", "passthrough"), "POST", "/", {}, b"", "r", "e", 0.0)
    for _ in range(5):
        now_s = time.monotonic()
        placement = bench.pools.pick(exchange, Route("m"), frozenset({"near"}), now_s)
        placement.finish(AttemptResult.CONNECT_ERROR, now_s, latency_s=0.0, retry_after_s=None)
    await wait_until(lambda: health.breakers == {"far": "open"})
    assert (health.healthy_count, health.unprobed_count, health.unhealthy_count) == (1, 0, 1)


async def test_an_endpoint_that_is_not_offered_takes_no_backend_out(start_bench, engine, wait_until):
    bench = await start_bench(DEEP)
    engine.answers["/v1/completions"] = (404, b"")
    bench.add(engine, "vllm")
    await wait_until(lambda: engine.count("/v1/completions") >= 3)
    assert bench.phase() is HealthPhase.READY


@pytest.mark.parametrize(("kind", "after"), [("llama_cpp", HealthPhase.LOADING), ("sglang", HealthPhase.UNREADY)])
async def test_loading_is_told_from_failing(start_bench, engine, wait_until, kind, after):
    engine.answers["/health"] = (503, b"")
    bench = await start_bench()
    bench.add(engine, kind)
    await wait_until(lambda: bench.phase() is HealthPhase.LOADING)
    assert bench.pools.state("m", 0.0) is PoolState.LOADING
    engine.answers["/health"] = (200, b"")
    await wait_until(lambda: bench.phase() is HealthPhase.READY)
    engine.answers["/health"] = (503, b"")
    await wait_until(lambda: bench.phase() is after)


async def test_one_load_serves_all_who_wait_and_is_nobodys(start_bench, engine, wait_until):
    engine.answers |= {
        "/api/version": (200, b"{}"),
        "/api/tags": (200, b"{}"),
        "/api/ps": (200, b'{"models":[{"name":"other:7b"}]}'),
        "/api/generate": (200, b"{}"),
    }
    engine.delay_s["/api/generate"] = 3 * INTERVAL_S
    bench = await start_bench()
    bench.add(engine, "ollama")
    await wait_until(lambda: bench.phase() is HealthPhase.ASLEEP)
    await asyncio.sleep(2 * INTERVAL_S)
    assert engine.count("/api/generate") == 0, "nobody has asked for it"
    for _ in range(20):
        assert bench.pools.will_serve("m", time.monotonic())
        await asyncio.sleep(0.005)
    assert bench.phase() is HealthPhase.LOADING
    await wait_until(lambda: engine.count("/api/generate") == 1)
    engine.answers["/api/ps"] = (200, b'{"models":[{"name":"m:latest"}]}')
    await wait_until(lambda: bench.phase() is HealthPhase.READY)
    assert engine.count("/api/generate") == 1
    assert orjson.loads(next(body for path, body in engine.asked if path == "/api/generate"))["model"] == "m"
    engine.answers["/api/ps"] = (200, b'{"models":[]}')
    engine.answers["/api/generate"] = (404, b"")
    await wait_until(lambda: bench.phase() is HealthPhase.ASLEEP)
    bench.pools.will_serve("m", time.monotonic())
    await wait_until(lambda: engine.count("/api/generate") == 2)
    await wait_until(lambda: bench.phase() in (HealthPhase.UNREADY, HealthPhase.ASLEEP))


async def test_a_refused_connection_brings_the_next_probe_forward(start_bench, engine, wait_until):
    slow = ProbeSettings(60.0, 0.5, 1)
    bench = await start_bench(HealthSettings(live=slow, ready=slow, deep=None))
    bench.add(engine, "vllm")
    await bench.watch.first_round(5.0)
    await engine.stop()
    bench.watch.suspect("b")
    bench.watch.suspect("nobody")
    # The probes of a backend that serves are spread over a tenth of their interval.
    await wait_until(lambda: bench.phase() is HealthPhase.DOWN, 12.0)


async def test_load_is_read_and_forgotten_when_it_is_old(start_bench, engine, wait_until):
    bench = await start_bench()
    page = b"vllm:num_requests_waiting 3\nvllm:num_requests_running 4\nvllm:kv_cache_usage_perc 0.5\n"
    engine.answers["/metrics"] = (200, page)
    bench.add(engine, "vllm")
    replica = bench.pools.replicas("m")[0]
    await wait_until(lambda: replica.num_requests == 7)
    engine.answers["/metrics"] = (200, page.replace(b"4", b"1"))
    await wait_until(lambda: replica.num_requests == 4)
    bench.watch._scraper.stale_after_s = 0.1
    engine.answers["/metrics"] = None
    await wait_until(lambda: replica.report is None)
    assert bench.phase() is HealthPhase.READY, "metrics say nothing about health"


async def test_a_page_that_is_no_engines_is_no_load(start_bench, engine, wait_until):
    bench = await start_bench()
    engine.answers["/metrics"] = (200, b"<html>nothing</html>")
    bench.add(engine, "vllm")
    await wait_until(lambda: engine.count("/metrics") == 1)
    await bench.watch.first_round(5.0)
    assert bench.pools.replicas("m")[0].report is None
    await asyncio.sleep(0.2)
    assert engine.count("/metrics") == 1, "who offers no metrics is not asked every time"


async def test_metrics_are_read_as_soon_as_the_backend_is_there(start_bench, engine, wait_until):
    engine.answers["/metrics"] = (200, b"vllm:num_requests_running 4\n")
    await engine.stop()
    bench = await start_bench()
    bench.add(engine, "vllm")
    await wait_until(lambda: bench.phase() is HealthPhase.DOWN)
    await engine.start()
    await wait_until(lambda: bench.pools.replicas("m")[0].num_requests == 4)


async def test_a_hung_backend_delays_no_probe_of_another(start_bench, engine, wait_until):
    hung = Engine()
    hung.answers |= {"/health": None, "/metrics": None}
    await hung.start()
    bench = await start_bench()
    bench.add(hung, "vllm", "hung")
    bench.add(engine, "vllm", "good")
    await wait_until(lambda: bench.phase("hung") is HealthPhase.DOWN)
    await wait_until(lambda: bench.phase("good") is HealthPhase.READY)
    assert len(hung._open) <= 6
    await hung.stop()


async def test_health_is_answered_while_the_data_path_stands_still(start_bench):
    bench = await start_bench()
    bench.watch.health.loop_stall_limit_s = 0.2
    port = await bench.watch.serve_health("127.0.0.1", 0)
    with pytest.raises(ConfigError, match="health_port"):
        await bench.watch.serve_health("127.0.0.1", port)
    found: list[bytes] = []

    def probe() -> None:
        import http.client

        for _ in range(2):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5.0)
            connection.request("GET", "/livez")
            found.append(connection.getresponse().read())
            connection.close()
            time.sleep(0.3)

    prober = threading.Thread(target=probe)
    prober.start()
    prober.join()  # on the event loop, which is thereby stopped
    assert found[0] == b'{"status":"ok"}'
    assert b"silent" in found[1]
    await asyncio.sleep(0.01)


async def test_answers_are_bounded_in_time_and_size(engine):
    client = ProbeClient(engine.url)
    engine.answers |= {"/big": (200, b"x" * 2000), "/silent": None}
    assert (await client.fetch("/big", timeout_s=5.0)).body == b"x" * 2000
    with pytest.raises(ProbeFailed, match="above 1000 bytes"):
        await client.fetch("/big", timeout_s=5.0, max_bytes=1000)
    with pytest.raises(ProbeFailed, match="no answer within"):
        await client.fetch("/silent", timeout_s=0.05)
    silent = [asyncio.ensure_future(client.fetch("/silent", timeout_s=0.5)) for _ in range(6)]
    await asyncio.sleep(0.1)
    with pytest.raises(ProbeFailed, match="too many"):
        await client.fetch("/big", timeout_s=0.5)
    await asyncio.gather(*silent, return_exceptions=True)
    assert (await client.fetch("/big", timeout_s=5.0)).status == 200
    await engine.stop()
    with pytest.raises(ProbeFailed) as failed:
        await client.fetch("/big", timeout_s=5.0)
    assert str(engine.port) not in str(failed.value)
    await client.close()


@pytest.mark.parametrize(
    ("choice", "result"),
    [
        ({"text": "n"}, ProbeResult.OK),
        ({"text": ""}, ProbeResult.FAILED),
        ({"text": "n", "logprobs": {"token_logprobs": [-0.5]}}, ProbeResult.OK),
        ({"text": "n", "logprobs": {"token_logprobs": [0.5]}}, ProbeResult.FAILED),
        ({"text": "n", "logprobs": {"token_logprobs": ["x"]}}, ProbeResult.FAILED),
        (
            {"text": "n", "logprobs": {"token_logprobs": [-9.0], "top_logprobs": [{"a": -9.0, "b": -9.0}]}},
            ProbeResult.FAILED,
        ),
        (
            {"text": "n", "logprobs": {"content": [{"logprob": -1, "top_logprobs": [{"logprob": -1}, {"logprob": -2}]}]}},
            ProbeResult.OK,
        ),
        (
            {"text": "n", "logprobs": {"content": [{"logprob": 0, "top_logprobs": [{"logprob": 0}, {"logprob": None}]}]}},
            ProbeResult.FAILED,
        ),
        ({"text": "n", "logprobs": {"content": [{}]}}, ProbeResult.FAILED),
    ],
)
def test_the_token_of_a_deep_probe_in_every_form(choice, result):
    assert judge_completion(orjson.dumps({"choices": [choice]}))[0] is result


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"choices":[]}', b'{"choices":[{"logprobs":{"token_logprobs":[NaN]}}]}', b"{}"]
)
def test_an_answer_that_is_no_completion_fails_a_deep_probe(body):
    assert judge_completion(body)[0] is ProbeResult.FAILED
