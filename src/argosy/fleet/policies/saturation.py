"""How much more a pool of replicas can take, and how full it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from argosy.errors import ConfigError
from argosy.fleet.policies.routing.replica_state import ReplicaState


@dataclass(frozen=True, slots=True)
class SaturationSettings:
    """When a replica is full.

    Attributes:
        max_in_flight: requests that run or wait on a replica which has no `max_in_flight` of its own; None is no limit.
        max_waiting: requests that its engine says are waiting. A few keep the engine busy; more of them had better wait at
            the gateway, where they can still go elsewhere or give way.
        kv_threshold: part of its KV pool that is held; above it engines begin to preempt.
    """

    max_in_flight: int | None = None
    max_waiting: int = 8
    kv_threshold: float = 0.9

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        if self.max_waiting < 1 or (self.max_in_flight is not None and self.max_in_flight < 1):
            raise ConfigError("max_in_flight and max_waiting of a replica must be at least 1")
        if not 0.0 < self.kv_threshold <= 1.0:
            raise ConfigError(f"kv_threshold must be within (0, 1], got {self.kv_threshold}")


@dataclass(frozen=True, slots=True)
class Room:
    """What a pool can take.

    Attributes:
        num_ready: replicas that take requests.
        total_requests, total_tokens: what it holds when full; infinite where no bound is known.
        free_requests, free_tokens: what it takes before it is full; may be negative.
        saturation: 0 idle, 1 full; more when others have sent more than is thought to fit.
    """

    num_ready: int
    total_requests: float
    free_requests: float
    total_tokens: float
    free_tokens: float
    saturation: float = 0.0

    def fits(self, tokens: int, *, leaving: float = 0.0) -> bool:
        """Whether a request of `tokens` fits and leaves the part `leaving` of the total free, in whole requests.

        One larger than the whole pool fits when nothing else is there: the engine then says what it thinks of it.
        """
        if self.num_ready == 0 or self.free_requests < 1.0:
            return False
        if self.total_requests < math.inf and self.free_requests - 1.0 < math.floor(leaving * self.total_requests):
            return False
        if self.total_tokens == math.inf or self.free_tokens >= self.total_tokens:
            return True
        return self.free_tokens - tokens >= leaving * self.total_tokens

    def share(self, num_requests: int, tokens: int) -> float:
        """The part of the total that so many requests and tokens take, by the scarcer of the two."""
        return max(_part(num_requests, self.total_requests), _part(tokens, self.total_tokens))

    def less(self, tokens: int) -> Room:
        """What is left after a request of `tokens`."""
        return Room(
            self.num_ready,
            self.total_requests,
            self.free_requests - 1.0,
            self.total_tokens,
            self.free_tokens - tokens,
            self.saturation + self.share(1, tokens),
        )

    def more(self, num_requests: int, tokens: int) -> Room:
        """What is left after so many requests with so many tokens together have ended."""
        return Room(
            self.num_ready,
            self.total_requests,
            self.free_requests + num_requests,
            self.total_tokens,
            self.free_tokens + tokens,
            max(0.0, self.saturation - self.share(num_requests, tokens)),
        )


def pool_room(
    replicas: Sequence[ReplicaState],
    settings: SaturationSettings,
    *,
    undispatched_requests: int = 0,
    undispatched_tokens: int = 0,
) -> Room:
    """The room of those of `replicas` that take requests.

    A replica is as full as the fuller of its queue and its KV pool (and of its requests in flight), by its last report
    corrected by what was booked since. What was granted a place but is not booked on a replica yet comes on top: without
    it a burst sees the same free room many times over.
    """
    ready = [replica for replica in replicas if replica.takes_requests]
    total_requests = free_requests = total_tokens = free_tokens = saturation = 0.0
    for replica in ready:
        limit, num_requests = _request_limit(replica, settings), replica.num_requests
        capacity, kv_part = _token_limit(replica, settings), _kv_part(replica, settings)
        full = _fullest(num_requests / limit, kv_part, replica, settings)
        total_requests += limit
        total_tokens += capacity
        saturation += full / len(ready)
        if full < 1.0:
            free_requests += min(limit - num_requests, _free_places(replica, settings))
            free_tokens += capacity if capacity == math.inf else capacity * (1.0 - kv_part)
    undispatched = max(_part(undispatched_requests, total_requests), _part(undispatched_tokens, total_tokens))
    return Room(
        len(ready),
        total_requests,
        free_requests - undispatched_requests,
        total_tokens,
        free_tokens - undispatched_tokens,
        saturation + undispatched,
    )


def replica_saturation(replica: ReplicaState, settings: SaturationSettings) -> float:
    """How full one replica is; 1 is full."""
    in_flight = replica.num_requests / _request_limit(replica, settings)
    return _fullest(in_flight, _kv_part(replica, settings), replica, settings)


def _fullest(in_flight: float, kv_part: float, replica: ReplicaState, settings: SaturationSettings) -> float:
    """The fullest of a replica's requests in flight, its KV pool and its engine's queue."""
    report = replica.report
    full = in_flight if in_flight > kv_part else kv_part
    return full if report is None else max(full, report.num_waiting / settings.max_waiting)


def _kv_part(replica: ReplicaState, settings: SaturationSettings) -> float:
    if replica.report is None and replica.info.kv_capacity_tokens is None:
        return 0.0
    return replica.kv_fraction / settings.kv_threshold


def _request_limit(replica: ReplicaState, settings: SaturationSettings) -> float:
    return replica.info.max_in_flight or settings.max_in_flight or math.inf


def _token_limit(replica: ReplicaState, settings: SaturationSettings) -> float:
    capacity = replica.info.kv_capacity_tokens
    return math.inf if capacity is None else capacity * settings.kv_threshold


def _free_places(replica: ReplicaState, settings: SaturationSettings) -> float:
    """An engine that lets requests wait has no free seat to run more: what was booked since the report waits too."""
    report = replica.report
    if report is None or report.num_waiting == 0:
        return math.inf
    booked_since = replica.num_requests - report.num_running - report.num_waiting
    return max(0.0, settings.max_waiting - report.num_waiting - max(0, booked_since))


def _part(amount: float, total: float) -> float:
    if total == math.inf or amount <= 0:
        return 0.0
    return amount / total if total > 0 else math.inf
