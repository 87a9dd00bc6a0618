"""Runs a simulation to its end, and tells how far it is."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from dataclasses import dataclass

from argosy.sim.assembly import Assembly
from argosy.sim.fleet.fleet import FleetCounters
from argosy.sim.results import SimulationResults
from argosy.sim.timeline import Timeline

# Wall-clock seconds between two reports; how much is simulated in between adapts to it.
_REPORT_S = 0.1
# Without an arrival, a step or an end in so many simulated seconds, nothing will happen any more.
_PATIENCE_S = 86_400.0


class End(enum.StrEnum):
    """Why a run ended."""

    ALL_ENDED = "every request has ended"
    STOPPED = "stop_at_s was reached"
    STALLED = "nothing happened for a day: what is in flight never ends"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. `until_s` is when arrivals or the run end, None if only a trace knows; `wall_s` since the start."""

    now_s: float
    until_s: float | None
    num_arrived: int
    num_ended: int
    wall_s: float


@dataclass(frozen=True, slots=True)
class SimulationRun:
    """What came out of a run.

    Attributes:
        counters: requests as the fleet saw them, those before the measured time included.
        num_sent_again: requests that clients sent again after an end that was no answer.
        num_skipped_faults: of replicas that were not there.
        wall_s: that it took.
    """

    results: SimulationResults
    timeline: Timeline
    counters: FleetCounters
    num_sent_again: int
    num_skipped_faults: int
    seed: int
    end: End
    wall_s: float

    @property
    def times_real_time(self) -> float:
        """Simulated seconds per second."""
        return self.results.duration_s / self.wall_s if self.wall_s else 0.0


def run(assembly: Assembly, report: Callable[[Progress], None] | None = None) -> SimulationRun:
    """Run `assembly` until every request has ended or its `stop_at_s`.

    The wall clock only decides when `report` is called; what is simulated does not depend on it.

    Raises:
        TraceFileError: a line of a trace is wrong.
        ConfigError: a trace cannot be repeated as asked, or a distribution draws what no request has.
    """
    loop, config, fleet = assembly.loop, assembly.config, assembly.fleet
    began_s = time.perf_counter()
    assembly.source.on_done = loop.stop
    until_s = config.workload.duration_s if config.stop_at_s is None else config.stop_at_s
    slice_s = 1.0 if until_s is None else until_s / 1000.0
    seen, seen_at_s = (0, 0, 0), 0.0
    end = End.ALL_ENDED
    while not assembly.source.is_done:
        if config.stop_at_s is not None and loop.now_s() >= config.stop_at_s:
            end = End.STOPPED
            break
        before_s = time.perf_counter()
        target_s = loop.now_s() + slice_s
        loop.run(target_s if config.stop_at_s is None else min(target_s, config.stop_at_s))
        now_s = time.perf_counter()
        slice_s *= 2.0 if now_s - before_s < _REPORT_S / 2 else 0.5 if now_s - before_s > _REPORT_S else 1.0
        if report is not None:
            report(Progress(loop.now_s(), until_s, fleet.counters.offered, fleet.counters.ended, now_s - began_s))
        counted = (fleet.counters.offered, fleet.counters.ended, assembly.recorder.num_steps)
        if counted != seen or not assembly.source.is_exhausted:
            seen, seen_at_s = counted, loop.now_s()
        elif loop.now_s() - seen_at_s > _PATIENCE_S:
            end = End.STALLED
            break
    for pool in assembly.pools:
        for member in pool:
            member.replica.load()  # lets it tell of steps that it has not told of yet
    return SimulationRun(
        results=assembly.recorder.results(loop.now_s()),
        timeline=assembly.timeline,
        counters=fleet.counters,
        num_sent_again=assembly.clients.num_sent_again,
        num_skipped_faults=sum(injector.num_skipped for injector in assembly.injectors),
        seed=config.seed,
        end=end,
        wall_s=time.perf_counter() - began_s,
    )
