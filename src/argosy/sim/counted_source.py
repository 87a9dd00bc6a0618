"""A source that knows when nothing will come of it any more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from argosy.sim.workload.trace_request import Source, TraceRequest


class CountedSource:
    """`source` as it is, counted.

    Attributes:
        num_given: requests that it gave; num_ended: of them, those of whose end it was told.
        is_exhausted: whether its own arrivals are over; what ends may still bring about others.
        on_done: called when the last request has ended and nothing follows; may be replaced.
    """

    def __init__(self, source: Source) -> None:
        self.num_given = 0
        self.num_ended = 0
        self.is_exhausted = False
        self.on_done: Callable[[], None] = lambda: None
        self._source = source

    @property
    def is_done(self) -> bool:
        """Whether every request has ended and nothing follows."""
        return self.is_exhausted and self.num_given == self.num_ended

    def __iter__(self) -> Iterator[TraceRequest]:
        """The arrivals."""
        for request in self._source:
            self.num_given += 1
            yield request
        self.is_exhausted = True

    def on_finish(self, request: TraceRequest, now_s: float) -> Iterable[TraceRequest]:
        """What follows."""
        following = list(self._source.on_finish(request, now_s))
        self.num_given += len(following)
        self.num_ended += 1
        if self.is_done:
            self.on_done()
        return following
