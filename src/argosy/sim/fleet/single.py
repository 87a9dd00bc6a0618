"""Attempts that one replica serves from beginning to end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from argosy.engine.core.invariants import InvariantViolated
from argosy.errors import ConfigError
from argosy.fleet.policies.routing.router import Decision, Router
from argosy.sim.event_loop import EventHandle, EventLoop
from argosy.sim.fleet.legs import Leg, Legs
from argosy.sim.fleet.live_request import AttemptSink, Failure, LiveRequest
from argosy.sim.fleet.pool import Member, Pool
from argosy.sim.fleet.prompts import RequestDescriber
from argosy.sim.outcome import RequestOutcome


@dataclass(frozen=True, slots=True)
class AttemptTimeouts:
    """How long a gateway waits for a replica, in seconds.

    Attributes:
        connect_s: for a connection, when nothing comes back at all.
        first_token_s: for the first token, from the dispatch; None waits as long as the client does.
    """

    connect_s: float = 5.0
    first_token_s: float | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` unless both are above 0."""
        if not self.connect_s > 0.0 or (self.first_token_s is not None and not self.first_token_s > 0.0):
            raise ConfigError(f"timeouts must be above 0, got {self.connect_s} and {self.first_token_s}")


@dataclass(slots=True, eq=False)
class _Attempt:
    live: LiveRequest
    decision: Decision
    leg: Leg
    timer: EventHandle | None = None


class SingleDispatcher:
    """Picks a member by `router` and lets it serve the request."""

    def __init__(
        self,
        loop: EventLoop,
        pool: Pool,
        router: Router,
        describer: RequestDescriber,
        timeouts: AttemptTimeouts | None = None,
        *,
        on_refused: Callable[[Member], None] | None = None,
    ) -> None:
        """Also makes the pool tell the router's prefix matcher which replicas lost what they held.

        `on_refused` is called when a member does not take a connection, as by `HealthChecks.on_refused`.
        """
        self.router = router
        self._loop = loop
        self._pool = pool
        self._describer = describer
        self._timeouts = AttemptTimeouts() if timeouts is None else timeouts
        self._on_refused = on_refused
        self._attempts: dict[str, _Attempt] = {}
        if router.policy.prefix_matcher is not None:
            pool.forget_prefixes = router.policy.prefix_matcher.forget

    @property
    def num_in_flight(self) -> int:
        """As `Dispatcher`."""
        return len(self._attempts)

    def bind(self, sink: AttemptSink) -> None:
        """As `Dispatcher`."""
        self._sink = sink
        self._legs = Legs(self._loop, self._pool, connect_s=self._timeouts.connect_s, on_steps=sink.on_steps)
        self._pool.on_capacity(sink.serve_waiting)

    def dispatch(self, live: LiveRequest) -> None:
        """As `Dispatcher`."""
        asked = self._describer.describe(live.request, frozenset(live.tried))
        decision = self.router.pick(asked, self._pool.states, self._loop.now_s())
        attempt = _Attempt(live, decision, self._legs.start(live.request, self._pool.of(decision.replica), self))
        self._attempts[live.request.request_id] = attempt
        if self._timeouts.first_token_s is not None:
            attempt.timer = self._loop.after(self._timeouts.first_token_s, lambda: self._stop_waiting(attempt))

    def cancel(self, live: LiveRequest) -> RequestOutcome | None:
        """As `Dispatcher`."""
        attempt = self._attempts[live.request.request_id]
        said = self._legs.cancel(attempt.leg)
        self._close(attempt)
        return said

    def on_leg_token(self, leg: Leg) -> None:
        """As `LegOwner`."""
        attempt = self._attempts[leg.request.request_id]
        if attempt.timer is not None:
            attempt.timer.cancel()
        self.router.first_token(attempt.decision, self._loop.now_s())
        self._sink.on_first_token(attempt.live, leg.member.replica)

    def on_leg_end(self, leg: Leg, failure: Failure | None, outcome: RequestOutcome | None) -> None:
        """As `LegOwner`."""
        attempt = self._attempts[leg.request.request_id]
        if failure is not None:
            self._close(attempt)
            self._sink.on_failed(attempt.live, failure, leg.member.name, outcome)
            return
        assert outcome is not None, "a replica gave the answer"
        self._close(attempt, latency_s=outcome.ttft_s)
        self._describer.output_length.observe(leg.request.tenant, outcome.num_output_tokens)
        self._sink.on_answered(attempt.live, outcome)

    def on_leg_refused(self, leg: Leg) -> None:
        """As `LegOwner`."""
        if self._on_refused is not None:
            self._on_refused(leg.member)

    def check_invariants(self) -> None:
        """Attempts, legs and bookings are the same requests."""
        self._legs.check_invariants()
        booked = sum([member.state.booked.requests for member in self._pool])
        numbers = (len(self._attempts), len(self._legs), self.router.num_alive, booked)
        if len(set(numbers)) != 1:
            raise InvariantViolated(f"attempts = legs = decisions alive = requests booked: {numbers}")

    def _stop_waiting(self, attempt: _Attempt) -> None:
        said = self._legs.cancel(attempt.leg)
        self._close(attempt)
        self._sink.on_failed(attempt.live, Failure.SILENT, attempt.leg.member.name, said)

    def _close(self, attempt: _Attempt, *, latency_s: float | None = None) -> None:
        del self._attempts[attempt.live.request.request_id]
        if attempt.timer is not None:
            attempt.timer.cancel()
        self.router.finish(attempt.decision, self._loop.now_s(), latency_s=latency_s)
        self._pool.settle(attempt.leg.member)
