"""Predictive against reactive scaling on a day of 500, 1500, 3000, 2000 and 1000 QPS at 0, 6, 9, 17 and 20 h.

A replica serves 100 QPS and takes 420 s to start: 5 + 60 + 10 + 300 + 25 + 15 + 5.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest

from argosy.fleet.policies.autoscaling.autoscaler import Autoscaler, ScalingLimits
from argosy.fleet.policies.autoscaling.capacity import KnownCapacity
from argosy.fleet.policies.autoscaling.forecast import DAY_S, DailySchedule, SeasonalNaive
from argosy.fleet.policies.autoscaling.predictive import HighestOf, PredictedRate
from argosy.fleet.policies.autoscaling.reactive import TargetRate
from argosy.fleet.policies.autoscaling.signals import FleetSignals
from argosy.sim.workload.trace_request import Segment, TraceRequest

HOUR_S, COLD_START_S, TICK_S, QPS = 3600.0, 420.0, 15.0, 100.0
DAY = DailySchedule(((0.0, 500.0), (6 * HOUR_S, 1500.0), (9 * HOUR_S, 3000.0), (17 * HOUR_S, 2000.0), (20 * HOUR_S, 1000.0)))


@dataclass
class Fluid:
    """Requests as a fluid: what arrives beyond the capacity of the ready replicas waits."""

    ready: int
    backlog: float = 0.0
    starting: list[float] = field(default_factory=list)
    sizes: dict[float, int] = field(default_factory=dict)
    longest_wait_s: float = 0.0
    replica_s: float = 0.0

    def run(self, scaler: Autoscaler, begin_s: float, end_s: float) -> None:
        now_s = begin_s
        while now_s < end_s:
            rate = DAY.rate_per_s(now_s)
            self.ready += sum(at_s <= now_s for at_s in self.starting)
            self.starting = [at_s for at_s in self.starting if at_s > now_s]
            number = scaler.decide(
                FleetSignals(now_s, self.ready, len(self.starting), num_waiting=int(self.backlog), arrivals_per_s=rate)
            ).num_replicas
            total = self.ready + len(self.starting)
            self.starting += [now_s + COLD_START_S] * max(0, number - total)
            drop = max(0, total - number)
            from_starting = min(drop, len(self.starting))
            self.starting = self.starting[: len(self.starting) - from_starting]
            self.ready -= drop - from_starting
            self.backlog = max(0.0, self.backlog + (rate - self.ready * QPS) * TICK_S)
            self.longest_wait_s = max(self.longest_wait_s, self.backlog / (self.ready * QPS))
            self.replica_s += (self.ready + len(self.starting)) * TICK_S
            self.sizes[now_s] = self.ready + len(self.starting)
            now_s += TICK_S


LIMITS = ScalingLimits(tolerance=0.0, down_window_s=600.0, cold_start_s=COLD_START_S)
REACTIVE = TargetRate(KnownCapacity(QPS), drain_s=COLD_START_S)


def predictive(forecaster) -> HighestOf:
    return HighestOf((PredictedRate(forecaster, KnownCapacity(QPS), lead_s=1800.0), REACTIVE))


def changes(sizes: dict[float, int]) -> list[tuple[float, int]]:
    times = sorted(sizes)
    return [(b, sizes[b]) for a, b in pairwise(times) if sizes[a] != sizes[b]]


def test_predictive_scaling_is_there_half_an_hour_before_and_nobody_waits():
    fluid = Fluid(ready=5)
    fluid.run(Autoscaler(predictive(DAY), LIMITS), 0.0, DAY_S)
    assert [(at_s / HOUR_S, size) for at_s, size in changes(fluid.sizes)] == [
        (5.5, 15),
        (8.5, 30),
        (pytest.approx(17.17, abs=0.01), 20),
        (pytest.approx(20.17, abs=0.01), 10),
    ]
    assert fluid.longest_wait_s == 0.0


def test_reactive_scaling_comes_late_and_overshoots():
    """At 9 h half of the requests wait through a cold start; to work that off within another it asks for 45, not 30.

    At 6 h two thirds wait: when the first replicas come, 1000 x 420 s of requests stand before 500 a second.
    """
    fluid = Fluid(ready=5)
    fluid.run(Autoscaler(REACTIVE, LIMITS), 0.0, DAY_S)
    assert max(fluid.sizes.values()) == pytest.approx(45, abs=2)
    assert fluid.sizes[9 * HOUR_S - TICK_S] == 15
    assert fluid.sizes[10 * HOUR_S] == 30
    assert fluid.longest_wait_s == pytest.approx(COLD_START_S * 1000 / 500, rel=0.05)


def test_a_forecast_learnt_from_yesterday_does_as_well_as_the_schedule():
    fluid = Fluid(ready=5)
    forecaster = SeasonalNaive(season_s=DAY_S, bucket_s=900.0)
    scaler = Autoscaler(predictive(forecaster), LIMITS)
    fluid.run(scaler, 0.0, DAY_S)
    assert fluid.longest_wait_s > 300.0, "the first day it can only react"
    fluid.longest_wait_s, fluid.sizes = 0.0, {}
    fluid.run(scaler, DAY_S, 2 * DAY_S)
    assert fluid.longest_wait_s == 0.0
    assert max(fluid.sizes.values()) == 30
    grew = [at_s / HOUR_S - 24 for at_s, size in changes(fluid.sizes) if size in (15, 30)]
    assert grew[:2] == pytest.approx([5.5, 8.5], abs=0.01)


def test_the_morning_with_replicas_and_requests(fleet):
    """08:27 to 09:12 at a thousandth of the rates, replicas 80 % busy, random arrivals: waits and sizes of both."""

    def morning(make_policy):
        scale, capacity = 1000.0, KnownCapacity(QPS / 1000.0)
        begin_s = 8.45 * HOUR_S
        table = DailySchedule(tuple((start, rate / scale) for start, rate in DAY.steps), midnight_s=-begin_s)
        bench = fleet.Bench(replicas=19, checked=False, max_num_seqs=1, timer=fleet.FixedTimer(10.0))
        rng, now_s, requests = Random(2), 0.0, []
        while now_s < 2700.0:
            now_s += rng.expovariate(table.rate_per_s(now_s))
            requests.append(TraceRequest(f"q{len(requests)}", now_s, (Segment(1, 1),), 1))
        limits = ScalingLimits(tolerance=0.0, down_window_s=600.0, cold_start_s=COLD_START_S)
        scaled = bench.autoscale(
            make_policy(table, capacity), limits, every_s=60.0, cold_start_s=COLD_START_S, concurrency=1.0
        )
        peak = []
        scaled.on_decision = lambda now_s, decision: peak.append(decision.num_replicas)
        bench.offer(requests)
        heard = bench.run(until_s=4500.0)
        waits = sorted(one.first_scheduled_s - one.request.arrival_s for one in heard.outcomes)
        assert len(waits) == len(requests)
        return waits[int(0.99 * len(waits))], max(peak)

    reactive_wait_s, reactive_peak = morning(lambda table, capacity: TargetRate(capacity, 0.8, COLD_START_S))
    predictive_wait_s, predictive_peak = morning(lambda table, capacity: PredictedRate(table, capacity, 1800.0, 0.8))
    assert predictive_wait_s < 0.15 * reactive_wait_s
    assert reactive_wait_s > 100.0
    assert predictive_peak == 38
    assert reactive_peak > 48
