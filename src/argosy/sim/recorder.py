"""Listens to replicas and keeps sums: memory does not grow with simulated time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from argosy.sim.histogram import LogHistogram
from argosy.sim.outcome import Outcome, RequestOutcome, StepSpan
from argosy.sim.replica import Replica
from argosy.sim.results import Distribution, ReplicaCost, ReplicaResults, SimulationResults, Slo
from argosy.sim.run_log import RecordLog
from argosy.sim.stability import judge
from argosy.sim.time_series import TimeSeries, Window
from argosy.sim.workload.trace_request import TraceRequest


@dataclass(slots=True)
class _ReplicaSums:
    """Of one replica; see `ReplicaResults`."""

    cost: ReplicaCost
    num_blocks: int
    since_s: float
    until_s: float = math.inf
    busy_s: float = 0.0
    steps: int = 0
    tokens: int = 0
    prefill_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    running: float = 0.0
    kv_held: float = 0.0
    peak_held: int = 0
    last_end_s: float = 0.0

    @property
    def watts(self) -> float:
        """Of all its devices under load; 0 if not known."""
        return (self.cost.watts_per_device or 0.0) * self.cost.devices


@dataclass(slots=True)
class _RequestSums:
    """Of requests that arrived within the measured time."""

    submitted: int = 0
    refused: int = 0
    output_tokens: int = 0
    good: int = 0
    corrupted: int = 0
    outcomes: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    ttft: LogHistogram = field(default_factory=LogHistogram)
    tpot: LogHistogram = field(default_factory=LogHistogram)
    e2e: LogHistogram = field(default_factory=LogHistogram)
    queueing: LogHistogram = field(default_factory=LogHistogram)


class Recorder:
    """A `ReplicaListener` for any number of replicas.

    Attributes:
        series: sums over time, which others may read while the simulation runs.
    """

    def __init__(
        self,
        *,
        slo: Slo | None = None,
        log: RecordLog | None = None,
        log_steps: bool = False,
        measure_from_s: float = 0.0,
        measure_until_s: float = math.inf,
        window_s: float = 1.0,
    ) -> None:
        """Nothing recorded yet.

        Args:
            log: gets every request, and every step with `log_steps`.
            measure_from_s, measure_until_s: requests that arrive outside are served and logged, but not counted.
            window_s: width of the windows of `series` to begin with.
        """
        self.series = TimeSeries(window_s)
        self._slo = slo
        self._log = log
        self._log_steps = log is not None and log_steps
        self._from_s, self._until_s = measure_from_s, measure_until_s
        self._requests = _RequestSums()
        self._replicas: dict[str, _ReplicaSums] = {}
        self._itl = LogHistogram()
        self._in_system = 0

    @property
    def num_steps(self) -> int:
        """Steps so far, as far as replicas have told of them."""
        return sum(one.steps for one in self._replicas.values())

    @property
    def num_in_system(self) -> int:
        """Requests that arrived and have not ended."""
        return self._in_system

    def add_replica(self, replica: Replica, cost: ReplicaCost | None = None, *, since_s: float = 0.0) -> None:
        """Count what `replica` does under its name, and what it costs from `since_s` on."""
        assert replica.name not in self._replicas, f"a replica named {replica.name} is recorded"
        self._replicas[replica.name] = _ReplicaSums(cost or ReplicaCost(), replica.scheduler.config.num_blocks, since_s)

    def remove_replica(self, name: str, now_s: float) -> None:
        """The replica costs nothing any more."""
        self._replicas[name].until_s = now_s

    def on_arrival(self, request: TraceRequest) -> None:
        """A request came, whether or not somebody takes it. To be called once for each, at its arrival."""
        window = self.series.at(request.arrival_s)
        window.arrivals += 1
        window.in_system += self._in_system
        self._in_system += 1
        if self._is_measured(request):
            self._requests.submitted += 1

    def on_refused(self, request: TraceRequest) -> None:
        """Nobody took the request."""
        self._in_system -= 1
        if self._is_measured(request):
            self._requests.refused += 1

    def on_first_token(self, replica: Replica, request: TraceRequest, now_s: float) -> None:
        """See `ReplicaListener`; TTFT is recorded when the request has ended."""

    def on_finish(self, replica: Replica | None, outcome: RequestOutcome) -> None:  # noqa: ARG002
        """A request has ended; to be called once for each that arrived and was not refused. The replica is not looked at."""
        self._in_system -= 1
        if self._log is not None:
            self._log.request(outcome)
        if outcome.outcome is Outcome.FINISHED:
            self.series.at(outcome.finished_s).finished += 1
        if not self._is_measured(outcome.request):
            return
        sums = self._requests
        sums.outcomes[outcome.outcome] += 1
        if outcome.outcome is not Outcome.FINISHED:
            return
        sums.output_tokens += outcome.num_output_tokens
        sums.corrupted += outcome.corrupted
        sums.good += self._slo is not None and not outcome.corrupted and self._slo.is_met(outcome)
        sums.e2e.add(outcome.e2e_s)
        if outcome.first_scheduled_s is not None:
            sums.queueing.add(outcome.first_scheduled_s - outcome.request.arrival_s)
        if outcome.ttft_s is not None:
            sums.ttft.add(outcome.ttft_s)
        if outcome.tpot_s is not None:
            sums.tpot.add(outcome.tpot_s)

    def on_steps(self, replica: Replica, span: StepSpan) -> None:
        """Steps are over."""
        if self._log_steps and self._log is not None:
            self._log.steps(replica.name, span)
        sums, series, ends_s = self._replicas[replica.name], self.series, span.ends_s
        start_s, decoding = span.start_s, span.num_decoding
        window = series.at(ends_s[-1])
        if len(ends_s) == 1 or series.at(ends_s[0]) is window:
            _add_to_window(window, sums, span, ends_s[-1] - start_s, len(ends_s))
        else:
            begin_s = start_s
            for end_s in ends_s:
                _add_to_window(series.at(end_s), sums, span, end_s - begin_s, 1)
                begin_s = end_s
        if decoding:
            # A sequence that decodes got its last token when the step before ended, be it a moment ago or longer.
            begin_s = sums.last_end_s
            for end_s in ends_s:
                self._itl.add(end_s - begin_s, decoding)
                begin_s = end_s
        sums.last_end_s = ends_s[-1]
        busy_s = ends_s[-1] - start_s
        sums.busy_s += busy_s
        sums.running += busy_s * span.num_running
        sums.kv_held += busy_s * span.kv_blocks_held
        num_steps = len(ends_s)
        sums.steps += num_steps
        sums.tokens += num_steps * span.num_tokens
        sums.prefill_tokens += num_steps * span.num_prefill_tokens
        sums.generated_tokens += num_steps * span.num_generated_tokens
        sums.preemptions += span.num_preemptions
        sums.prefix_query_tokens += span.prefix_query_tokens
        sums.prefix_hit_tokens += span.prefix_hit_tokens
        sums.peak_held = max(sums.peak_held, span.kv_blocks_held)

    def results(self, duration_s: float) -> SimulationResults:
        """The figures of a run of `duration_s` simulated seconds."""
        sums = self._requests
        measured_s = max(0.0, min(self._until_s, duration_s) - self._from_s)
        finished, ended = sums.outcomes[Outcome.FINISHED], sum(sums.outcomes.values()) + sums.refused
        replicas = tuple([_replica_results(name, one, duration_s) for name, one in self._replicas.items()])
        queries = sum(replica.prefix_query_tokens for replica in replicas)

        def per_s(count: float) -> float:
            return count / measured_s if measured_s else 0.0

        return SimulationResults(
            duration_s=duration_s,
            measured_s=measured_s,
            submitted=sums.submitted,
            refused=sums.refused,
            in_flight=sums.submitted - ended,
            outcomes={str(outcome): count for outcome, count in sums.outcomes.items()},
            ttft=Distribution.of(sums.ttft),
            tpot=Distribution.of(sums.tpot),
            itl=Distribution.of(self._itl),
            e2e=Distribution.of(sums.e2e),
            queueing=Distribution.of(sums.queueing),
            requests_per_s=per_s(finished),
            output_tokens_per_s=per_s(sums.output_tokens),
            goodput_per_s=None if self._slo is None else per_s(sums.good),
            slo_share=None if self._slo is None or not ended else sums.good / ended,
            prefix_hit_rate=sum(replica.prefix_hit_tokens for replica in replicas) / queries if queries else None,
            preemptions=sum(replica.preemptions for replica in replicas),
            corrupted=sums.corrupted,
            usd=_sum_or_none([replica.usd for replica in replicas]),
            energy_j=_sum_or_none([replica.energy_j for replica in replicas]),
            replicas=replicas,
            series=self.series,
            stability=judge(self.series.windows, self.series.width_s),
        )

    def _is_measured(self, request: TraceRequest) -> bool:
        return self._from_s <= request.arrival_s < self._until_s


def _add_to_window(window: Window, sums: _ReplicaSums, span: StepSpan, busy_s: float, num_steps: int) -> None:
    """Count `num_steps` steps of `span`, which took `busy_s` in all, in `window`."""
    window.busy_s += busy_s
    window.running += busy_s * span.num_running
    window.waiting += busy_s * span.num_waiting
    window.kv_held += busy_s * span.kv_blocks_held
    window.kv_cached += busy_s * span.kv_blocks_cached
    window.kv_blocks += busy_s * sums.num_blocks
    window.energy_j += busy_s * sums.watts
    window.steps += num_steps
    window.tokens += num_steps * span.num_tokens
    window.prefill_tokens += num_steps * span.num_prefill_tokens
    window.generated_tokens += num_steps * span.num_generated_tokens
    window.preemptions += span.num_preemptions
    window.prefix_query_tokens += span.prefix_query_tokens
    window.prefix_hit_tokens += span.prefix_hit_tokens


def _replica_results(name: str, sums: _ReplicaSums, duration_s: float) -> ReplicaResults:
    cost, lifetime_s = sums.cost, max(0.0, min(sums.until_s, duration_s) - sums.since_s)
    price, watts = cost.usd_per_device_hour, cost.watts_per_device
    return ReplicaResults(
        name=name,
        busy_s=sums.busy_s,
        busy_share=sums.busy_s / lifetime_s if lifetime_s else 0.0,
        steps=sums.steps,
        tokens=sums.tokens,
        prefill_tokens=sums.prefill_tokens,
        generated_tokens=sums.generated_tokens,
        preemptions=sums.preemptions,
        prefix_query_tokens=sums.prefix_query_tokens,
        prefix_hit_tokens=sums.prefix_hit_tokens,
        mean_running=sums.running / sums.busy_s if sums.busy_s else None,
        mean_kv_used=sums.kv_held / sums.busy_s / sums.num_blocks if sums.busy_s else None,
        peak_kv_used=sums.peak_held / sums.num_blocks,
        usd=None if price is None else price * cost.devices * lifetime_s / 3600.0,
        energy_j=None if watts is None else watts * cost.devices * sums.busy_s,
    )


def _sum_or_none(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
