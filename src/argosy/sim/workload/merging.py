"""Several sources as one: tenants, models of traffic, a trace over a background."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter

from argosy.sim.workload.trace_request import Source, TraceRequest


class Merged:
    """The requests of several sources in order of arrival, at equal times in the order of the sources.

    Args:
        sources: by name; the ids of a source's requests begin with its name and a slash.
    """

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self._sources = dict(sources)

    def __iter__(self) -> Iterator[TraceRequest]:
        """The arrivals of all sources."""
        return heapq.merge(*self._sources.values(), key=attrgetter("arrival_s"))

    def on_finish(self, request: TraceRequest, now_s: float) -> Iterable[TraceRequest]:
        """What follows in the source that the request is of."""
        return self._sources[request.request_id.partition("/")[0]].on_finish(request, now_s)
