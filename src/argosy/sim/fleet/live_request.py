"""A request on its way through a fleet, and what can become of one attempt to serve it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Protocol

from argosy.sim.event_loop import EventHandle
from argosy.sim.outcome import RequestOutcome, StepSpan
from argosy.sim.replica import Replica
from argosy.sim.workload.trace_request import TraceRequest


class Stage(enum.StrEnum):
    """Where a request is. It is in exactly one of these until it ends."""

    WAITING = "waiting"
    IN_FLIGHT = "in_flight"
    BACKING_OFF = "backing_off"


class Failure(enum.StrEnum):
    """Why an attempt failed.

    REFUSED: the replica takes no requests. BUSY: its queue is full. LOST: it went down with the request. SILENT: no answer
    in time. INVALID: it can never be served, so that another attempt is pointless.
    """

    REFUSED = "refused"
    BUSY = "busy"
    LOST = "lost"
    SILENT = "silent"
    INVALID = "invalid"


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request that has not ended. Mutated by the fleet; a dispatcher reads it.

    Attributes:
        submitted_s: when the fleet got it.
        num_attempts: dispatched so far.
        tried: replicas that failed it.
        first_token_s: when its client saw the first token, or None.
        timer: its client's patience, or None.
        retry: the next attempt, while backing off.
    """

    request: TraceRequest
    submitted_s: float
    stage: Stage = Stage.WAITING
    num_attempts: int = 0
    tried: set[str] = field(default_factory=set)
    first_token_s: float | None = None
    timer: EventHandle | None = None
    retry: EventHandle | None = None


class AttemptSink(Protocol):
    """Whom a dispatcher tells how its attempts fare."""

    def on_first_token(self, live: LiveRequest, replica: Replica) -> None:
        """The client gets its first token at this moment."""
        ...

    def on_answered(self, live: LiveRequest, outcome: RequestOutcome) -> None:
        """The attempt gave the whole answer."""
        ...

    def on_failed(self, live: LiveRequest, failure: Failure, replica_name: str, outcome: RequestOutcome | None) -> None:
        """The attempt failed at a replica; `outcome` if that had taken it."""
        ...

    def on_steps(self, replica: Replica, span: StepSpan) -> None:
        """A replica computed."""
        ...

    def serve_waiting(self) -> None:
        """A replica begins to take requests: dispatch what waits for one."""
        ...


class Dispatcher(Protocol):
    """Turns one attempt into work for replicas. Holds at most one attempt of a request at a time."""

    def bind(self, sink: AttemptSink) -> None:
        """Tell `sink` from here on. Called once, before anything is dispatched."""
        ...

    def dispatch(self, live: LiveRequest) -> None:
        """Choose replicas and begin. May tell of the attempt's failure before it returns.

        Raises:
            NoReplicaAvailable: nobody can take it at this moment; nothing has begun.
        """
        ...

    def cancel(self, live: LiveRequest) -> RequestOutcome | None:
        """End the attempt wherever it is, and give back all it holds; what a replica says of it, if one had taken it."""
        ...

    @property
    def num_in_flight(self) -> int:
        """Attempts that have not ended."""
        ...

    def check_invariants(self) -> None:
        """Raise `InvariantViolated` if bookings and attempts do not match."""
        ...
