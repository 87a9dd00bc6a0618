"""Plans put to the test: each runs in the simulator, and what comes out stands beside what was predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argosy.cost.checks import at_least_one
from argosy.cost.model_spec import ModelSpec
from argosy.planner.model_source import find_spec
from argosy.planner.offers import Offer, resolve
from argosy.planner.plain import Plain
from argosy.planner.serving_answer import Percentile, ServingAnswer, ServingPlan
from argosy.planner.serving_question import ServingQuestion, Target
from argosy.planner.verify_fleet import plan_blueprint, plan_transfer
from argosy.planner.verify_traffic import TraceTraffic, planned_workload, traced_workload
from argosy.sim.assembly import assemble
from argosy.sim.config.replicas import ReplicaGroup
from argosy.sim.config.simulation import SimulationConfig
from argosy.sim.histogram import LogHistogram
from argosy.sim.run import Progress, SimulationRun, run

REQUESTS = 2000
# Replicas of a single pool at most; more are alike, and traffic is in proportion.
_MOST_REPLICAS = 4
# Mean requests, one after the other, until a fleet that was empty is taken to be in its steady state.
_WARM_UP_REQUESTS = 3.0
# Of a trace, at most.
_WARM_UP_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class ComparedFigure(Plain):
    """One figure as predicted and as simulated, in `unit` ("s", "/s" or ""); None where nothing simulated has it."""

    name: str
    unit: str
    predicted: float
    simulated: float | None

    @property
    def difference(self) -> float | None:
        """Predicted over simulated, minus 1."""
        return self.predicted / self.simulated - 1.0 if self.simulated else None


@dataclass(frozen=True, slots=True)
class CheckedTarget(Plain):
    """A target of the service level, and the share of simulated requests that kept it."""

    name: str
    target: Target
    kept_share: float

    @property
    def is_kept(self) -> bool:
        """Whether as many kept it as were to."""
        return self.kept_share >= self.target.percentile / 100.0


@dataclass(frozen=True, slots=True)
class Verification(Plain):
    """A plan in the simulator.

    Attributes:
        replicas: simulated, of every pool together; requests: answered and measured; failed: that got no answer.
        duration_s: simulated.
        is_stable: whether the queues did not grow; stability: in words.
    """

    plan: str
    replicas: int
    requests: int
    failed: int
    duration_s: float
    is_stable: bool
    stability: str
    figures: tuple[ComparedFigure, ...]
    targets: tuple[CheckedTarget, ...]

    @property
    def keeps_service_level(self) -> bool:
        """Whether the simulated fleet is stable, answers everything and keeps every target."""
        return self.is_stable and not self.failed and all(target.is_kept for target in self.targets)

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values, with what follows from the fields."""
        described = super(Verification, self).to_json()
        for row, figure in zip(described["figures"], self.figures, strict=True):
            row["difference"] = figure.difference
        for row, target in zip(described["targets"], self.targets, strict=True):
            row["is_kept"] = target.is_kept
        return described | {"keeps_service_level": self.keeps_service_level}


def verify_plans(
    question: ServingQuestion,
    answer: ServingAnswer,
    *,
    trace: TraceTraffic | None = None,
    seed: int = 0,
    num_requests: int = REQUESTS,
    report: Callable[[int, Progress], None] | None = None,
) -> Iterator[Verification]:
    """Simulate each of `answer.plans`, in their order.

    Args:
        trace: what the question's traffic was made from; sent as it is in place of drawn requests.
        num_requests: to measure, beside those that warm the fleet up and keep it warm; of a trace, all there are.
        report: called with the number of the plan, from 0, while it is simulated.

    Raises:
        ConfigError: less than one request to measure, or a trace that cannot be read any more.
    """
    at_least_one(num_requests=num_requests)
    models = (find_spec(question.model)[0], None if question.draft is None else find_spec(question.draft.model)[0])
    offers = tuple(resolve(offer) for offer in question.devices)
    for number, plan in enumerate(answer.plans):
        config = _config(question, plan, offers, trace, num_requests, seed)
        blueprints = {pool.role: plan_blueprint(question, plan, pool, offers, models) for pool in plan.pools}
        assembly = assemble(config, blueprints, Path())
        outcome = run(assembly, None if report is None else _numbered(report, number))
        yield _verification(question, plan, config, outcome)


def _numbered(report: Callable[[int, Progress], None], number: int) -> Callable[[Progress], None]:
    return lambda progress: report(number, progress)


