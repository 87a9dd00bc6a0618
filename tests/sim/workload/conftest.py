import heapq
from collections.abc import Callable
from pathlib import Path

import pytest

from argosy.sim.workload.trace_request import Source, TraceRequest

Play = Callable[..., list[tuple[TraceRequest, float]]]
Write = Callable[..., Path]


@pytest.fixture
def play() -> Play:
    """Serves every request of a source in a fixed time, without queueing; returns (request, end) by arrival."""

    def play(source: Source, service_s: float = 1.0, max_requests: int = 100_000) -> list[tuple[TraceRequest, float]]:
        arrivals, served = iter(source), []
        # (time, order, request, whether it ends then)
        events: list[tuple[float, int, TraceRequest, bool]] = []
        order = 0
        upcoming = next(arrivals, None)
        while (upcoming or events) and len(served) < max_requests:
            if upcoming is not None and (not events or upcoming.arrival_s <= events[0][0]):
                heapq.heappush(events, (upcoming.arrival_s, order, upcoming, False))
                upcoming = next(arrivals, None)
                order += 1
            now_s, _, request, ends = heapq.heappop(events)
            if ends:
                following = [(item.arrival_s, item, False) for item in source.on_finish(request, now_s)]
                assert all(arrival_s >= now_s for arrival_s, _, _ in following)
            else:
                served.append((request, now_s + service_s))
                following = [(now_s + service_s, request, True)]
            for time_s, item, is_end in following:
                heapq.heappush(events, (time_s, order, item, is_end))
                order += 1
        return served

    return play


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes lines to a file of the given name; each ends as text files do."""

    def write(name: str, *lines: str) -> Path:
        path = tmp_path / name
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return path

    return write
