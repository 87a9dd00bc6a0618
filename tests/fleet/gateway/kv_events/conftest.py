"""A publisher of KV events as vLLM has one, whose every message is the test's own."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)


class FakePublisher:
    """Publishes on a free port, and answers replays from what it was told to remember.

    Attributes:
        num_replays: requests for a replay that came.
        answers_replays: whether they are answered.
        old_replies: leave the topic out, as older versions did.
    """

    def __init__(self, topic: bytes = b"") -> None:
        self.topic = topic
        self.answers_replays = True
        self.old_replies = False
        self.num_replays = 0
        self.remembered: dict[int, bytes] = {}
        self._context = zmq.asyncio.Context()
        self._ports: tuple[int, int] | None = None
        self._open()

    @property
    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self._ports[0]}"

    @property
    def replays(self) -> str:
        return f"tcp://127.0.0.1:{self._ports[1]}"

    def stop(self) -> None:
        """Go away, connections and memory included."""
        self._task.cancel()
        self._events.close(0)
        self._replays.close(0)
        self.remembered.clear()

    async def start_anew(self) -> None:
        """Be there again, on the same ports."""
        for _ in range(100):
            try:
                self._open()
                return
            except zmq.ZMQError:
                await asyncio.sleep(0.02)
        raise AssertionError("the ports stay taken")

    def close(self) -> None:
        self.stop()
        self._context.destroy(linger=0)

    async def until_subscribed(self) -> None:
        """Until a subscription has come: what is published from here on reaches it."""
        message = await asyncio.wait_for(self._events.recv(), 10)
        assert message[:1] == b"\x01"

    async def until_unsubscribed(self) -> None:
        """Until a subscription has ended."""
        message = await asyncio.wait_for(self._events.recv(), 10)
        assert message[:1] == b"\x00"

    async def send(self, number: int, events: Sequence[Any], *, remember: bool = True, publish: bool = True) -> None:
        payload = msgspec.msgpack.encode([1.5, list(events), 0])
        if remember:
            self.remembered[number] = payload
        if publish:
            await self.send_parts(self.topic, number.to_bytes(8, "big"), payload)

    async def send_parts(self, *parts: bytes) -> None:
        await self._events.send_multipart(parts)

    def _open(self) -> None:
        # XPUB is PUB, and lets one see subscriptions come.
        self._events = self._context.socket(zmq.XPUB)
        self._replays = self._context.socket(zmq.ROUTER)
        for socket in (self._events, self._replays):
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SNDHWM, 100_000)
        if self._ports is None:
            self._ports = tuple(s.bind_to_random_port("tcp://127.0.0.1") for s in (self._events, self._replays))
        else:
            self._events.bind(self.endpoint)
            self._replays.bind(self.replays)
        self._task = asyncio.create_task(self._serve_replays(self._replays))

    async def _serve_replays(self, socket: zmq.asyncio.Socket) -> None:
        with contextlib.suppress(zmq.ZMQError):
            while True:
                asker, empty, first = await socket.recv_multipart()
                assert empty == b""
                self.num_replays += 1
                if not self.answers_replays:
                    continue
                for number, payload in sorted(self.remembered.items()):
                    if number >= int.from_bytes(first, "big"):
                        topic = [] if self.old_replies else [self.topic]
                        await socket.send_multipart([asker, b"", *topic, number.to_bytes(8, "big"), payload])
                await socket.send_multipart([asker, b"", *([] if self.old_replies else [b""]), END_OF_REPLAY, b""])


@pytest.fixture
async def make_publisher() -> AsyncIterator[Callable[..., Awaitable[FakePublisher]]]:
    publishers: list[FakePublisher] = []

    async def make(topic: bytes = b"") -> FakePublisher:
        publishers.append(FakePublisher(topic))
        return publishers[-1]

    yield make
    for publisher in publishers:
        publisher.close()


@pytest.fixture
def stored() -> Callable[..., dict[str, Any]]:
    """An event as vLLM writes it; `tokens` are split into as many blocks as there are ids."""

    def make(
        *block_ids: int | bytes, tokens: Sequence[int], parent: int | bytes | None = None, **fields: Any
    ) -> dict[str, Any]:
        return {
            "type": "BlockStored",
            "block_hashes": list(block_ids),
            "parent_block_hash": parent,
            "token_ids": list(tokens),
            "block_size": len(tokens) // len(block_ids),
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            **fields,
        }

    return make


TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
    "{% if tools %}[{{ tools | length }}]{% endif %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> Path:
    """A folder of tokenizer files and no weights: a token per byte, and messages between angle brackets."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    alphabet = {character: number for number, character in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = Tokenizer(BPE(alphabet, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder
