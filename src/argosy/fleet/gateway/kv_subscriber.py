"""Receives the KV events of one backend over ZeroMQ. Runs on a side loop; what it learns goes to a `KvSink`.

Numbers of messages rise by one. What a number says depends on where it came from:

    live, next         taken in
    live, beyond next  something is missing: asked for again, else all that is known is dropped
    live, not above    of a publisher that has begun anew: all that is known is dropped, and read from the beginning
    the last live one
    replayed           what is already known is passed over; one beyond next: all that is known is dropped

A connection that breaks ends the session: what its socket still holds goes with it, so that no message of an old publisher
can be taken for one of its successor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from argosy.fleet.gateway.kv_events import KvEvent
from argosy.fleet.gateway.kv_wire import END_OF_REPLAY, EventReader, MalformedEvent, read_sequence, split_events
from argosy.observe.logs import log_event

_LOGGER = logging.getLogger("argosy.gateway.kv_events")
_BLOCKS_PER_PORTION = 256  # of an index's work between two requests
_WATCHED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


@dataclass(frozen=True, slots=True)
class SubscriptionLimits:
    """Times and sizes of a subscription.

    Attributes:
        max_messages: received and not yet taken in; further ones are lost, which is noticed as a gap.
        max_message_bytes: a larger message breaks the connection.
        replay_timeout_s: for each message of a replay.
        replay_pause_s: after a replay that got no answer, gaps are not asked for again.
        pause_s: between a connection that broke and the next.
        heartbeat_s: a peer that stays silent for three of them is gone.
    """

    max_messages: int = 2048
    max_message_bytes: int = 64 * 2**20
    replay_timeout_s: float = 2.0
    replay_pause_s: float = 10.0
    pause_s: float = 0.2
    heartbeat_s: float = 5.0


class KvSink(Protocol):
    """Takes what a subscription learns. Each call returns when it has been taken in, which slows the subscription down."""

    async def apply(self, events: Sequence[KvEvent]) -> None:
        """Events, in order."""
        ...

    async def took(self) -> None:
        """A message has been taken in whole, or a replay has come to its end: the events can be trusted."""
        ...

    async def gap(self, *, malformed: bool) -> None:
        """What was known is not to be trusted."""
        ...

    async def lose(self) -> None:
        """The connection is gone."""
        ...


class KvSubscriber:
    """One backend's events, from `run` until that is cancelled."""

    def __init__(
        self,
        name: str,
        endpoint: str,
        sink: KvSink,
        *,
        replay_endpoint: str | None = None,
        topic: str = "",
        limits: SubscriptionLimits | None = None,
    ) -> None:
        """Nothing is opened yet.

        Args:
            name: of the backend, for the log.
            endpoint, replay_endpoint: of the publisher, as ZeroMQ writes them.
            topic: with which the topics of messages must begin.
        """
        self._name = name
        self._endpoint = endpoint
        self._replay_endpoint = replay_endpoint
        self._topic = topic.encode()
        self._sink = sink
        self._limits = limits or SubscriptionLimits()
        self._reader = EventReader()
        self._next: int | None = None
        self._last_live = -1
        self._no_replay_until_s = float("-inf")

    async def run(self) -> None:
        """Stay connected until cancelled."""
        context = zmq.asyncio.Context()
        try:
            while True:
                reason = "the connection broke"
                try:
                    await self._session(context)
                except zmq.ZMQError as error:
                    reason = str(error)
                log_event(_LOGGER, logging.WARNING, "KV events of a backend were lost", backend=self._name, reason=reason)
                await self._sink.lose()
                await asyncio.sleep(self._limits.pause_s)
        finally:
            context.destroy(linger=0)

    async def _session(self, context: zmq.asyncio.Context) -> None:
        """From connecting until the connection breaks."""
        self._reader = EventReader()
        self._next, self._last_live = None, -1
        with self._socket(context, zmq.SUB, self._endpoint) as events:
            monitor = events.get_monitor_socket(_WATCHED)
            try:
                events.subscribe(self._topic)
                events.connect(self._endpoint)
                poller = zmq.asyncio.Poller()
                poller.register(monitor, zmq.POLLIN)
                poller.register(events, zmq.POLLIN)
                is_connected = False
                while True:
                    ready = dict(await poller.poll())
                    if monitor in ready:
                        event = (await recv_monitor_message(monitor))["event"]
                        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                            is_connected = True
                            log_event(_LOGGER, logging.INFO, "KV events of a backend come in", backend=self._name)
                            await self._begin(context)
                        elif is_connected:
                            return
                    elif events in ready:
                        await self._receive(context, await events.recv_multipart())
            finally:
                events.disable_monitor()

    def _socket(self, context: zmq.asyncio.Context, kind: int, endpoint: str) -> zmq.asyncio.Socket:
        limits = self._limits
        socket = context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, limits.max_messages)
        socket.setsockopt(zmq.MAXMSGSIZE, limits.max_message_bytes)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        socket.setsockopt(zmq.HEARTBEAT_IVL, int(limits.heartbeat_s * 1000))
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(limits.heartbeat_s * 3000))
        socket.setsockopt(zmq.IPV6, int("[" in endpoint))
        return socket

    async def _begin(self, context: zmq.asyncio.Context) -> None:
        """Learn what was published before there was a connection."""
        if await self._replay(context, 0):
            await self._sink.took()

    async def _receive(self, context: zmq.asyncio.Context, frames: list[bytes]) -> None:
        """Take in a live message."""
        if len(frames) != 3 or not frames[0].startswith(self._topic):
            await self._on_malformed("a KV event message must have three parts")
            return
        try:
            number = read_sequence(frames[1])
        except MalformedEvent as error:
            await self._on_malformed(str(error))
            return
        if number <= self._last_live:
            await self._sink.gap(malformed=False)
            self._reader = EventReader()
            self._next = None
            await self._replay(context, 0)
        self._last_live = number
        if self._next is not None and number > self._next:
            await self._fill(context, self._next, number)
        if self._next is None or number >= self._next:
            await self._take(number, frames[2])

    async def _fill(self, context: zmq.asyncio.Context, first: int, number: int) -> None:
        """Get what is missing from `first` up to, and without, `number`; else drop what is known."""
        await self._replay(context, first)
        if self._next is None or self._next < number:
            log_event(_LOGGER, logging.WARNING, "KV events are missing", backend=self._name, first=first, before=number)
            await self._sink.gap(malformed=False)

    async def _take(self, number: int, payload: bytes) -> None:
        """Take in the message that comes next."""
        self._next = number + 1
        try:
            events = self._reader.read(payload)
        except MalformedEvent as error:
            await self._on_malformed(str(error))
            return
        for portion in split_events(events, _BLOCKS_PER_PORTION):
            await self._sink.apply(portion)
        await self._sink.took()

    async def _on_malformed(self, reason: str) -> None:
        log_event(_LOGGER, logging.WARNING, "a KV event message was not understood", backend=self._name, reason=reason)
        await self._sink.gap(malformed=True)

    async def _replay(self, context: zmq.asyncio.Context, first: int) -> bool:
        """Take in again what was published from `first` on; returns whether the publisher has told all that it remembers."""
        loop = asyncio.get_running_loop()
        if self._replay_endpoint is None or loop.time() < self._no_replay_until_s:
            return False
        with self._socket(context, zmq.DEALER, self._replay_endpoint) as requests:
            requests.connect(self._replay_endpoint)
            # An empty part in front, as a REQ socket would send it.
            await requests.send_multipart([b"", first.to_bytes(8, "big")])
            while await requests.poll(int(self._limits.replay_timeout_s * 1000)):
                frames = await requests.recv_multipart()
                try:
                    number = read_sequence(frames[-2] if len(frames) > 1 else b"")
                except MalformedEvent as error:
                    await self._on_malformed(str(error))
                    return False
                if number == END_OF_REPLAY:
                    return True
                # Older publishers leave the topic out.
                if len(frames) == 4 and not frames[1].startswith(self._topic):
                    await self._on_malformed(f"replayed messages have another topic than {self._topic.decode()!r}")
                    return False
                await self._take_replayed(number, frames[-1])
        self._no_replay_until_s = loop.time() + self._limits.replay_pause_s
        log_event(_LOGGER, logging.WARNING, "KV events cannot be had again", backend=self._name)
        return False

    async def _take_replayed(self, number: int, payload: bytes) -> None:
        if self._next is not None and number < self._next:
            return
        if self._next is not None and number > self._next:
            await self._sink.gap(malformed=False)
        await self._take(number, payload)
