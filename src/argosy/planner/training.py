"""How to train a model: plans by dollars of the whole run, with memory, time and what else would do."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from argosy.cost.device import Device
from argosy.cost.model_arithmetic import parameter_count
from argosy.cost.model_spec import ModelSpec
from argosy.cost.quantity import GIB, Grade, worst_grade
from argosy.cost.zero import state_bytes
from argosy.planner.model_source import find_spec
from argosy.planner.offers import Offer, resolve
from argosy.planner.serving_answer import UsdRange
from argosy.planner.training_answer import (
    TrainingAnswer,
    TrainingChange,
    TrainingInfeasible,
    TrainingLayout,
    TrainingMemoryBreakdown,
    TrainingPlanned,
)
from argosy.planner.training_question import TrainingQuestion
from argosy.planner.training_search import TrainingCandidate, TrainingSearch, search_training

_HOURS = 24.0


def plan_training(question: TrainingQuestion) -> TrainingAnswer:
    """Search layouts, ZeRO stages, schedules, micro-batches and recomputation.

    Raises:
        ConfigError: an unknown name, a price that is not known, or an arithmetic that a device lacks; names it.
    """
    spec, grade = find_spec(question.model)
    offers = tuple(resolve(offer) for offer in question.devices)
    for offer in offers:
        offer.device.peak_flop_per_s(question.compute)
    found = search_training(question, spec, offers)
    kept = [candidate for candidate in found.candidates if _within(candidate, question)]
    by_usd = sorted(kept, key=lambda candidate: (candidate.usd(question.tokens), candidate.days(question.tokens)))
    by_days = sorted(kept, key=lambda candidate: (candidate.days(question.tokens), candidate.usd(question.tokens)))
    return TrainingAnswer(
        model=spec.name,
        plans=_plans(by_usd, question, grade),
        by_days=_plans(by_days, question, grade),
        evaluated=found.evaluated,
        infeasible=None if kept else _infeasible(found, question, spec, offers),
    )


def _within(candidate: TrainingCandidate, question: TrainingQuestion) -> bool:
    in_time = question.deadline_days is None or candidate.days(question.tokens) <= question.deadline_days
    return in_time and (question.max_usd is None or _usd(candidate, question).high <= question.max_usd)


def _usd(candidate: TrainingCandidate, question: TrainingQuestion) -> UsdRange:
    hours = candidate.days(question.tokens) * _HOURS * candidate.plan.parallel.devices
    price = candidate.offer.price
    return UsdRange(price.low_usd_per_h * hours, price.high_usd_per_h * hours)


def _plans(candidates: list[TrainingCandidate], question: TrainingQuestion, grade: Grade) -> tuple[TrainingPlanned, ...]:
    plans = [_planned(candidate, question, grade) for candidate in candidates[: question.top]]
    return tuple(
        plan if index == 0 else dataclasses.replace(plan, worse_because=_worse_because(plan, plans[0]))
        for index, plan in enumerate(plans)
    )


def _planned(candidate: TrainingCandidate, question: TrainingQuestion, grade: Grade) -> TrainingPlanned:
    time, stage, device = candidate.time, candidate.memory, candidate.offer.device
    days = candidate.days(question.tokens)
    devices = candidate.plan.parallel.devices
    power = None if device.power is None else device.power.value * devices * days * _HOURS / 1e3
    total = device.memory.value * question.memory.total_fraction
    return TrainingPlanned(
        layout=_layout(candidate),
        memory=TrainingMemoryBreakdown(
            total_bytes=total,
            parameter_bytes=stage.parameter_bytes,
            gradient_bytes=stage.gradient_bytes,
            optimizer_bytes=stage.optimizer_bytes,
            activation_bytes=stage.activation_bytes,
            workspace_bytes=stage.workspace_bytes,
            buffer_bytes=stage.buffer_bytes,
            runtime_bytes=stage.reserved_bytes,
            free_bytes=total - stage.total_bytes,
        ),
        step_s=time.step_s,
        bubble_share=time.bubble_s / time.step_s,
        step_end_share=time.step_end_s / time.step_s,
        tokens_per_s=time.tokens_per_s,
        mfu=time.mfu,
        hfu=time.hfu,
        days=days,
        usd=_usd(candidate, question),
        energy_kwh=power,
        grades=_grades(candidate, question, grade),
        notes=_notes(question),
    )


def _layout(candidate: TrainingCandidate) -> TrainingLayout:
    plan, parallel = candidate.plan, candidate.plan.parallel
    return TrainingLayout(
        device=candidate.offer.device.name,
        devices=parallel.devices,
        tensor=parallel.tensor,
        pipeline=parallel.pipeline,
        data=parallel.data,
        context=parallel.context,
        expert=parallel.expert,
        zero=int(plan.zero),
        schedule=str(plan.schedule),
        chunks=parallel.interleave,
        micro_batch=plan.micro_batch,
        accumulation=plan.micro_batches,
        recompute=str(plan.recompute),
    )


def _grades(candidate: TrainingCandidate, question: TrainingQuestion, model: Grade) -> dict[str, Grade]:
    device: Device = candidate.offer.device
    links = [link for link in (candidate.offer.topology.scale_up, candidate.offer.topology.scale_out) if link is not None]
    rates = [device.memory_bandwidth.grade, device.peak[question.compute].grade]
    rates += [quantity.grade for link in links for quantity in (link.bandwidth, link.latency)]
    time = worst_grade([model, question.constants.grade, *rates])
    return {
        "memory": worst_grade([model, device.memory.grade, question.memory.runtime.grade]),
        "time": time,
        "price": worst_grade([time, candidate.offer.price.grade]),
        "energy": worst_grade([time, *([] if device.power is None else [device.power.grade])]),
    }


def _notes(question: TrainingQuestion) -> tuple[str, ...]:
    overlap = question.overlap
    return (
        f"{overlap.data:.0%} of sharded data-parallel and {overlap.layers:.0%} of in-layer communication is taken to hide "
        "behind computation",
        "no time is included for failures, restarts, evaluation and checkpoints",
    )


def _worse_because(plan: TrainingPlanned, best: TrainingPlanned) -> str:
    parts = []
    if plan.usd.middle > best.usd.middle * 1.005:
        parts.append(f"${plan.usd.middle:.0f} instead of ${best.usd.middle:.0f}")
    if plan.days > best.days * 1.005:
        parts.append(f"{plan.days:.3g} days instead of {best.days:.3g}")
    if plan.mfu < best.mfu * 0.995:
        parts.append(f"MFU {plan.mfu:.1%} instead of {best.mfu:.1%}")
    if plan.bubble_share > best.bubble_share + 0.005:
        parts.append(f"{plan.bubble_share:.1%} of a step idle in the pipeline instead of {best.bubble_share:.1%}")
    if plan.step_end_share > best.step_end_share + 0.005:
        parts.append(f"{plan.step_end_share:.1%} of a step at its end instead of {best.step_end_share:.1%}")
    return "; ".join(parts) or "no figure is worse by 0.5 %"


def _infeasible(
    found: TrainingSearch, question: TrainingQuestion, spec: ModelSpec, offers: tuple[Offer, ...]
) -> TrainingInfeasible:
    changes = sorted(_changes(found, question, spec, offers), key=lambda pair: pair[0])
    return TrainingInfeasible(_reason(found, question, spec, offers), tuple(change for _, change in changes))


def _reason(found: TrainingSearch, question: TrainingQuestion, spec: ModelSpec, offers: tuple[Offer, ...]) -> str:
    tokens = question.tokens
    if found.candidates:
        if question.deadline_days is not None:
            fastest = min(candidate.days(tokens) for candidate in found.candidates)
            if fastest > question.deadline_days:
                return f"the fastest plan takes {fastest:.3g} days, not {question.deadline_days:g}"
        least = min(_usd(candidate, question).high for candidate in found.candidates)
        return f"the cheapest plan costs up to ${least:.0f}, above the budget of ${question.max_usd:g}"
    if found.least_plan is not None and found.least_offer is not None:
        total = found.least_offer.device.memory.value * question.memory.total_fraction
        if found.least_bytes > total:
            missing = (found.least_bytes - total) / GIB
            devices = found.least_plan.parallel.devices
            return (
                f"out of memory by {missing:.2f} GiB on each device: the least that {spec.name} needs on {devices} "
                f"{found.least_offer.device.name} is {found.least_bytes / GIB:.2f} of {total / GIB:.2f} GiB"
            )
    if found.refusals:
        return found.refusals[0]
    state = state_bytes(question.optimizer).total * parameter_count(spec)
    limits = [(offer, offer.limit) for offer in offers if offer.limit is not None]
    small = [(offer, limit) for offer, limit in limits if limit * offer.device.memory.value <= state]
    if len(small) == len(offers):
        offer, limit = max(small, key=lambda pair: pair[1] * pair[0].device.memory.value)
        missing = (state / limit - offer.device.memory.value) / GIB
        return (
            f"out of memory by more than {missing:.2f} GiB on each device: parameters, gradients and optimizer take "
            f"{state / GIB:.0f} GiB over {limit} {offer.device.name}"
        )
    counts = ", ".join(f"{offer.limit or 'any number of'} {offer.device.name}" for offer in offers)
    return f"no plan over {counts}: too few for the deadline, or no layout divides {question.sequences_per_step} sequences"


def _changes(
    found: TrainingSearch, question: TrainingQuestion, spec: ModelSpec, offers: tuple[Offer, ...]
) -> Iterator[tuple[float, TrainingChange]]:
    tokens = question.tokens
    if question.deadline_days is not None:
        free = dataclasses.replace(question, deadline_days=None)
        again = [c for c in search_training(free, spec, offers).candidates if _within(c, free)]
        if again:
            fastest = min(again, key=lambda candidate: candidate.days(tokens))
            days = math.ceil(fastest.days(tokens) * 100) / 100
            yield days / question.deadline_days - 1, _change(f"a deadline of {days:g} days", fastest, question)
    for offer in offers:
        if offer.limit is None:
            continue
        wider = dataclasses.replace(offer, limit=None)
        again = [c for c in search_training(question, spec, (wider,)).candidates if _within(c, question)]
        if again:
            least = min(again, key=lambda candidate: (candidate.plan.parallel.devices, candidate.usd(tokens)))
            more = least.plan.parallel.devices - offer.limit
            if more > 0:
                yield more / offer.limit, _change(f"{more} more {offer.device.name}", least, question)
    if question.max_usd is not None:
        rich = dataclasses.replace(question, max_usd=None)
        again = [candidate for candidate in found.candidates if _within(candidate, rich)]
        if again:
            least = min(again, key=lambda candidate: _usd(candidate, question).high)
            high = _usd(least, question).high
            yield high / question.max_usd - 1, _change(f"a budget of ${high:.0f}", least, question)


def _change(what: str, candidate: TrainingCandidate, question: TrainingQuestion) -> TrainingChange:
    return TrainingChange(what, _layout(candidate).describe(), candidate.days(question.tokens), _usd(candidate, question))
