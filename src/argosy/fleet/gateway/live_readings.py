"""What is read when somebody asks for the metrics: backends, queues, stores, quotas."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from types import MappingProxyType
from typing import TYPE_CHECKING

from argosy.fleet.gateway.backends import BackendPools
from argosy.fleet.gateway.dispatch import PoolDispatchers
from argosy.fleet.gateway.exchange import Exchange
from argosy.fleet.gateway.metrics import Reading
from argosy.fleet.policies.breaker import BreakerState
from argosy.fleet.policies.health_state import HealthPhase
from argosy.fleet.policies.priorities import Priority

if TYPE_CHECKING:
    from argosy.fleet.gateway.store_loss import GuardedLedger
    from argosy.fleet.gateway.store_side import StoreSide

_BREAKER = MappingProxyType({BreakerState.CLOSED: 0.0, BreakerState.OPEN: 1.0, BreakerState.HALF_OPEN: 2.0})
_QUOTA_AGE_S = 60.0


class QuotaUse:
    """How much of their limits the scopes seen in the last minute use, from their leases (an `ExchangeObserver`).

    Args:
        max_scopes: remembered at once; the one seen longest ago is forgotten first.
    """

    def __init__(self, clock: Callable[[], float], max_scopes: int = 1000) -> None:
        self._clock = clock
        self._max_scopes = max_scopes
        self._seen: OrderedDict[tuple[str, str, str], tuple[float, float]] = OrderedDict()

    def started(self, exchange: Exchange) -> None:
        """Nothing."""

    def first_byte(self, exchange: Exchange) -> None:
        """Nothing."""

    def finished(self, exchange: Exchange) -> None:
        """Take in what the lease said when it was granted."""
        lease = exchange.lease
        for status in () if lease is None else (lease.requests, lease.tokens):
            if status is not None and status.limit > 0.0:
                name = (status.scope.kind, status.scope.id, status.dimension.value)
                self._seen[name] = (1.0 - status.remaining / status.limit, exchange.finished_s)
                self._seen.move_to_end(name)
                if len(self._seen) > self._max_scopes:
                    self._seen.popitem(last=False)

    def __call__(self) -> dict[tuple[str, str, str], float]:
        """Part in use by (kind of scope, id, dimension)."""
        oldest_s = self._clock() - _QUOTA_AGE_S
        while self._seen and next(iter(self._seen.values()))[1] < oldest_s:
            self._seen.popitem(last=False)
        return {name: ratio for name, (ratio, _) in self._seen.items()}


def backend_readings(pools: BackendPools, now_s: float) -> Iterator[Reading]:
    """Of every backend."""
    for status in pools.statuses(now_s):
        name = (status.backend_id,)
        ready = status.phase is HealthPhase.READY and not status.draining and status.weight > 0.0
        yield Reading("argosy_gateway_backend_in_flight", name, float(status.in_flight))
        yield Reading("argosy_gateway_backend_ready", name, float(ready and status.breaker is not BreakerState.OPEN))
        yield Reading("argosy_gateway_breaker_state", name, _BREAKER[status.breaker])
        if status.report is not None:
            yield Reading("argosy_gateway_backend_queue", name, float(status.report.num_waiting))
            yield Reading("argosy_gateway_backend_kv_usage_ratio", name, status.report.kv_used_fraction)


def queue_readings(dispatcher: PoolDispatchers, pools: Iterable[str]) -> Iterator[Reading]:
    """Of every pool's queue."""
    waiting = dict.fromkeys(Priority, 0)
    for pool in pools:
        queue = dispatcher.of(pool).queue
        for priority in Priority:
            waiting[priority] += queue.class_queue(priority).num_waiting
        yield Reading("argosy_gateway_saturation_ratio", (pool,), dispatcher.saturation(pool))
    for priority, count in waiting.items():
        yield Reading("argosy_gateway_queue_requests", (priority.label,), float(count))


def store_readings(store: StoreSide) -> Iterator[Reading]:
    """Of the database and the way of usage into it."""
    yield Reading("argosy_gateway_store_up", ("database",), 0.0 if store.is_lost else 1.0)
    yield Reading("argosy_gateway_usage_pending_records", (), float(store.writer.num_open))
    yield Reading("argosy_gateway_usage_lost_total", (), float(store.writer.num_lost))


def ledger_readings(ledger: GuardedLedger) -> Iterator[Reading]:
    """Of the limits shared over Redis."""
    yield Reading("argosy_gateway_store_up", ("redis",), 0.0 if ledger.is_lost else 1.0)
    yield Reading("argosy_gateway_ledger_losses_total", (), float(ledger.num_losses))
    yield Reading("argosy_gateway_ledger_decided_without_total", (), float(ledger.num_decided_without))
    yield Reading("argosy_gateway_ledger_reaped_leases_total", (), float(ledger.num_reaped))
    yield Reading("argosy_gateway_ledger_leases", (), float(ledger.num_leases))
    yield Reading("argosy_gateway_ledger_pending", (), float(ledger.num_pending))
