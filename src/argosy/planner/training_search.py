"""The search over training plans: layouts that divide, memory that fits, then time by running the pipeline's schedule."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from argosy.cost.activations import Recompute
from argosy.cost.mfu import FlopConvention, model_flops_per_token
from argosy.cost.model_arithmetic import parameter_count
from argosy.cost.model_spec import ModelSpec
from argosy.cost.parallel import ParallelPlan, Precisions
from argosy.cost.pipeline_schedules import Schedule
from argosy.cost.training_arithmetic import training_days
from argosy.cost.training_memory import TrainingStageMemory, training_memory
from argosy.cost.training_plan import TrainingPlan
from argosy.cost.training_time import TrainingStepTime, training_step_time
from argosy.cost.zero import ZeroStage, state_bytes
from argosy.errors import ConfigError
from argosy.planner.layouts import has_experts
from argosy.planner.offers import Offer
from argosy.planner.training_question import TrainingQuestion

_TENSOR = (1, 2, 4, 8)
_PIPELINE = (1, 2, 4, 8, 16)
_CONTEXT = (1, 2, 4, 8)
_LONG_SEQUENCE = 16384
_CHUNKS = 2
_MOST_DEVICES = 1 << 16
# Plans whose time is run exactly, after a ranking by closed forms; and counts of devices tried from the fewest that may do.
_EXACT, _COUNTS = 8, 3


@dataclass(frozen=True, slots=True)
class TrainingCandidate:
    """A plan that fits, with its time and the memory of its fullest stage."""

    offer: Offer
    plan: TrainingPlan
    memory: TrainingStageMemory
    time: TrainingStepTime

    def days(self, tokens: float) -> float:
        """Days to train on `tokens`."""
        return self.time.days(tokens)

    def usd(self, tokens: float) -> float:
        """Of the run, in the middle of the price range."""
        return self.days(tokens) * 24.0 * self.plan.parallel.devices * self.offer.usd_per_h


@dataclass(frozen=True, slots=True)
class TrainingSearch:
    """What was looked at.

    Attributes:
        least_bytes: on the fullest device, of the plan that needs least; least_plan: that plan; device_bytes: it has.
        refusals: why layouts were not possible.
    """

    candidates: tuple[TrainingCandidate, ...]
    evaluated: int
    least_bytes: float
    least_plan: TrainingPlan | None
    least_offer: Offer | None
    refusals: tuple[str, ...]


def precisions_of(question: TrainingQuestion) -> Precisions:
    """16-bit weights and activations, matrix products in the question's arithmetic."""
    return Precisions(compute=question.compute)


def search_training(question: TrainingQuestion, spec: ModelSpec, offers: Iterable[Offer]) -> TrainingSearch:
    """Plans of every offer: all that fit in memory are ranked by closed forms, the best are run."""
    candidates: list[TrainingCandidate] = []
    evaluated, refusals = 0, dict[str, None]()
    least: tuple[float, TrainingPlan | None, Offer | None] = (math.inf, None, None)
    for offer in offers:
        for devices in device_counts(question, spec, offer):
            fitting = []
            for plan in training_plans(question, spec, offer, devices):
                evaluated += 1
                try:
                    stage = max(training_memory(spec, plan), key=lambda stage: stage.total_bytes)
                except ConfigError as error:
                    refusals[error.message] = None
                    continue
                if stage.total_bytes < least[0]:
                    least = (stage.total_bytes, plan, offer)
                if stage.total_bytes <= offer.device.memory.value * question.memory.total_fraction:
                    fitting.append((plan, stage))
            candidates += _timed(question, spec, offer, fitting)
    return TrainingSearch(tuple(candidates), evaluated, *least, tuple(refusals))


def device_counts(question: TrainingQuestion, spec: ModelSpec, offer: Offer) -> list[int]:
    """Counts to try: those asked for; else powers of two times a node.

    Of these, the fewest that hold the model state and could meet the deadline at the devices' peak, and a few more for what
    they really reach; without a deadline, and with a limit, all devices and a few halves of them.
    """
    node, limit = offer.topology.devices_per_node, offer.limit
    if question.space.devices is not None:
        counts = [count for count in question.space.devices if limit is None or count <= limit]
    else:
        powers = [1 << exponent for exponent in range(_MOST_DEVICES.bit_length()) if (1 << exponent) <= node]
        powers += [node << exponent for exponent in range(1, 17) if node << exponent <= _MOST_DEVICES]
        counts = [count for count in powers if limit is None or count < limit] + ([limit] if limit is not None else [])
    if question.deadline_days is not None:
        flops = model_flops_per_token(spec, question.sequence, FlopConvention.CAUSAL_ATTENTION) * question.tokens
        peak = offer.device.peak_flop_per_s(question.compute)
        alone = training_days(flops, devices=1, mfu=1.0, peak_flop_per_s=peak)
        counts = [count for count in counts if alone / count <= question.deadline_days]
    state = state_bytes(question.optimizer).total * parameter_count(spec)
    large_enough = [count for count in counts if count * offer.device.memory.value > state]
    if question.space.devices is not None:
        return large_enough
    return large_enough[:_COUNTS] if limit is None or question.deadline_days is not None else large_enough[-_COUNTS:]


