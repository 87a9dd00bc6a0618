"""Two real engines that publish their KV events, behind a real gateway that routes by them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.model, pytest.mark.slow]
MODEL = "smollm2-135m"
NUM_BLOCKS = 40  # of 16 tokens, so that a handful of prompts evict each other

CONFIG = """
listen: {{port: {port}}}
auth: {{mode: open}}
store: null
observability: {{access_log: {directory}/access.log}}
resilience:
  drain: {{propagation_s: 0, timeout_s: 5}}
  health: {{ready: {{interval_s: 1, timeout_s: 1, failures: 2}}, deep: null}}
models:
  - name: smollm2-135m
    tokenizer: smollm2-135m
    routing: {{policy: prefix_precise, held_token_cost: 0}}
    backends:
      - name: one
        kind: argosy
        url: "{one.url}"
        kv_events: {{endpoint: "{one.events}", replay_endpoint: "{one.replay}"}}
      - name: two
        kind: argosy
        url: "{two.url}"
        kv_events: {{endpoint: "{two.events}", replay_endpoint: "{two.replay}"}}
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Engine:
    """An `argosy serve` that can be started anew on the same addresses."""

    def __init__(self, serve: Callable[..., Any]) -> None:
        self._serve = serve
        self._stack = ExitStack()
        self.port = free_port()
        self.events, self.replay = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
        self.server: Any = None

    @property
    def url(self) -> str:
        return str(self.server.url)

    def start(self) -> None:
        flags = ("--num-gpu-blocks-override", str(NUM_BLOCKS), "--kv-events-endpoint", self.events)
        self.server = self._stack.enter_context(
            self._serve(MODEL, *flags, "--kv-events-replay-endpoint", self.replay, port=self.port)
        )

    def stop(self) -> None:
        self._stack.close()


class Gateway:
    def __init__(self, url: str, log: Path) -> None:
        self.url = url
        self._log = log

    def ask(self, prompt: str, **fields: Any) -> tuple[str, int]:
        """Who answered, and how many tokens of the prompt it had already."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "max_tokens": 1, **fields}
        answer = httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        document = answer.json()
        details = document["usage"].get("prompt_tokens_details") or {}
        return self._backend_of(answer.headers["x-request-id"]), int(details.get("cached_tokens") or 0)

    def _backend_of(self, request_id: str) -> str:
        def found() -> str | None:
            for line in self._log.read_text().splitlines():
                if request_id in line:
                    return str(json.loads(line)["backend"]).rpartition("/")[2]
            return None

        return str(until(found))

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = httpx.get(f"{self.url}/metrics", timeout=10).text.splitlines()
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith(f"{name}{{") and all(w in line for w in wanted)
        )

    def blocks_of(self, name: str) -> float:
        return self.metric("argosy_gateway_kv_event_blocks", backend=f"{MODEL}/{name}")


def until(condition: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    deadline_s = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, "it did not come to it"
        time.sleep(0.05)
    return value


@pytest.fixture(scope="module")
def engines(serve: Callable[..., Any]) -> Iterator[tuple[Engine, Engine]]:
    both = Engine(serve), Engine(serve)
    for engine in both:
        engine.start()
    yield both
    for engine in both:
        engine.stop()


@pytest.fixture(scope="module")
def gateway(engines: tuple[Engine, Engine], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    directory = tmp_path_factory.mktemp("gateway")
    port = free_port()
    path = directory / "gateway.yaml"
    path.write_text(CONFIG.format(port=port, directory=directory, one=engines[0], two=engines[1]))
    with (directory / "log").open("w") as log:
        process = subprocess.Popen([sys.executable, "-m", "argosy", "gateway", str(path)], stdout=log, stderr=log)
        try:
            made = Gateway(f"http://127.0.0.1:{port}", directory / "access.log")

            def is_ready() -> bool:
                assert process.poll() is None, (directory / "log").read_text()
                try:
                    return made.metric("argosy_gateway_kv_events_trusted") == 2
                except httpx.TransportError:
                    return False

            until(is_ready)
            # The tokenizer is loaded while the gateway serves already.
            until(lambda: made.ask("Hello") and made.metric("argosy_gateway_prefix_lookups_total", by="events"))
            yield made
        finally:
            process.terminate()
            process.wait(20)


def prompt_of(subject: str) -> str:
    return f"Subject: {subject}. " + f"All that follows is about {subject} and nothing else. " * 10


def test_a_prefix_goes_to_the_replica_that_holds_it_for_as_long_as_it_does(
    gateway: Gateway, engines: tuple[Engine, Engine]
) -> None:
    # Asked of an engine past the gateway: only its events can tell who holds the prompt.
    direct = {"model": MODEL, "messages": [{"role": "user", "content": prompt_of("lighthouses")}], "max_tokens": 1}
    for engine, name in zip(engines, ("one", "two"), strict=True):
        prompt = prompt_of(f"lighthouses of {name}")
        direct["messages"] = [{"role": "user", "content": prompt}]
        before = gateway.blocks_of(name)
        assert httpx.post(f"{engine.url}/v1/chat/completions", json=direct, timeout=60).status_code == 200
        until(lambda: gateway.blocks_of(name) > before)  # noqa: B023, used at once
        for _ in range(3):
            who, cached = gateway.ask(prompt + " And further?")
            assert who == name
            assert cached >= 96
    assert gateway.metric("argosy_gateway_prefix_lookups_total", by="events") >= 6

    # Other prompts push it out; what was sent before says that "one" has it, its events say that it has not.
    for number in range(6):
        direct["messages"] = [{"role": "user", "content": prompt_of(f"the number {number} times {number}")}]
        assert httpx.post(f"{engines[0].url}/v1/chat/completions", json=direct, timeout=60).status_code == 200
    until(lambda: gateway.blocks_of("one") >= 20)
    direct["messages"] = [{"role": "user", "content": prompt_of("lighthouses of one")}]
    assert httpx.post(f"{engines[1].url}/v1/chat/completions", json=direct, timeout=60).status_code == 200
    until(lambda: gateway.ask(prompt_of("lighthouses of one"))[0] == "two", 5.0)
    assert [gateway.ask(prompt_of("lighthouses of one"))[0] for _ in range(3)] == ["two"] * 3


def test_a_replica_that_starts_anew_holds_nothing(gateway: Gateway, engines: tuple[Engine, Engine]) -> None:
    prompt = prompt_of("harbours")
    holder, _ = gateway.ask(prompt)
    until(lambda: gateway.ask(prompt)[1] >= 96)
    engine = engines[("one", "two").index(holder)]
    other = "two" if holder == "one" else "one"
    engine.stop()
    until(lambda: gateway.metric("argosy_gateway_kv_events_trusted", backend=f"{MODEL}/{holder}") == 0)
    assert gateway.blocks_of(holder) == 0
    assert gateway.ask(prompt)[0] == other
    engine.start()
    until(lambda: gateway.metric("argosy_gateway_kv_events_trusted", backend=f"{MODEL}/{holder}") == 1)
    until(lambda: gateway.metric("argosy_gateway_backend_ready", backend=f"{MODEL}/{holder}") == 1)
    assert gateway.blocks_of(holder) == 0
    assert [gateway.ask(prompt)[0] for _ in range(3)] == [other] * 3
