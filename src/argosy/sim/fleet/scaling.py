"""An autoscaler acting on a pool in simulated time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from argosy.errors import ConfigError
from argosy.fleet.policies.autoscaling.autoscaler import Autoscaler
from argosy.fleet.policies.autoscaling.signals import FleetSignals, ScaleDecision
from argosy.fleet.policies.autoscaling.victims import replicas_to_remove
from argosy.fleet.policies.routing.replica_state import ReplicaInfo
from argosy.sim.event_loop import EventLoop
from argosy.sim.fleet.fleet import Fleet
from argosy.sim.fleet.periodic import Periodic
from argosy.sim.fleet.pool import Pool
from argosy.sim.outcome import RequestOutcome
from argosy.sim.replica import Replica

ReplicaFactory = Callable[[str], tuple[Replica, ReplicaInfo]]
"""Makes a replica of that name, and says what it is."""


@dataclass(frozen=True, slots=True)
class ScalingDriver:
    """How an autoscaler is connected.

    Attributes:
        every_s: from one decision to the next.
        cold_start_s: from asking for a replica to its serving: provision, pull, load, compile, warm up.
        concurrency: requests in flight that fill one replica, for the utilisation signal.
    """

    every_s: float
    cold_start_s: float
    concurrency: float

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        if not (self.every_s > 0.0 and self.cold_start_s >= 0.0 and self.concurrency > 0.0):
            raise ConfigError(
                "an autoscaler needs every_s and concurrency above 0 and a cold_start_s from 0 up, got "
                f"{self.every_s}, {self.concurrency} and {self.cold_start_s}"
            )


class AutoscaledPool:
    """Asks `autoscaler` every so often how many replicas there should be, and adds or drains members of `pool`.

    Attributes:
        on_decision: called with the time in seconds and each decision, for records; may be replaced.
    """

    def __init__(
        self,
        loop: EventLoop,
        pool: Pool,
        fleet: Fleet,
        autoscaler: Autoscaler,
        make: ReplicaFactory,
        driver: ScalingDriver,
    ) -> None:
        """The first decision falls at this moment."""
        self.on_decision: Callable[[float, ScaleDecision], None] = lambda now_s, decision: None  # noqa: ARG005
        self._loop = loop
        self._pool = pool
        self._fleet = fleet
        self._autoscaler = autoscaler
        self._make = make
        self._driver = driver
        self._num_added = 0
        self._before = (loop.now_s(), fleet.counters.offered)
        self._latencies_s: list[float] = []
        self.periodic = Periodic(loop, driver.every_s, self.decide)
        fleet.on_waiting(self._wake)

    def on_outcome(self, outcome: RequestOutcome) -> None:
        """To be told of every outcome, for the latency signal."""
        self._latencies_s.append(outcome.e2e_s)

    def signals(self) -> FleetSignals:
        """The fleet at this moment; rates and latencies are since the last decision."""
        now_s, ready = self._loop.now_s(), self._pool.ready
        in_flight = sum([one.state.num_requests for one in ready])
        waiting = self._fleet.num_waiting + sum([one.replica.scheduler.num_waiting_requests for one in ready])
        since_s, offered = self._before
        elapsed_s = now_s - since_s
        latencies_s = sorted(self._latencies_s)
        return FleetSignals(
            now_s=now_s,
            num_ready=len(ready),
            num_starting=len(self._pool.starting),
            utilisation=in_flight / (len(ready) * self._driver.concurrency) if ready else 0.0,
            num_waiting=waiting,
            num_running=max(0, in_flight + self._fleet.num_waiting - waiting),
            arrivals_per_s=(self._fleet.counters.offered - offered) / elapsed_s if elapsed_s > 0.0 else 0.0,
            p99_latency_s=latencies_s[math.ceil(0.99 * len(latencies_s)) - 1] if latencies_s else None,
        )

    def decide(self) -> None:
        """Ask and act at this moment."""
        signals = self.signals()
        self._before = (signals.now_s, self._fleet.counters.offered)
        self._latencies_s.clear()
        decision = self._autoscaler.decide(signals)
        self.on_decision(signals.now_s, decision)
        change = decision.num_replicas - signals.num_replicas
        for _ in range(change):
            name = f"{self._pool.name}+{self._num_added}"
            self._num_added += 1
            replica, info = self._make(name)
            self._pool.add(replica, info, cold_start_s=self._driver.cold_start_s)
        if change < 0:
            starting = [one.state for one in self._pool.starting]
            ready = [one.state for one in self._pool.ready]
            for state in replicas_to_remove(starting, ready, -change):
                self._pool.remove(self._pool.of(state))

    def _wake(self) -> None:
        """A request found no replica at all: do not let it wait for the next decision."""
        if not self._pool.ready and not self._pool.starting:
            self._loop.after(0.0, self._decide_if_empty)

    def _decide_if_empty(self) -> None:
        if not self._pool.ready and not self._pool.starting and self._fleet.num_waiting:
            self.decide()
