"""A client that leaves frees all its request holds, in whatever state the request is."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import count
from typing import Any

import httpx
import pytest

MODEL = "smollm2-135m"
# Two run at once, a step takes 4 tokens, the pool holds two sequences of 64: prompts are slow, queues and preemptions near.
# Torch is the slow executor: a state lasts for seconds, longer than a busy machine pauses whoever looks for it.
FLAGS = (
    "--executor", "torch",
    "--max-num-seqs", "2", "--max-num-batched-tokens", "4", "--num-gpu-blocks-override", "8", "--block-size", "16",
    "--max-model-len", "128", "--check-invariants",
)  # fmt: skip
IDLE = {"vllm:num_requests_running": 0.0, "vllm:num_requests_waiting": 0.0, "vllm:kv_cache_usage_perc": 0.0}
SHORT, HALF_OF_THE_POOL, LONG = 4, 52, 124

pytestmark = [pytest.mark.model, pytest.mark.slow]


class Clients:
    """Sends requests whose clients can be cut off; each has a prompt of its own, so that none is in the prefix cache."""

    def __init__(self, server: Any, connections: ExitStack, first_ids: Iterator[int]) -> None:
        self.server = server
        self._connections = connections
        self._first_ids = first_ids

    def send(self, num_prompt: int, **fields: Any) -> socket.socket:
        prompt = [next(self._first_ids), *range(1000, 999 + num_prompt)]
        data = json.dumps({"prompt": prompt, "max_tokens": None, "ignore_eos": True, **fields}).encode()
        host, port = self.server.url.removeprefix("http://").split(":")
        connection = socket.create_connection((host, int(port)), timeout=60)
        self._connections.enter_context(closing(connection))
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(data), data)
        )
        return connection

    def running_and_waiting(self) -> tuple[float, float]:
        return self.server.metric("vllm:num_requests_running"), self.server.metric("vllm:num_requests_waiting")

    def generated(self) -> float:
        return self.server.metric("vllm:generation_tokens_total")


def wait_until(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "the state was not reached"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def served(serve: Any) -> Iterator[tuple[Any, Iterator[int]]]:
    with serve(MODEL, *FLAGS) as server:
        yield server, count(2000)
        server.stop()
        assert "Traceback" not in server.log


@pytest.fixture
def clients(served: tuple[Any, Iterator[int]]) -> Iterator[Clients]:
    """At the end every counter must be back where an idle server has it, and the next request be answered."""
    server, first_ids = served
    disconnects = server.metric("argosy_http_client_disconnects_total")
    with ExitStack() as connections:
        yield Clients(server, connections, first_ids)
    wait_until(lambda: {name: server.metric(name) for name in IDLE} == IDLE)
    wait_until(lambda: server.metric("argosy_http_requests_in_flight") == 1.0)
    assert server.metric("argosy_http_client_disconnects_total") > disconnects
    answer = httpx.post(f"{server.url}/v1/completions", json={"prompt": [next(first_ids)], "max_tokens": 2}, timeout=60)
    assert answer.status_code == 200


streaming_or_not = pytest.mark.parametrize("stream", [False, True])


@streaming_or_not
def test_while_it_is_queued(clients: Clients, stream: bool) -> None:
    for _ in range(2):
        clients.send(SHORT)
    wait_until(lambda: clients.running_and_waiting() == (2, 0))
    queued = clients.send(SHORT, stream=stream)
    wait_until(lambda: clients.running_and_waiting() == (2, 1))
    queued.close()
    wait_until(lambda: clients.running_and_waiting() == (2, 0))


@streaming_or_not
@pytest.mark.parametrize("n", [1, 3])
def test_while_its_prompt_is_computed_in_chunks(clients: Clients, stream: bool, n: int) -> None:
    before = clients.generated()
    connection = clients.send(LONG, stream=stream, n=n)
    wait_until(lambda: clients.running_and_waiting() == (1, n - 1))
    connection.close()
    wait_until(lambda: clients.running_and_waiting() == (0, 0))
    assert clients.generated() == before, "it had got past its prompt"


@streaming_or_not
@pytest.mark.parametrize("n", [1, 2, 3])
def test_while_it_decodes(clients: Clients, stream: bool, n: int) -> None:
    before = clients.generated()
    connection = clients.send(SHORT, stream=stream, n=n)
    wait_until(lambda: clients.generated() > before + 4 and clients.running_and_waiting() == (min(n, 2), max(n - 2, 0)))
    connection.close()
    wait_until(lambda: clients.running_and_waiting() == (0, 0))
    assert clients.generated() < before + n * 100, "it had come to its end"


@streaming_or_not
def test_while_it_is_preempted(clients: Clients, stream: bool) -> None:
    """On a machine that pauses this process the first request may have ended before the state is seen: then once more."""
    for _ in range(10):
        if victim := preempted(clients, stream):
            break
    else:
        pytest.fail("no request was seen preempted")
    victim.close()
    wait_until(lambda: clients.running_and_waiting()[1] == 0)


def preempted(clients: Clients, stream: bool) -> socket.socket | None:
    """A request that waits after a preemption; None when the requests ended unseen."""
    preemptions = clients.server.metric("vllm:num_preemptions_total")
    generated = clients.generated()
    clients.send(HALF_OF_THE_POOL)
    wait_until(lambda: clients.running_and_waiting() != (0, 0) or clients.generated() > generated)
    victim = clients.send(HALF_OF_THE_POOL, stream=stream)
    wait_until(
        lambda: clients.server.metric("vllm:num_preemptions_total") > preemptions or clients.running_and_waiting() == (0, 0)
    )
    if clients.running_and_waiting() == (1, 1):
        return victim
    wait_until(lambda: clients.running_and_waiting() == (0, 0))
    return None


def test_with_several_prompts(clients: Clients) -> None:
    connection = clients.send(SHORT, prompt=[[3000 + i, 7] for i in range(5)], n=2)
    wait_until(lambda: clients.running_and_waiting() == (2, 8))
    connection.close()
    wait_until(lambda: clients.running_and_waiting() == (0, 0))
