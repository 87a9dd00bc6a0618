"""A server on a real socket that streams what a test scripts, byte by byte if need be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import pytest


def event(payload: Any) -> bytes:
    return b"data: " + (payload if isinstance(payload, bytes) else json.dumps(payload).encode()) + b"\n\n"


def text_event(text: str) -> bytes:
    return event({"choices": [{"index": 0, "text": text}]})


def usage_event(prompt: int, completion: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


DONE = event(b"[DONE]")
Answer = Callable[[dict[str, Any], asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Scripted:
    """What the server does. `answer` writes the response to a completion; the body of the request is given to it."""

    url: str = ""
    answer: Answer | None = None
    models: bytes = b'{"data": [{"id": "m1", "max_model_len": 2048}]}'
    tokenize: bool = True
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    num_connections: int = 0
    close_idle: bool = False


async def stream(writer: asyncio.StreamWriter, *parts: bytes, gap_s: float = 0.0, status: str = "200 OK") -> None:
    """A chunked response of `parts`, each sent as a chunk of its own."""
    writer.write(f"HTTP/1.1 {status}\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    for part in parts:
        writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        await writer.drain()
        if gap_s:
            await asyncio.sleep(gap_s)
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def plain(writer: asyncio.StreamWriter, body: bytes, status: str = "200 OK") -> None:
    writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()


def words_answer(num_tokens: int, *, gap_s: float = 0.0, usage: bool = True) -> Answer:
    async def answer(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        parts = [text_event(" w") for _ in range(num_tokens)]
        if usage:
            parts.append(usage_event(len(body["prompt"].split()), num_tokens))
        await stream(writer, *parts, DONE, gap_s=gap_s)

    return answer


class _Server:
    def __init__(self, scripted: Scripted) -> None:
        self.scripted = scripted
        self.loop = asyncio.new_event_loop()
        self.thread = Thread(target=self._run)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def start(self) -> None:
        self.thread.start()
        server = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self.loop).result(5)
        self.scripted.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self.server = server

    def stop(self) -> None:
        async def end() -> None:
            self.server.close()
            own = asyncio.current_task()
            tasks = [task for task in asyncio.all_tasks() if task is not own]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self.loop).result(5)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)
        self.loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.scripted.num_connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if method == "GET":
            await plain(writer, self.scripted.models)
        elif path == "/tokenize":
            await self._tokenize(writer, json.loads(body))
        elif path.startswith("/v1/"):
            value = json.loads(body)
            self.scripted.bodies.append(value)
            self.scripted.headers.append(headers)
            assert self.scripted.answer is not None
            await self.scripted.answer(value, writer)
        else:
            await plain(writer, b"{}", "404 Not Found")
        return not (self.scripted.close_idle and path.startswith("/v1/comp"))

    async def _tokenize(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        if not self.scripted.tokenize:
            await plain(writer, b"{}", "404 Not Found")
        else:
            await plain(writer, json.dumps({"count": len(body["prompt"].split())}).encode())


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    server = _Server(Scripted())
    server.start()
    yield server.scripted
    server.stop()


@pytest.fixture
def sse():
    """The builders of scripted answers, for tests that need more than `words_answer`."""

    class Builders:
        DONE = DONE
        event = staticmethod(event)
        text = staticmethod(text_event)
        usage = staticmethod(usage_event)
        stream = staticmethod(stream)
        plain = staticmethod(plain)
        words_answer = staticmethod(words_answer)

    return Builders
