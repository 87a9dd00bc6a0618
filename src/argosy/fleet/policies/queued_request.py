"""A request as the queue sees it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from argosy.errors import ConfigError
from argosy.fleet.policies.priorities import Priority


class QueueState(Enum):
    """Where a request is between its offer and its end."""

    OUTSIDE = "outside"
    WAITING = "waiting"
    IN_FLIGHT = "in flight"


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """One request, from offer to settlement. Equal to itself only, whatever id the client gave it.

    Attributes:
        tenant: whose share it comes out of.
        tokens: that it is expected to cost, prompt and output: what is reserved for it while it is in flight.
        size_bytes: held in memory while it waits.
        weight: of its tenant; a tenant of weight 2 gets twice the tokens of one of weight 1.
        ttl_s: longest wait, None for that of its class.
        deadline_s: time at which nobody needs its answer any more, None for never.
        min_service_s: least time that its answer takes. It is given up when it can no longer be whole by the deadline.
        state, arrived_s, expires_s, dispatched_s, is_preemptible, is_yielding: kept by the queue.
    """

    request_id: str
    tenant: str
    priority: Priority
    tokens: int
    size_bytes: int = 0
    weight: float = 1.0
    ttl_s: float | None = None
    deadline_s: float | None = None
    min_service_s: float = 0.0
    state: QueueState = QueueState.OUTSIDE
    arrived_s: float = 0.0
    expires_s: float = math.inf
    dispatched_s: float = 0.0
    is_preemptible: bool = False
    is_yielding: bool = False

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the value that is out of range."""
        if self.tokens < 0 or self.size_bytes < 0:
            raise ConfigError(f"tokens and size_bytes of request {self.request_id!r} must not be negative")
        if not (math.isfinite(self.weight) and self.weight > 0.0):
            raise ConfigError(f"weight of tenant {self.tenant!r} must be above 0, got {self.weight}")

    @property
    def last_start_s(self) -> float:
        """Latest time to start it for its deadline; infinity without one."""
        return math.inf if self.deadline_s is None else self.deadline_s - self.min_service_s
