"""Brings a source's requests to a system when they arrive, and tells the source of their ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from argosy.errors import SimulationError
from argosy.sim.event_loop import EventLoop
from argosy.sim.workload.trace_request import Source, TraceRequest


class Feeder:
    """Holds one coming arrival of the source at a time, however long its trace is.

    Attributes:
        num_offered: requests handed over so far.
    """

    def __init__(self, loop: EventLoop, source: Source, offer: Callable[[TraceRequest], None]) -> None:
        """`offer` is called at each request's arrival; what ends, or is refused, must be told to `finished`."""
        self.num_offered = 0
        self._loop = loop
        self._source = source
        self._offer = offer
        self._arrivals: Iterator[TraceRequest] = iter(())

    def start(self) -> None:
        """Await the first arrival."""
        self._arrivals = iter(self._source)
        self._await_next()

    def finished(self, request: TraceRequest) -> None:
        """A request has ended, in whatever way: a closed loop reacts."""
        for another in self._source.on_finish(request, self._loop.now_s()):
            self._await(another, then_next=False)

    def _await_next(self) -> None:
        request = next(self._arrivals, None)
        if request is not None:
            self._await(request, then_next=True)

    def _await(self, request: TraceRequest, *, then_next: bool) -> None:
        now_s = self._loop.now_s()
        if request.arrival_s < now_s:
            raise SimulationError(
                f"request {request.request_id} arrives at {request.arrival_s} s, but it is {now_s} s already: "
                "sort the trace by time"
            )
        self._loop.at(request.arrival_s, lambda: self._arrive(request, then_next=then_next))

    def _arrive(self, request: TraceRequest, *, then_next: bool) -> None:
        if then_next:
            self._await_next()
        self.num_offered += 1
        self._offer(request)