def _config(
    question: ServingQuestion,
    plan: ServingPlan,
    offers: Sequence[Offer],
    trace: TraceTraffic | None,
    num_requests: int,
    seed: int,
) -> SimulationConfig:
    """The plan as a fleet; its groups are called by their roles, and their devices come with the blueprints."""
    share = _simulated_share(plan)
    rate = question.traffic.requests_per_s * share
    latency = plan.latency
    request_s = latency.ttft_mean_s + (latency.tpot_mean_s or 0.0) * question.traffic.output.mean
    warm_up_s = _WARM_UP_REQUESTS * request_s
    if trace is None:
        measured_s = num_requests / rate
        workload = planned_workload(question.traffic, rate, num_requests + round(2 * warm_up_s * rate))
        until_s: float | None = warm_up_s + measured_s
    else:
        workload, until_s = traced_workload(trace, rate), None
        warm_up_s = min(warm_up_s, _WARM_UP_SHARE * trace.duration_s * trace.requests_per_s / rate)
    groups = tuple(
        ReplicaGroup(name=pool.role, count=round(pool.replicas * share), role=pool.role, device=pool.device)
        for pool in plan.pools
    )
    return SimulationConfig(
        model=_name(question.model),
        replicas=groups,
        workload=workload,
        seed=seed,
        warm_up_s=warm_up_s,
        measure_until_s=until_s,
        kv_transfer=plan_transfer(question, plan, offers) if len(plan.pools) > 1 else None,
    )


def _name(model: str | ModelSpec) -> str:
    return model.name if isinstance(model, ModelSpec) else model


def _simulated_share(plan: ServingPlan) -> float:
    """Of the plan's replicas; two pools are simulated whole, since their sizes go together."""
    (pool, *others) = plan.pools
    return 1.0 if others else min(pool.replicas, _MOST_REPLICAS) / pool.replicas


def _verification(
    question: ServingQuestion, plan: ServingPlan, config: SimulationConfig, outcome: SimulationRun
) -> Verification:
    results, whole = outcome.results, outcome.timeline.whole_run()
    targets = [
        CheckedTarget(name, target, _share_within(histogram, target.seconds))
        for name, targets, histogram in (("TTFT", question.slo.ttft, whole.ttft), ("TPOT", question.slo.tpot, whole.tpot))
        for target in targets
    ]
    return Verification(
        plan=plan.describe(),
        replicas=sum(group.count for group in config.replicas),
        requests=results.e2e.count,
        failed=results.submitted - results.e2e.count,
        duration_s=results.duration_s,
        is_stable=not results.stability.is_unstable,
        stability=str(results.stability),
        figures=tuple(_figures(plan, outcome, whole.ttft, whole.tpot)),
        targets=tuple(targets),
    )


def _figures(plan: ServingPlan, outcome: SimulationRun, ttft: LogHistogram, tpot: LogHistogram) -> Iterator[ComparedFigure]:
    latency, results = plan.latency, outcome.results
    yield ComparedFigure("TTFT mean", "s", latency.ttft_mean_s, ttft.mean)
    yield from _percentiles("TTFT", latency.ttft, ttft)
    if latency.tpot_mean_s is not None:
        yield ComparedFigure("TPOT mean", "s", latency.tpot_mean_s, tpot.mean)
        yield from _percentiles("TPOT", latency.tpot, tpot)
    share = _simulated_share(plan)
    yield ComparedFigure("requests", "/s", plan.throughput.requests_per_s, results.requests_per_s / share)
    yield ComparedFigure("output tokens", "/s", plan.throughput.output_tokens_per_s, results.output_tokens_per_s / share)
    if plan.prefix_caching:
        yield ComparedFigure("cached prompt share", "", plan.cached_prompt_share, results.prefix_hit_rate)


def _percentiles(name: str, predicted: Sequence[Percentile], simulated: LogHistogram) -> Iterator[ComparedFigure]:
    for one in predicted:
        yield ComparedFigure(f"{name} p{one.percentile:g}", "s", one.seconds, simulated.quantile(one.percentile / 100.0))


def _share_within(histogram: LogHistogram, seconds: float) -> float:
    """Share of what `histogram` counted that does not exceed `seconds`; 1 of nothing."""
    reached = 0.0 if histogram.count else 1.0
    for value, share in histogram.cumulative():
        if value > seconds:
            break
        reached = share
    return reached
