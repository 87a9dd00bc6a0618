"""What an autoscaler is told, and what it answers."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class FleetSignals:
    """A fleet at one moment.

    Attributes:
        now_s: rises from call to call.
        num_ready: replicas that serve.
        num_starting: replicas that were asked for and do not serve yet.
        utilisation: load over capacity, the mean of the ready replicas; above 1 when they are behind.
        num_waiting: requests that wait for a replica or in one's queue.
        num_running: requests being served.
        arrivals_per_s: requests that arrived per second since the last call.
        p99_latency_s: of requests since the last call, the wait in queues included; None if there were none.
    """

    now_s: float
    num_ready: int
    num_starting: int = 0
    utilisation: float = 0.0
    num_waiting: int = 0
    num_running: int = 0
    arrivals_per_s: float = 0.0
    p99_latency_s: float | None = None

    @property
    def num_replicas(self) -> int:
        """Ready and starting: what was asked for so far."""
        return self.num_ready + self.num_starting


class ScalingPolicy(Protocol):
    """Says how many replicas are wanted. May learn from the signals; does not look at what is starting."""

    def wanted(self, signals: FleetSignals) -> float:
        """Replicas wanted, not rounded. Called once per decision, in order of time."""
        ...


class ScaleReason(enum.StrEnum):
    """Why the number of replicas changes or stays."""

    STEADY = "steady"
    UP = "up"
    DOWN = "down"
    UP_HELD = "up_held"
    DOWN_HELD = "down_held"
    TO_ZERO = "to_zero"
    FROM_ZERO = "from_zero"


@dataclass(frozen=True, slots=True)
class ScaleDecision:
    """`num_replicas` is what there should be, ready and starting together; `wanted` is what the policy said."""

    num_replicas: int
    wanted: float
    reason: ScaleReason
