"""Who hears what a simulated fleet does, in which order."""

from __future__ import annotations

from argosy.sim.fleet.clients import Clients
from argosy.sim.fleet.scaling import AutoscaledPool
from argosy.sim.outcome import RequestOutcome, StepSpan
from argosy.sim.perfetto import PerfettoTrace
from argosy.sim.recorder import Recorder
from argosy.sim.replica import Replica
from argosy.sim.timeline import Timeline
from argosy.sim.workload.trace_request import TraceRequest


class Observers:
    """A `FleetListener` that tells the recorder, the timeline, the trace, the autoscaler, and at last the clients.

    `clients` and `autoscaled` are set once they are there, before the first request.
    """

    def __init__(self, recorder: Recorder, timeline: Timeline, trace: PerfettoTrace | None = None) -> None:
        self.clients: Clients | None = None
        self.autoscaled: AutoscaledPool | None = None
        self._recorder = recorder
        self._timeline = timeline
        self._trace = trace

    def on_first_token(self, replica: Replica, request: TraceRequest, now_s: float) -> None:
        """See `FleetListener`."""
        self._recorder.on_first_token(replica, request, now_s)

    def on_outcome(self, outcome: RequestOutcome, num_attempts: int) -> None:  # noqa: ARG002
        """See `FleetListener`."""
        self._recorder.on_finish(None, outcome)
        self._timeline.on_outcome(outcome)
        if self._trace is not None:
            self._trace.request(outcome)
        if self.autoscaled is not None:
            self.autoscaled.on_outcome(outcome)
        assert self.clients is not None, "requests come from clients"
        self.clients.on_outcome(outcome)

    def on_steps(self, replica: Replica, span: StepSpan) -> None:
        """See `FleetListener`."""
        self._recorder.on_steps(replica, span)
        if self._trace is not None:
            self._trace.steps(replica.name, span)
