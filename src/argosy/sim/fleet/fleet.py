"""A request's life in a fleet: dispatched, waiting for a replica, tried again, and ended exactly once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Protocol

from argosy.engine.core.invariants import InvariantViolated
from argosy.errors import NoReplicaAvailable, SimulationError
from argosy.fleet.policies.retries import RetryBudget, RetryPolicy
from argosy.sim.event_loop import EventLoop
from argosy.sim.fleet.live_request import Dispatcher, Failure, LiveRequest, Stage
from argosy.sim.outcome import Outcome, RequestOutcome, StepSpan
from argosy.sim.replica import Replica
from argosy.sim.workload.trace_request import TraceRequest


class FleetListener(Protocol):
    """Hears what a fleet does. Called from within the event loop."""

    def on_first_token(self, replica: Replica, request: TraceRequest, now_s: float) -> None:
        """A client gets the first token of its answer."""
        ...

    def on_outcome(self, outcome: RequestOutcome, num_attempts: int) -> None:
        """A request has ended, once for each; `outcome.replica` is "" if none ever took it. May submit others."""
        ...

    def on_steps(self, replica: Replica, span: StepSpan) -> None:
        """A replica computed."""
        ...


@dataclass(slots=True)
class FleetCounters:
    """Requests since the start. offered = finished + timed_out + failed + alive; retries are counted beside."""

    offered: int = 0
    finished: int = 0
    timed_out: int = 0
    failed: int = 0
    retries: int = 0

    @property
    def ended(self) -> int:
        """Requests that have an outcome."""
        return self.finished + self.timed_out + self.failed


class Fleet:
    """Takes requests and sees each of them to an end, on `loop`.

    What is decided is decided by policies: the dispatcher's router, and `retry` with its budget. A client that gives up
    (`TraceRequest.timeout_s`) ends its request in any stage. A request for which there is no replica waits for one, in order
    of arrival, so that a fleet that starts from zero serves the request that woke it.
    """

    def __init__(
        self,
        loop: EventLoop,
        dispatcher: Dispatcher,
        *,
        rng: Random,
        retry: RetryPolicy | None = None,
        budget: RetryBudget | None = None,
        listener: FleetListener | None = None,
    ) -> None:
        """Nothing is alive yet. `rng` draws the waits before retries; without `retry` there are none."""
        self.counters = FleetCounters()
        self.listener = listener
        self._loop = loop
        self._dispatcher = dispatcher
        self._rng = rng
        self._retry = RetryPolicy(max_retries=0) if retry is None else retry
        self._budget = RetryBudget() if budget is None else budget
        self._alive: dict[str, LiveRequest] = {}
        self._waiting: dict[LiveRequest, None] = {}
        self._on_waiting: list[Callable[[], None]] = []
        dispatcher.bind(self)

    @property
    def num_alive(self) -> int:
        """Requests that have not ended."""
        return len(self._alive)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a replica to be there."""
        return len(self._waiting)

    def live_requests(self) -> Iterator[LiveRequest]:
        """Those that have not ended, in order of submission."""
        return iter(self._alive.values())

    def on_waiting(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever a request finds no replica, so that one can be started for it."""
        self._on_waiting.append(listener)

    def submit(self, request: TraceRequest) -> None:
        """Take a request whose time has come.

        Raises:
            SimulationError: one with its id is alive.
        """
        if request.request_id in self._alive:
            raise SimulationError(f"request {request.request_id!r} is in the fleet already: give each its own id")
        now_s = self._loop.now_s()
        live = LiveRequest(request, now_s)
        self.counters.offered += 1
        self._budget.on_request()
        self._alive[request.request_id] = live
        if request.timeout_s is not None:
            live.timer = self._loop.at(max(now_s, request.arrival_s + request.timeout_s), lambda: self._give_up(live))
        self._dispatch(live)

    def serve_waiting(self) -> None:
        """As `AttemptSink`."""
        for live in list(self._waiting):
            if live in self._waiting:
                self._dispatch(live)

    def on_first_token(self, live: LiveRequest, replica: Replica) -> None:
        """As `AttemptSink`."""
        live.first_token_s = self._loop.now_s()
        if self.listener is not None:
            self.listener.on_first_token(replica, live.request, live.first_token_s)

    def on_answered(self, live: LiveRequest, outcome: RequestOutcome) -> None:
        """As `AttemptSink`."""
        self._end(live, outcome)

    def on_failed(self, live: LiveRequest, failure: Failure, replica_name: str, outcome: RequestOutcome | None) -> None:
        """As `AttemptSink`: try again if the retry policy says so."""
        live.tried.add(replica_name)
        wait_s = None if failure is Failure.INVALID else self._wait_before_retry_s(live)
        if wait_s is None:
            self._end(live, self._outcome(live, Outcome.FAILED, outcome))
            return
        self.counters.retries += 1
        live.stage = Stage.BACKING_OFF
        live.retry = self._loop.after(wait_s, lambda: self._dispatch(live))

    def on_steps(self, replica: Replica, span: StepSpan) -> None:
        """As `AttemptSink`."""
        if self.listener is not None:
            self.listener.on_steps(replica, span)

    def check_invariants(self) -> None:
        """Requests are conserved, each is in one stage, and attempts match it. O(everything alive)."""
        stages = [live.stage for live in self._alive.values()]
        in_flight = stages.count(Stage.IN_FLIGHT)
        for holds, what in (
            (
                self.counters.offered == self.counters.ended + len(self._alive),
                f"offered = ended + alive: {self.counters}, {len(self._alive)} alive",
            ),
            (stages.count(Stage.WAITING) == len(self._waiting), "who waits is in the queue, and nobody else"),
            (in_flight == self._dispatcher.num_in_flight, "who is in flight has one attempt"),
        ):
            if not holds:
                raise InvariantViolated(what)
        self._dispatcher.check_invariants()

    def _dispatch(self, live: LiveRequest) -> None:
        live.retry = None
        live.stage = Stage.IN_FLIGHT
        live.num_attempts += 1
        try:
            self._dispatcher.dispatch(live)
        except NoReplicaAvailable:
            live.num_attempts -= 1
            live.stage = Stage.WAITING
            if live not in self._waiting:
                self._waiting[live] = None
                for listener in self._on_waiting:
                    listener()
        else:
            self._waiting.pop(live, None)

    def _wait_before_retry_s(self, live: LiveRequest) -> float | None:
        left_s = None
        if live.request.timeout_s is not None:
            left_s = live.request.arrival_s + live.request.timeout_s - self._loop.now_s()
        return self._retry.wait_s(
            live.num_attempts, self._budget, self._rng, first_byte_sent=live.first_token_s is not None, left_s=left_s
        )

    def _give_up(self, live: LiveRequest) -> None:
        said = self._dispatcher.cancel(live) if live.stage is Stage.IN_FLIGHT else None
        self._waiting.pop(live, None)
        if live.retry is not None:
            live.retry.cancel()
        self._end(live, self._outcome(live, Outcome.TIMED_OUT, said))

    def _end(self, live: LiveRequest, outcome: RequestOutcome) -> None:
        if live.timer is not None:
            live.timer.cancel()
        del self._alive[live.request.request_id]
        counters = self.counters
        if outcome.outcome is Outcome.FINISHED:
            counters.finished += 1
        elif outcome.outcome is Outcome.TIMED_OUT:
            counters.timed_out += 1
        else:
            counters.failed += 1
        if self.listener is not None:
            self.listener.on_outcome(outcome, live.num_attempts)

    def _outcome(self, live: LiveRequest, outcome: Outcome, said: RequestOutcome | None) -> RequestOutcome:
        """What a replica said, under the fleet's outcome; without a replica, a request that never began."""
        now_s = self._loop.now_s()
        if said is not None:
            return dataclasses.replace(said, outcome=outcome, finished_s=now_s)
        return RequestOutcome(
            request=live.request,
            replica="",
            outcome=outcome,
            submitted_s=live.submitted_s,
            first_scheduled_s=None,
            first_token_s=live.first_token_s,
            finished_s=now_s,
            num_output_tokens=0,
            num_cached_tokens=0,
            preemptions=0,
        )
