"""One submission of a request to one replica, over a network that can fail."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from argosy.engine.core.invariants import InvariantViolated
from argosy.errors import EngineUnavailable, InvalidRequest, QueueFull
from argosy.sim.event_loop import EventHandle, EventLoop
from argosy.sim.fleet.live_request import Failure
from argosy.sim.fleet.pool import Member, Pool
from argosy.sim.outcome import Outcome, RequestOutcome, StepSpan
from argosy.sim.replica import Replica
from argosy.sim.workload.trace_request import TraceRequest


class LegOwner(Protocol):
    """Hears how a leg fares; never from within `Legs.start` or `Legs.cancel`."""

    def on_leg_token(self, leg: Leg) -> None:
        """The first token has come."""
        ...

    def on_leg_end(self, leg: Leg, failure: Failure | None, outcome: RequestOutcome | None) -> None:
        """The leg has ended: without a `failure` it has the whole answer; `outcome` if a replica had taken it."""
        ...

    def on_leg_refused(self, leg: Leg) -> None:
        """No connection came about, which tells of the replica and not of the request. `on_leg_end` follows."""
        ...


@dataclass(slots=True, eq=False)
class Leg:
    """A submission that has not ended.

    Attributes:
        at_replica: whether the replica has it.
        said: what the replica said at the end, until that has been told.
        first_token_s: when the first token came through, or None.
    """

    request: TraceRequest
    member: Member
    owner: LegOwner
    at_replica: bool = False
    said: RequestOutcome | None = None
    first_token_s: float | None = None
    cancelled: bool = False
    timer: EventHandle | None = None


class Legs:
    """All submissions to the replicas of one pool. Is the listener of those replicas.

    During a partition, what a replica has to say is withheld until it is over and counts from then, and a submission fails
    after `connect_s` without having reached it. When a client gives up, both ends close the connection.
    """

    def __init__(
        self, loop: EventLoop, pool: Pool, *, connect_s: float, on_steps: Callable[[Replica, StepSpan], None]
    ) -> None:
        self._loop = loop
        self._pool = pool
        self._connect_s = connect_s
        self._on_steps = on_steps
        self._legs: dict[str, Leg] = {}

    def __len__(self) -> int:
        return len(self._legs)

    def start(self, request: TraceRequest, member: Member, owner: LegOwner, *, transferred_tokens: int = 0) -> Leg:
        """Submit `request` to `member`. Whatever comes of it, `owner` hears later."""
        leg = Leg(request, member, owner)
        assert request.request_id not in self._legs, "a request has one leg at a time in a pool"
        self._legs[request.request_id] = leg
        member.replica.listener = self
        if not member.reachable:
            leg.timer = self._loop.after(self._connect_s, lambda: self._no_connection(leg, Failure.SILENT))
            return leg
        try:
            member.replica.submit(request, transferred_tokens=transferred_tokens)
            leg.at_replica = True
        except EngineUnavailable:
            leg.timer = self._loop.after(0.0, lambda: self._no_connection(leg, Failure.REFUSED))
        except QueueFull:
            leg.timer = self._loop.after(0.0, lambda: self._end(leg, Failure.BUSY, None))
        except InvalidRequest:
            leg.timer = self._loop.after(0.0, lambda: self._end(leg, Failure.INVALID, None))
        return leg

    def cancel(self, leg: Leg) -> RequestOutcome | None:
        """End a leg; what the replica says of it, if it had it. The owner hears nothing more."""
        leg.cancelled = True
        if leg.timer is not None:
            leg.timer.cancel()
        if leg.at_replica:
            leg.member.replica.abort(leg.request.request_id)
        del self._legs[leg.request.request_id]
        return leg.said

    def on_first_token(self, replica: Replica, request: TraceRequest, now_s: float) -> None:  # noqa: ARG002
        """As `ReplicaListener`."""
        leg = self._legs[request.request_id]
        self._tell(leg, lambda: self._token(leg))

    def on_finish(self, replica: Replica, outcome: RequestOutcome) -> None:  # noqa: ARG002
        """As `ReplicaListener`."""
        leg = self._legs[outcome.request.request_id]
        leg.at_replica, leg.said = False, outcome
        failure = None if outcome.outcome is Outcome.FINISHED else Failure.LOST
        self._tell(leg, lambda: self._end(leg, failure, outcome))

    def on_steps(self, replica: Replica, span: StepSpan) -> None:
        """As `ReplicaListener`."""
        self._on_steps(replica, span)

    def check_invariants(self) -> None:
        """Every request that a replica has is the request of a leg."""
        held = sum([member.replica.num_in_flight for member in self._pool])
        submitted = sum([leg.at_replica for leg in self._legs.values()])
        if held != submitted:
            raise InvariantViolated(f"requests at replicas equal legs: {held} held, {submitted} submitted")

    def _tell(self, leg: Leg, message: Callable[[], None]) -> None:
        if leg.cancelled:
            return
        if leg.member.reachable:
            message()
        else:
            leg.member.withheld.append(lambda: None if leg.cancelled else message())

    def _token(self, leg: Leg) -> None:
        leg.first_token_s = self._loop.now_s()
        leg.owner.on_leg_token(leg)

    def _no_connection(self, leg: Leg, failure: Failure) -> None:
        leg.owner.on_leg_refused(leg)
        self._end(leg, failure, None)

    def _end(self, leg: Leg, failure: Failure | None, outcome: RequestOutcome | None) -> None:
        del self._legs[leg.request.request_id]
        if outcome is not None and outcome.finished_s < self._loop.now_s():
            outcome = dataclasses.replace(outcome, first_token_s=leg.first_token_s, finished_s=self._loop.now_s())
        leg.owner.on_leg_end(leg, failure, outcome)
