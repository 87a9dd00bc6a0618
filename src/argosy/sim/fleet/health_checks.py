"""Health probes of a pool's replicas in simulated time."""

from __future__ import annotations

from argosy.fleet.policies.health import HealthCheck, HealthTracker
from argosy.sim.event_loop import EventLoop
from argosy.sim.fleet.periodic import Periodic
from argosy.sim.fleet.pool import Member, Pool
from argosy.sim.replica import ReplicaState as Status


class HealthChecks:
    """Probes every member of `pool` at each interval, and tells the router what the policy makes of it.

    From here on a failure is known no sooner than that. A probe is answered at once or fails after its timeout.
    """

    def __init__(self, loop: EventLoop, pool: Pool, check: HealthCheck) -> None:
        self.check = check
        self._loop = loop
        self._pool = pool
        self._trackers: dict[Member, HealthTracker] = {}
        pool.detects_at_once = False
        self.periodic = Periodic(loop, check.interval_s, self._probe_all)

    def on_refused(self, member: Member) -> None:
        """A request got no connection: one failure, without waiting for the next probe."""
        self._pool.set_healthy(member, self._tracker(member).on_failure())

    def _probe_all(self) -> None:
        members = list(self._pool)
        self._trackers = {member: self._tracker(member) for member in members}
        for member in members:
            if member.replica.state in (Status.STARTING, Status.STOPPED):
                continue
            if member.answers(deep=self.check.deep):
                self._pool.set_healthy(member, self._tracker(member).on_success())
            else:
                self._loop.after(self.check.timeout_s, lambda member=member: self.on_refused(member))  # type: ignore[misc]

    def _tracker(self, member: Member) -> HealthTracker:
        found = self._trackers.get(member)
        if found is None:
            found = self._trackers[member] = HealthTracker(self.check, healthy=member.state.healthy)
        return found
