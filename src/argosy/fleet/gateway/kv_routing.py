"""Precise prefix-aware routing: pools whose backends publish their KV events, and the tokens of prompts to match with them.

backend --ZeroMQ--> subscriber --portions--> KvFeed -> index <- match - router
                    (side loop)              (loop of the data path)
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from argosy.fleet.gateway.config_kv import KvEventSettings
from argosy.fleet.gateway.config_models import BackendSettings, ModelSettings
from argosy.fleet.gateway.exchange import Exchange
from argosy.fleet.gateway.kv_events import KvEvent, KvFeed, KvSource
from argosy.fleet.gateway.metrics import Reading
from argosy.fleet.gateway.prompt_tokens import PromptTokens
from argosy.fleet.gateway.side_loop import SideLoop
from argosy.fleet.policies.routing.event_or_sent_index import EventOrSentIndex
from argosy.fleet.policies.routing.kv_event_index import KvEventIndex
from argosy.fleet.policies.routing.policy import RoutingPolicy
from argosy.fleet.policies.routing.prefix_index import ApproximatePrefixIndex
from argosy.observe.logs import log_event

if TYPE_CHECKING:
    from argosy.fleet.gateway.kv_subscriber import KvSubscriber

_LOGGER = logging.getLogger("argosy.gateway.kv_events")
DEFAULT_BLOCK_TOKENS = 16
"""Of Argosy's engine and of vLLM on most devices."""


class _LoopSink:
    """Carries what a subscription learns to the feed, on the loop of the data path."""

    def __init__(self, feed: KvFeed, source: KvSource, loop: asyncio.AbstractEventLoop) -> None:
        self._feed = feed
        self._source = source
        self._loop = loop

    async def apply(self, events: Sequence[KvEvent]) -> None:
        await self._on_loop(lambda: self._feed.apply(self._source, events))

    async def took(self) -> None:
        self._source.num_batches += 1
        await self._on_loop(lambda: self._feed.trust(self._source))

    async def gap(self, *, malformed: bool) -> None:
        await self._on_loop(lambda: self._feed.gap(self._source, malformed=malformed))

    async def lose(self) -> None:
        await self._on_loop(lambda: self._feed.lose(self._source))

    def fail(self) -> None:
        """The subscription has ended by a fault."""
        self._loop.call_soon_threadsafe(self._feed.lose, self._source)

    async def _on_loop(self, work: Callable[[], None]) -> None:
        done: concurrent.futures.Future[None] = concurrent.futures.Future()

        def run() -> None:
            if not done.set_running_or_notify_cancel():  # the subscription has ended meanwhile
                return
            try:
                work()
            except BaseException as error:
                done.set_exception(error)
                raise
            done.set_result(None)

        self._loop.call_soon_threadsafe(run)
        await asyncio.wrap_future(done)


@dataclass(slots=True, eq=False)
class _Subscription:
    settings: KvEventSettings
    source: KvSource
    task: concurrent.futures.Future[None]


