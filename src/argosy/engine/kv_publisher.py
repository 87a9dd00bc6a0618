"""Publishes what the prefix index stores and evicts, for whoever routes requests to where their prefix lies.

Over ZeroMQ and in MessagePack, as vLLM does (`vllm/distributed/kv_events.py`), so that what reads vLLM's events reads these:

    PUB     topic | number of the message, 8 bytes, big-endian | [unix seconds, [event, ...], null]
    ROUTER  asked for a number, sends all messages from there on that it remembers, and number -1 at the end

The engine's thread only puts an event into a queue. Whatever else there is to do happens on a thread of its own.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from argosy.engine.core.kv_events import BlockRemoved, BlockStored, KVEvent
from argosy.errors import ConfigError
from argosy.observe.logs import log_event

_LOGGER = logging.getLogger("argosy.engine.kv_events")
_END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
_POLL_S = 0.05
_MAX_EVENTS_PER_MESSAGE = 4096


@dataclass(frozen=True, slots=True)
class PublisherSettings:
    """Where and how much is published.

    Attributes:
        endpoint, replay_endpoint: to bind, such as `tcp://127.0.0.1:5557`; without the second, nothing is told again.
        topic: of every message.
        max_remembered: messages that can be asked for again.
        max_waiting: events that the publisher may be behind by; then it drops them, and skips a number to let it be noticed.
    """

    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    max_remembered: int = 10_000
    max_waiting: int = 200_000


class BlockNames:
    """Names blocks by what is in them, since the engine's own numbers are used again and again.

    A name is 64 bits of a BLAKE2b over the parent's name and the tokens; at the start of a prompt, over the cache salt, the
    adapter and the number format. So tenants that have salts share no name, and equal prefixes have equal names in every
    engine.
    """

    def __init__(self) -> None:
        self._name_of: dict[int, int] = {}

    def store(self, event: BlockStored) -> tuple[int, int | None]:
        """Name a block; returns its name and that of its parent."""
        parent = None if event.parent_block_id is None else self._name_of[event.parent_block_id]
        if parent is None:
            above = "\0".join(f"{len(part)}:{part}" for part in event.namespace).encode()
        else:
            above = parent.to_bytes(8, "big")
        content = b"".join(token.to_bytes(4, "big") for token in event.token_ids)
        digest = blake2b(content, digest_size=8, key=blake2b(above, digest_size=32).digest()).digest()
        name = self._name_of[event.block_id] = int.from_bytes(digest, "big")
        return name, parent

    def remove(self, block_id: int) -> int:
        """The name of a block that is no more."""
        return self._name_of.pop(block_id)

    def clear(self) -> None:
        """Forget all names."""
        self._name_of.clear()


def wire_events(events: Iterable[KVEvent], names: BlockNames) -> list[dict[str, Any]]:
    """The events as they are published; blocks that follow one another become one event. Mutates `names`."""
    written: list[dict[str, Any]] = []
    for event in events:
        if isinstance(event, BlockStored):
            name, parent = names.store(event)
            last = written[-1] if written and written[-1]["type"] == "BlockStored" else None
            if last is not None and parent is not None and last["block_hashes"][-1] == parent:
                last["block_hashes"].append(name)
                last["token_ids"].extend(event.token_ids)
                last["extra_keys"].append([last["lora_name"]] if last["lora_name"] else None)
            else:
                written.append(_stored(event, name, parent))
        elif isinstance(event, BlockRemoved):
            name = names.remove(event.block_id)
            if written and written[-1]["type"] == "BlockRemoved":
                written[-1]["block_hashes"].append(name)
            else:
                written.append({"type": "BlockRemoved", "block_hashes": [name], "medium": "GPU"})
        else:
            names.clear()
            written.append({"type": "AllBlocksCleared"})
    return written


def _stored(event: BlockStored, name: int, parent: int | None) -> dict[str, Any]:
    space = event.namespace
    keys = [key for key in (space.adapter_id, space.cache_salt if parent is None else "") if key]
    return {
        "type": "BlockStored",
        "block_hashes": [name],
        "parent_block_hash": parent,
        "token_ids": list(event.token_ids),
        "block_size": len(event.token_ids),
        "lora_id": None,
        "medium": "GPU",  # the engine's own memory, whatever it is
        "lora_name": space.adapter_id or None,
        "extra_keys": [keys or None],
    }


class KVPublisher:
    """A `KVListener` that publishes; from `start` until `close`.

    Attributes:
        num_dropped: events that were lost because the publisher was too far behind.
    """

    def __init__(self, settings: PublisherSettings) -> None:
        """Bind the addresses.

        Raises:
            ConfigError: one cannot be bound, or a package is missing.
        """
        try:
            import msgspec
            import zmq
        except ImportError as error:
            message = f"KV events need pyzmq and msgspec: pip install 'argosy[serve]' ({error})"
            raise ConfigError(message, param="kv_events_endpoint") from None
        self.num_dropped = 0
        self._settings = settings
        self._encode = msgspec.msgpack.Encoder().encode
        self._topic = settings.topic.encode()
        self._inbox: queue.SimpleQueue[KVEvent | None] = queue.SimpleQueue()
        self._names = BlockNames()
        self._remembered: deque[tuple[int, bytes]] = deque(maxlen=settings.max_remembered)
        self._next = 0
        self._is_behind = False
        self._has_failed = False
        self._context = zmq.Context()
        self._events = self._context.socket(zmq.PUB)
        self._replays = self._context.socket(zmq.ROUTER)
        try:
            _bind(self._events, settings.endpoint, "kv_events_endpoint")
            if settings.replay_endpoint is not None:
                _bind(self._replays, settings.replay_endpoint, "kv_events_replay_endpoint")
        except ConfigError:
            self._context.destroy(linger=0)
            raise
        self._thread = threading.Thread(target=self._run, name="argosy-kv-events", daemon=True)

    def __call__(self, event: KVEvent) -> None:
        """Publish an event, soon. For the engine's thread; never waits."""
        if not self._has_failed:
            self._inbox.put(event)

    def start(self) -> None:
        """Start the thread. Called once."""
        self._thread.start()

    def close(self) -> None:
        """Publish what waits and end. Idempotent."""
        if self._thread.is_alive():
            self._inbox.put(None)
            self._thread.join()
        self._context.destroy(linger=0)

    # ---- on the publisher's thread ----

    def _run(self) -> None:
        try:
            while self._take():
                pass
        except Exception:
            # The engine goes on; whoever reads must not believe that nothing changes any more.
            _LOGGER.exception("KV events are published no more")
            self._has_failed = True
            self._events.close()
            self._replays.close()

    def _take(self) -> bool:
        """Publish what has come, waiting for it a while; False once told to end."""
        is_open = True
        batch: list[KVEvent] = []
        try:
            event = self._inbox.get(timeout=None if self._settings.replay_endpoint is None else _POLL_S)
            while event is not None and len(batch) < _MAX_EVENTS_PER_MESSAGE:
                batch.append(event)
                event = self._inbox.get_nowait()
            if event is None:
                is_open = False
            else:
                batch.append(event)
        except queue.Empty:
            pass
        if batch:
            self._publish(batch)
        if self._settings.replay_endpoint is not None:
            self._answer()
        return is_open

    def _publish(self, batch: list[KVEvent]) -> None:
        events = wire_events(batch, self._names)
        if self._inbox.qsize() > self._settings.max_waiting:
            self._fall_behind(len(batch))
            return
        self._is_behind = False
        payload = self._encode([time.time(), events, None])
        number, self._next = self._next, self._next + 1
        self._events.send_multipart([self._topic, number.to_bytes(8, "big"), payload])
        self._remembered.append((number, payload))

    def _fall_behind(self, num_events: int) -> None:
        """Names must go on, but who reads must notice that something is missing, and must not be told of what is older."""
        self.num_dropped += num_events
        if not self._is_behind:
            self._is_behind = True
            self._next += 1
            self._remembered.clear()
            log_event(
                _LOGGER, logging.WARNING, "KV events are dropped: the publisher is behind", waiting=self._inbox.qsize()
            )

    def _answer(self) -> None:
        """Send again what is asked for."""
        import zmq

        while self._replays.poll(0):
            frames = self._replays.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                continue
            asker, first = frames[0], int.from_bytes(frames[2], "big")
            try:
                for number, payload in self._remembered:
                    if number >= first:
                        parts = [asker, b"", self._topic, number.to_bytes(8, "big"), payload]
                        self._replays.send_multipart(parts, zmq.DONTWAIT)
                self._replays.send_multipart([asker, b"", b"", _END_OF_REPLAY, b""], zmq.DONTWAIT)
            except zmq.Again:  # it reads too slowly; without the end it knows that this was not all
                continue


def _bind(socket: Any, endpoint: str, param: str) -> None:
    import zmq

    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.IPV6, int("[" in endpoint))
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise ConfigError(f"cannot publish KV events on {endpoint}: {error}; choose another address", param=param) from None
