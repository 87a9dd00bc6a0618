"""What no simulation may break, whatever happens in it. For tests: a listener that keeps a ledger of everything alive."""

from __future__ import annotations

from argosy.engine.core.invariants import InvariantViolated
from argosy.sim.outcome import Outcome, ReplicaListener, RequestOutcome, StepSpan
from argosy.sim.replica import Replica
from argosy.sim.workload.trace_request import TraceRequest


class Ledger:
    """Checks every report of replicas against those before it and passes it on to `listener`.

    Raises `InvariantViolated` from within the report that breaks a law: requests end once, tokens are conserved, clocks do
    not go back, steps follow each other, TTFT is at most E2E.
    """

    def __init__(self, listener: ReplicaListener | None = None) -> None:
        self._listener = listener
        self._alive: dict[tuple[str, str], float | None] = {}
        self._tokens: dict[str, int] = {}
        self._ended_tokens: dict[str, int] = {}
        self._last_step: dict[str, tuple[int, float]] = {}
        self.num_ended = 0

    def on_submit(self, replica: Replica, request: TraceRequest) -> None:
        """`replica` has taken `request`; to be called by whoever submits."""
        key = (replica.name, request.request_id)
        _require(key not in self._alive, f"a request is taken once: {key}")
        self._alive[key] = None

    def on_first_token(self, replica: Replica, request: TraceRequest, now_s: float) -> None:
        """See `ReplicaListener`."""
        key = (replica.name, request.request_id)
        _require(key in self._alive, f"tokens are of requests alive: {key}")
        _require(self._alive[key] is None, f"there is one first token: {key}")
        _require(now_s >= request.arrival_s, f"no token before arrival: {key}")
        self._alive[key] = now_s
        if self._listener is not None:
            self._listener.on_first_token(replica, request, now_s)

    def on_finish(self, replica: Replica, outcome: RequestOutcome) -> None:
        """See `ReplicaListener`."""
        key = (replica.name, outcome.request.request_id)
        _require(key in self._alive, f"a request ends once: {key}")
        first_token_s = self._alive.pop(key)
        self.num_ended += 1
        _require(first_token_s == outcome.first_token_s, f"the first token was told of: {key}")
        _require((outcome.first_token_s is None) == (outcome.num_output_tokens == 0), f"tokens begin with the first: {key}")
        if outcome.outcome is Outcome.FINISHED:
            _require(outcome.num_output_tokens == outcome.request.output_tokens, f"an answer is whole: {key}")
        times_s = (
            outcome.request.arrival_s,
            outcome.submitted_s,
            outcome.first_scheduled_s,
            outcome.first_token_s,
            outcome.finished_s,
        )
        known_s = [time_s for time_s in times_s if time_s is not None]
        _require(known_s == sorted(known_s), f"times are in order: {key}, {known_s}")
        _require(outcome.ttft_s is None or outcome.ttft_s <= outcome.e2e_s, f"TTFT is at most E2E: {key}")
        tokens = self._ended_tokens.get(replica.name, 0) + outcome.num_output_tokens
        self._ended_tokens[replica.name] = tokens
        if self._listener is not None:
            self._listener.on_finish(replica, outcome)

    def on_steps(self, replica: Replica, span: StepSpan) -> None:
        """See `ReplicaListener`."""
        name, kv = replica.name, replica.scheduler.kv
        step, end_s = self._last_step.get(name, (0, 0.0))
        _require(span.first_step > step, f"steps are numbered in order: {name}, {span.first_step} after {step}")
        _require(span.start_s >= end_s, f"a step begins after the last: {name}, {span.start_s} and {end_s}")
        ends_s = list(span.ends_s)
        _require(bool(ends_s) and [span.start_s, *ends_s] == sorted([span.start_s, *ends_s]), f"clocks are monotone: {name}")
        _require(
            span.num_decoding <= min(span.num_generated_tokens, span.num_tokens), f"who decodes gets a token: {name}, {span}"
        )
        _require(span.kv_blocks_held + span.kv_blocks_cached + kv.num_free == kv.num_blocks, f"blocks are conserved: {name}")
        self._last_step[name] = (span.first_step + len(ends_s) - 1, ends_s[-1])
        self._tokens[name] = self._tokens.get(name, 0) + len(ends_s) * span.num_generated_tokens
        if self._listener is not None:
            self._listener.on_steps(replica, span)

    def check_end(self, *replicas: Replica) -> None:
        """Everything has ended: nothing may be held or alive, and all tokens that steps gave went to requests.

        Steps give tokens that nobody gets if a request was aborted while they ran, so there may be more given than got.
        """
        _require(not self._alive, f"every request has ended: {list(self._alive)[:3]}")
        for replica in replicas:
            scheduler, name = replica.scheduler, replica.name
            scheduler.check_invariants()
            _require(replica.num_in_flight == 0 and not scheduler.has_work, f"nothing is in flight: {name}")
            _require(scheduler.kv.num_held == 0, f"nothing is held: {name}, {scheduler.kv.num_held} blocks")
            got, given = self._ended_tokens.get(name, 0), self._tokens.get(name, 0)
            _require(got <= given, f"tokens are conserved: {name}, {got} of {given}")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantViolated(what)
