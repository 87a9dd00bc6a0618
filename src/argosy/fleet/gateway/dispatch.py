"""One dispatcher per pool, behind the one face that the pipeline knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from argosy.fleet.gateway import config_operations
from argosy.fleet.gateway.dispatcher import PoolDispatcher, QueueTicket
from argosy.fleet.gateway.exchange import Exchange
from argosy.fleet.gateway.stages import Route
from argosy.fleet.policies.fair_queue import FairQueue
from argosy.fleet.policies.outcomes import Outcome, RequestDropped
from argosy.fleet.policies.priorities import ClassSettings, Priority, QueueSettings, priority_for
from argosy.fleet.policies.queued_request import QueuedRequest
from argosy.fleet.policies.routing.replica_state import ReplicaState
from argosy.fleet.policies.saturation import Room, SaturationSettings, pool_room

PRIORITY_HEADERS = (b"x-argosy-priority", b"x-llm-d-inference-objective", b"x-gateway-inference-objective")
_NEVER_WAITS_TTL_S = 0.001


class Pools(Protocol):
    """What the dispatcher asks of the backends."""

    def replicas(self, pool: str) -> Sequence[ReplicaState]:
        """What the router sees of a pool."""
        ...

    def refresh(self, pool: str, now_s: float) -> None:
        """Bring the pool's replicas up to date."""
        ...

    def will_serve(self, pool: str, now_s: float) -> bool:
        """Whether to wait for a pool that could not take a request at this moment, as while a model loads."""
        ...

    def refusal(self, pool: str, now_s: float) -> RequestDropped:
        """Why a pool cannot take a request."""
        ...


class PoolDispatchers:
    """A `Dispatcher` of the pipeline. Pools are those of the configuration, so there are no more queues than models.

    A request names its class in `x-argosy-priority`, or in llm-d's `x-llm-d-inference-objective` (or the older name of that
    header). It may ask for its key's class or a lower one.
    """

    def __init__(
        self,
        pools: Pools,
        now_s: Callable[[], float],
        queue: QueueSettings | None = None,
        saturation: SaturationSettings | None = None,
    ) -> None:
        self._pools = pools
        self._now_s = now_s
        self._queue = queue if queue is not None else QueueSettings()
        self._saturation = saturation if saturation is not None else SaturationSettings()
        self._of: dict[str, PoolDispatcher] = {}

    async def enter(self, exchange: Exchange, route: Route) -> QueueTicket:
        """Wait for a place in the route's pool.

        Raises:
            InvalidRequest: the request names a priority that there is not.
            RequestDropped: the queue is full, the request waited too long, or was displaced.
        """
        request = self._request(exchange)
        try:
            ticket = await self.of(route.pool).enter(request)
        except asyncio.CancelledError:
            exchange.outcome = Outcome.EVICTED_CLIENT_GONE
            raise
        except RequestDropped as error:
            if error.outcome is not Outcome.REJECTED_NO_BACKEND:
                raise
            raise self._pools.refusal(route.pool, self._now_s()) from None
        if exchange.end_early is not None:
            ticket.on_preempt(exchange.end_early)
        return ticket

    def of(self, pool: str) -> PoolDispatcher:
        """The dispatcher of one pool, made when it is first asked for."""
        dispatcher = self._of.get(pool)
        if dispatcher is None:
            dispatcher = self._of[pool] = PoolDispatcher(
                FairQueue(self._queue),
                self._now_s,
                lambda num, tokens, now_s: self._room(pool, num, tokens, now_s),
                may_wait=lambda now_s: self._pools.will_serve(pool, now_s),
            )
        return dispatcher

    def saturation(self, pool: str) -> float:
        """How full a pool is, 1 is full; what the soft quotas of the ledger go by."""
        return self.of(pool).saturation

    def poke(self, pool: str) -> None:
        """The room of a pool may have changed."""
        if pool in self._of:
            self._of[pool].poke()

    def keep_only(self, pools: Sequence[str]) -> None:
        """Close the queues of pools that the configuration no longer has."""
        for pool in [pool for pool in self._of if pool not in pools]:
            self._of.pop(pool).close()

    def close(self) -> None:
        """Refuse what comes and evict what waits, in every pool."""
        for dispatcher in self._of.values():
            dispatcher.close()

    def check_invariants(self) -> None:
        """As of every pool."""
        for dispatcher in self._of.values():
            dispatcher.check_invariants()

    def _request(self, exchange: Exchange) -> QueuedRequest:
        caller = exchange.caller
        highest = priority_for(caller.priority or None, default=Priority.STANDARD, highest=Priority.CRITICAL)
        asked = next((value for name in PRIORITY_HEADERS if (value := exchange.headers.get(name))), None)
        return QueuedRequest(
            exchange.exchange_id,
            caller.tenant,
            priority_for(None if asked is None else asked.decode("latin-1"), default=highest, highest=highest),
            exchange.prompt_tokens + exchange.expected_output_tokens,
            size_bytes=len(exchange.body),
            weight=caller.weight,
            deadline_s=exchange.deadline_s,
        )

    def _room(self, pool: str, num_in_flight: int, in_flight_tokens: int, now_s: float) -> Room:
        """What was let go and is not booked on a backend (yet, or between two attempts) counts beside what is.

        Its tokens are taken to be average: those booked are fewer than those reserved where a prefix is cached.
        """
        self._pools.refresh(pool, now_s)
        replicas = self._pools.replicas(pool)
        num_booked = sum([replica.booked.requests for replica in replicas])
        num_unbooked = max(0, num_in_flight - num_booked)
        unbooked_tokens = in_flight_tokens * num_unbooked // num_in_flight if num_in_flight else 0
        return pool_room(replicas, self._saturation, undispatched_requests=num_unbooked, undispatched_tokens=unbooked_tokens)


def queue_settings(
    config: config_operations.QueueSettings, *, connections_per_backend: int | None = None, has_one_tenant: bool = False
) -> tuple[QueueSettings, SaturationSettings]:
    """The policies' settings from those of the configuration file. A `ttl_s` of 0 becomes a millisecond.

    A backend without a limit of its own takes as many requests as there may be connections to it.
    """
    defaults = QueueSettings()
    classes = {
        priority: ClassSettings(
            given.max_requests,
            given.max_bytes,
            max(given.ttl_s, _NEVER_WAITS_TTL_S),
            defaults.of(priority).guaranteed_share,
        )
        for priority, given in (
            (Priority.CRITICAL, config.critical),
            (Priority.STANDARD, config.standard),
            (Priority.BEST_EFFORT, config.best_effort),
        )
    }
    queue = QueueSettings(
        classes[Priority.CRITICAL],
        classes[Priority.STANDARD],
        classes[Priority.BEST_EFFORT],
        max_requests=sum(each.max_requests for each in classes.values()),
        max_bytes=sum(each.max_bytes for each in classes.values()),
        keeps_headroom_alone=not has_one_tenant,
    )
    max_in_flight = config.max_in_flight or connections_per_backend
    return queue, SaturationSettings(max_in_flight, config.queue_threshold, config.kv_threshold)