class KvRouting:
    """One pool's events and tokens. Belongs to the event loop of the data path.

    Attributes:
        policy: of the pool, with an index that goes by events, or by what was sent where there are none.
    """

    def __init__(self, model: ModelSettings, policy: RoutingPolicy, side: SideLoop, tokens: PromptTokens) -> None:
        """Nothing is subscribed to yet. `policy` must have a precise index."""
        assert isinstance(policy.prefix_matcher, KvEventIndex)
        self._model = model.name
        self._side = side
        self._tokens = tokens
        self._index = EventOrSentIndex(policy.prefix_matcher, ApproximatePrefixIndex(), self._begin_anew)
        self._feed = KvFeed(self._index)
        self._subscriptions: dict[str, _Subscription] = {}
        self.policy = replace(policy, prefix_matcher=self._index)

    def set_backends(self, backends: Sequence[BackendSettings]) -> None:
        """Subscribe to the events of these backends, by the ids that they have in the pool, and of no others."""
        wanted = {backend.name: backend.kv_events for backend in backends if backend.kv_events is not None}
        for backend_id in [name for name, one in self._subscriptions.items() if wanted.get(name) != one.settings]:
            self._end(backend_id)
        for backend_id, settings in wanted.items():
            if backend_id not in self._subscriptions:
                self._subscribe(backend_id, settings)

    def close(self) -> None:
        """End every subscription."""
        for backend_id in list(self._subscriptions):
            self._end(backend_id)
        self._tokens.close()

    def prepare(self, exchange: Exchange) -> Awaitable[None] | None:
        """Find out the tokens of a prompt, for `exchange.token_blocks`; None if there is nothing to wait for."""
        if self._model in exchange.token_blocks or not any(map(self._index.is_told, self._subscriptions)):
            return None
        return self._tokens.prepare(exchange, self._model, self._index.events.block_tokens)

    def blocks_of(self, exchange: Exchange) -> tuple[tuple[int, ...], int]:
        """Hashes of the prompt's blocks of tokens and the tokens of each, as far as they are known."""
        return exchange.token_blocks.get(self._model, ()), self._index.events.block_tokens

    def readings(self) -> Iterator[Reading]:
        """For the metrics."""
        for backend_id, one in self._subscriptions.items():
            name, source = (backend_id,), one.source
            yield Reading("argosy_gateway_kv_events_trusted", name, float(self._index.is_told(backend_id)))
            yield Reading("argosy_gateway_kv_event_blocks", name, float(self._feed.num_blocks_of(source)))
            yield Reading("argosy_gateway_kv_event_messages_total", name, float(source.num_batches))
            yield Reading("argosy_gateway_kv_event_gaps_total", name, float(source.num_gaps))
            yield Reading("argosy_gateway_kv_event_malformed_total", name, float(source.num_malformed))
            yield Reading("argosy_gateway_kv_event_left_out_blocks_total", name, float(source.num_left_out))
        by_events, by_sent = float(self._index.num_by_events), float(self._index.num_by_sent)
        yield Reading("argosy_gateway_prefix_lookups_total", (self._model, "events"), by_events)
        yield Reading("argosy_gateway_prefix_lookups_total", (self._model, "sent"), by_sent)
        for reason, count in self._tokens.num_without.items():
            yield Reading("argosy_gateway_prompts_not_tokenized_total", (self._model, reason), float(count))

    def _subscribe(self, backend_id: str, settings: KvEventSettings) -> None:
        source = KvSource(backend_id, settings.max_blocks)
        sink = _LoopSink(self._feed, source, asyncio.get_running_loop())
        task = self._side.run(_make_subscriber(backend_id, settings, sink).run())
        task.add_done_callback(lambda ended: _on_end(ended, backend_id, sink))
        self._subscriptions[backend_id] = _Subscription(settings, source, task)

    def _end(self, backend_id: str) -> None:
        subscription = self._subscriptions.pop(backend_id)
        self._feed.close(subscription.source)
        subscription.task.cancel()

    def _begin_anew(self, backend_id: str) -> None:
        """A backend was forgotten, as when it is down: what it holds is read from the beginning once it is back."""
        subscription = self._subscriptions.get(backend_id)
        if subscription is not None:
            counted = subscription.source
            self._end(backend_id)
            self._subscribe(backend_id, subscription.settings)
            fresh = self._subscriptions[backend_id].source
            fresh.num_batches, fresh.num_gaps = counted.num_batches, counted.num_gaps
            fresh.num_malformed, fresh.num_left_out = counted.num_malformed, counted.num_left_out


class KvRoutes:
    """Those pools of a gateway that are routed by KV events, and the thread on which these are received."""

    def __init__(self) -> None:
        self._routes: dict[str, KvRouting] = {}
        self._side: SideLoop | None = None

    def set_route(self, model: ModelSettings, policy: RoutingPolicy) -> KvRouting | None:
        """Begin anew with a pool; None if its policy does not go by KV events."""
        self.remove(model.name)
        if not isinstance(policy.prefix_matcher, KvEventIndex) or model.tokenizer is None:
            return None
        if self._side is None:
            self._side = SideLoop("argosy-kv-events")
            self._side.start()
        route = self._routes[model.name] = KvRouting(model, policy, self._side, PromptTokens(model.tokenizer))
        return route

    def set_backends(self, pool: str, backends: Sequence[BackendSettings]) -> None:
        """As `KvRouting.set_backends`, if the pool has one."""
        if pool in self._routes:
            self._routes[pool].set_backends(backends)

    def remove(self, pool: str) -> None:
        """End what there is of a pool. Idempotent."""
        route = self._routes.pop(pool, None)
        if route is not None:
            route.close()

    def readings(self) -> Iterator[Reading]:
        """For the metrics."""
        for route in self._routes.values():
            yield from route.readings()

    async def close(self) -> None:
        """End everything, and the thread."""
        for pool in list(self._routes):
            self.remove(pool)
        side, self._side = self._side, None
        if side is not None:
            await asyncio.to_thread(side.stop)


def _on_end(task: concurrent.futures.Future[None], backend_id: str, sink: _LoopSink) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log_event(_LOGGER, logging.ERROR, "a subscription to KV events failed", backend=backend_id, reason=repr(error))
        sink.fail()


def _make_subscriber(backend_id: str, settings: KvEventSettings, sink: _LoopSink) -> KvSubscriber:
    from argosy.fleet.gateway.kv_subscriber import KvSubscriber

    return KvSubscriber(backend_id, settings.endpoint, sink, replay_endpoint=settings.replay_endpoint, topic=settings.topic)
