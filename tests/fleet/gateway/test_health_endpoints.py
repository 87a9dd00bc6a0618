import orjson
import pytest

from argosy.fleet.gateway.health_endpoints import HEALTH_PATHS, LIVE_PATHS, READY_PATHS, GatewayHealth
from argosy.fleet.gateway.health_server import HealthServer


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def make(**fields) -> GatewayHealth:
    health = GatewayHealth(Clock(), **fields)
    health.is_started = True
    health.beat()
    return health


def status(health: GatewayHealth, path: str) -> int:
    found = health.answer(path)
    assert found is not None
    return found[0]


def test_the_names_people_probe():
    named = {"/health", "/live", "/ready", "/healthz", "/livez", "/readyz", "/health/liveliness", "/health/readiness"}
    assert named <= HEALTH_PATHS
    assert not LIVE_PATHS & READY_PATHS
    assert GatewayHealth(Clock()).answer("/v1/models") is None
    assert GatewayHealth(Clock()).answer("/health/") is None


@pytest.mark.parametrize("path", sorted(LIVE_PATHS))
def test_live_follows_neither_store_nor_backends_nor_drain(path):
    health = make(serve_on_store_loss=False)
    health.store_is_up, health.is_draining, health.unhealthy_count = False, True, 9
    assert status(health, path) == 200


@pytest.mark.parametrize("path", sorted(READY_PATHS))
def test_ready_follows_start_drain_and_the_store_as_configured(path):
    health = make(serve_on_store_loss=True)
    assert status(health, path) == 200
    health.store_is_up = False
    assert status(health, path) == 200
    health.serve_on_store_loss = False
    assert status(health, path) == 503
    health.store_is_up = True
    assert status(health, path) == 200
    health.is_draining = True
    assert health.answer(path) == (503, b'{"status":"draining"}')
    health = make()
    health.is_started = False
    assert status(health, path) == 503


def test_an_event_loop_that_stands_still_is_seen():
    health = make(loop_stall_limit_s=60.0)
    health.clock.now_s += 60.0
    assert status(health, "/live") == 200
    health.clock.now_s += 1.0
    assert status(health, "/live") == status(health, "/ready") == 503
    health.beat()
    assert status(health, "/live") == status(health, "/ready") == 200


def test_health_counts_backends_and_names_those_whose_breaker_is_not_closed():
    health = make()
    health.healthy_count, health.unhealthy_count, health.unprobed_count, health.breakers = 3, 1, 2, {"b": "open"}
    body = orjson.loads(health.answer("/health")[1])
    counts = {"healthy_count": 3, "unhealthy_count": 1, "unprobed_count": 2}
    assert body == {"status": "ok", **counts, "breakers": {"b": "open"}}
    assert orjson.loads(health.answer("/health/live")[1]) == {"status": "ok"}


async def ask(client, method: str, path: str) -> tuple[int, bytes]:
    client.write(f"{method} {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    code, headers = await client.head()
    assert headers["connection"] == "close"
    return code, await client.reader.read()


async def test_the_port_of_its_own(connect):
    health = make()
    server = HealthServer(health)
    url = f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}"
    assert await ask(await connect(url), "GET", "/healthz?x=1") == (200, b'{"status":"ok"}')
    assert await ask(await connect(url), "HEAD", "/readyz") == (200, b"")
    health.is_draining = True
    assert (await ask(await connect(url), "GET", "/readyz"))[0] == 503
    assert (await ask(await connect(url), "GET", "/v1/models"))[0] == 404
    assert (await ask(await connect(url), "POST", "/healthz"))[0] == 405
    for rubbish in (b"x\r\n\r\n", b"a" * 20_000, b""):
        client = await connect(url)
        client.write(rubbish)
        client.writer.write_eof()
        answer = await client.reader.read()
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
    await server.close()