def training_plans(question: TrainingQuestion, spec: ModelSpec, offer: Offer, devices: int) -> Iterator[TrainingPlan]:
    """Plans over exactly `devices` devices whose degrees divide the batch and fit the schedule."""
    space, node = question.space, offer.topology.devices_per_node
    tensors = space.tensor or tuple(degree for degree in _TENSOR if degree <= node)
    contexts = space.context or (_CONTEXT if question.sequence >= _LONG_SEQUENCE else (1,))
    for tensor, pipeline, context in itertools.product(tensors, space.pipeline or _PIPELINE, contexts):
        inner = tensor * pipeline * context
        if devices % inner or pipeline > spec.num_layers:
            continue
        data = devices // inner
        for expert in _experts(question, spec, tensor * data, node):
            for micro_batch in space.micro_batch:
                if question.sequences_per_step % (data * micro_batch):
                    continue
                micro_batches = question.sequences_per_step // (data * micro_batch)
                if micro_batches < pipeline:
                    continue
                yield from _settings(question, spec, (tensor, pipeline, context, data, expert), micro_batch, micro_batches)


def _experts(question: TrainingQuestion, spec: ModelSpec, group: int, node: int) -> list[int]:
    if not has_experts(spec):
        return [1]
    degrees = question.space.expert or (1, *(degree for degree in (2, 4, 8, 16, 32, 64) if degree <= max(node, 8)))
    return [degree for degree in degrees if group % degree == 0]


def _settings(
    question: TrainingQuestion,
    spec: ModelSpec,
    degrees: tuple[int, int, int, int, int],
    micro_batch: int,
    micro_batches: int,
) -> Iterator[TrainingPlan]:
    tensor, pipeline, context, data, expert = degrees
    space = question.space
    if space.zero is not None:
        stages = space.zero
    elif data * context == 1:
        stages = (ZeroStage.NONE,)
    else:
        # Sharded parameters would be gathered for every micro-batch of a pipeline.
        stages = (ZeroStage.OPTIMIZER,) if pipeline > 1 else (ZeroStage.OPTIMIZER, ZeroStage.PARAMETERS)
    schedules = space.schedules if pipeline > 1 else (Schedule.ONE_F_ONE_B,)
    for zero, schedule, recompute in itertools.product(stages, schedules, space.recompute):
        chunks = _CHUNKS if schedule in (Schedule.INTERLEAVED, Schedule.ZB_V) else 1
        if pipeline * chunks > spec.num_layers:
            continue
        try:
            yield TrainingPlan(
                ParallelPlan(
                    tensor=tensor,
                    pipeline=pipeline,
                    expert=expert,
                    expert_tensor=1 if expert > 1 else None,
                    data=data,
                    context=context,
                    sequence_parallel=tensor > 1,
                    interleave=chunks,
                ),
                question.sequence,
                micro_batch,
                micro_batches,
                schedule,
                recompute,
                zero,
                state=state_bytes(question.optimizer),
                reserved_bytes=question.memory.runtime.value,
            )
        except ConfigError:
            continue


def _timed(
    question: TrainingQuestion, spec: ModelSpec, offer: Offer, fitting: list[tuple[TrainingPlan, TrainingStageMemory]]
) -> list[TrainingCandidate]:
    """Times of the plans that closed forms rank best.

    Recomputing where nothing has to be is never faster, so those plans are left out.
    """
    light = {_but_recompute(plan) for plan, _ in fitting if plan.recompute is Recompute.NONE}
    ranked = []
    for plan, stage in fitting:
        if plan.recompute is not Recompute.NONE and _but_recompute(plan) in light:
            continue
        estimate = _estimate_s(question, spec, offer, plan)
        if estimate is not None:
            ranked.append((estimate, plan, stage))
    ranked.sort(key=lambda entry: entry[0])
    found = []
    for _, plan, stage in ranked[:_EXACT]:
        time = _time(question, spec, offer, plan)
        if time is not None:
            found.append(TrainingCandidate(offer, plan, stage, time))
    return found


def _but_recompute(plan: TrainingPlan) -> TrainingPlan:
    return dataclasses.replace(plan, recompute=Recompute.NONE)


def _time(question: TrainingQuestion, spec: ModelSpec, offer: Offer, plan: TrainingPlan) -> TrainingStepTime | None:
    """None where devices are not connected, or the plan does not divide the model."""
    try:
        return training_step_time(
            spec,
            plan,
            offer.device,
            offer.topology,
            question.constants,
            precisions=precisions_of(question),
            overlap=question.overlap,
        )
    except ConfigError:
        return None


def _estimate_s(question: TrainingQuestion, spec: ModelSpec, offer: Offer, plan: TrainingPlan) -> float | None:
    """Seconds of a step from its passes: micro-batches and the bubble, (p - 1)/v more of them (a third for ZB-H1)."""
    pipeline = plan.parallel.pipeline
    short = dataclasses.replace(plan, micro_batches=pipeline)
    time = _time(question, spec, offer, short)
    if time is None:
        return None
    idle = (pipeline - 1) / plan.parallel.interleave
    idle /= 3.0 if plan.schedule is Schedule.ZB_H1 else 1.0
    return (plan.micro_batches + idle) * time.passes.micro_batch_s + time.step_end_s
