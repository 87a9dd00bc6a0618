"""Where the ops of a plan's steps lie under the roofline of its device (Williams et al. 2009)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from argosy.cost.deployment import Deployment
from argosy.cost.device import Device, Precision
from argosy.cost.formats import precisions_for
from argosy.cost.op import Op, OpKind, StepComposition
from argosy.cost.op_list import forward_templates, ops_of_step
from argosy.cost.parallel import ParallelPlan
from argosy.cost.step_time import Binding, op_time
from argosy.planner.explain import weight_format
from argosy.planner.model_source import find_spec
from argosy.planner.offers import Offer, resolve
from argosy.planner.serving_answer import PoolLayout, ServingPlan
from argosy.planner.serving_question import ServingQuestion


@dataclass(frozen=True, slots=True)
class OpPoint:
    """All ops of one name in one step of one device.

    Attributes:
        flops, bytes, seconds: of the step; `seconds` with efficiencies and launch overheads.
        share: of the step's time.
        binding: what most of its time goes into.
    """

    name: str
    kind: OpKind
    precision: Precision
    flops: float
    bytes: float
    seconds: float
    share: float
    binding: Binding

    @property
    def intensity(self) -> float:
        """FLOPs per byte; infinite where nothing is moved."""
        return self.flops / self.bytes if self.bytes else math.inf

    @property
    def flop_per_s(self) -> float:
        """What it reaches."""
        return self.flops / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class StepPoints:
    """A step of a pool: what it computes, in words, and its ops by falling time."""

    pool: str
    step: str
    device: Device
    points: tuple[OpPoint, ...]

    @property
    def seconds(self) -> float:
        """Time of all ops of all stages, one after the other."""
        return sum(point.seconds for point in self.points)


def plan_steps(question: ServingQuestion, plan: ServingPlan) -> tuple[StepPoints, ...]:
    """Of each pool what it runs: a step of decoding at the mean number of running sequences, a step of one prompt's chunk.

    Raises:
        ConfigError: `plan` is not of this question: its device is not among the candidates.
    """
    steps = []
    for pool in plan.pools:
        offer = next(found for found in map(resolve, question.devices) if found.device.name == pool.device)
        deployment = pool_deployment(question, pool, offer.device)
        if pool.role != "prefill":
            composition = decode_step(question, plan, pool)
            count, _, past = composition.groups[0]
            words = f"decode of {count} sequences at {past} tokens"
            steps.append(_points(question, pool, offer, deployment, composition, words))
        if pool.role != "decode":
            tokens = min(pool.chunk_tokens, question.traffic.prompt.tokens)
            words = f"prefill of {tokens} tokens"
            steps.append(_points(question, pool, offer, deployment, StepComposition(((1, tokens, 0),), 1), words))
    return tuple(steps)


def pool_deployment(question: ServingQuestion, pool: PoolLayout, device: Device) -> Deployment:
    """The deployment that `pool` describes."""
    parallel = ParallelPlan.for_serving(pool.tensor, pool.pipeline, pool.data, pool.expert)
    precisions = precisions_for(device, weight_format(pool), Precision(pool.kv))
    return Deployment(find_spec(question.model)[0], parallel, precisions, question.expert_imbalance)


def decode_step(question: ServingQuestion, plan: ServingPlan, pool: PoolLayout) -> StepComposition:
    """What one data rank decodes on average: its part of the running sequences, half-way through their answers."""
    sequences = max(1, math.ceil(plan.throughput.running / (pool.data * pool.pipeline)))
    width = 1 if plan.speculation is None else plan.speculation.drafts + 1
    past = round(question.traffic.prompt.mean + question.traffic.output.mean / 2)
    return StepComposition(((sequences, width, past),), sequences * width)


def _points(
    question: ServingQuestion, pool: PoolLayout, offer: Offer, deployment: Deployment, step: StepComposition, words: str
) -> StepPoints:
    ops = ops_of_step(deployment, forward_templates(deployment), step)
    merged: dict[str, list[tuple[Op, float, Binding]]] = {}
    for op in ops:
        seconds, overhead, binding = op_time(op, offer.device, offer.topology, question.constants_on(offer.device.name))
        bound = binding if seconds >= overhead else Binding.OVERHEAD
        merged.setdefault(op.name, []).append((op, op.repeats * (seconds + overhead), bound))
    total = sum(seconds for entries in merged.values() for _, seconds, _ in entries)
    points = [_point(name, entries, total) for name, entries in merged.items()]
    return StepPoints(pool.role, words, offer.device, tuple(sorted(points, key=lambda point: -point.seconds)))


def _point(name: str, entries: list[tuple[Op, float, Binding]], total_s: float) -> OpPoint:
    seconds = sum(entry[1] for entry in entries)
    first, _, binding = max(entries, key=lambda entry: entry[1])
    return OpPoint(
        name=name,
        kind=first.kind,
        precision=first.precision,
        flops=sum(op.repeats * op.flops for op, _, _ in entries),
        bytes=sum(op.repeats * op.bytes for op, _, _ in entries),
        seconds=seconds,
        share=seconds / total_s,
        binding=binding,
    )
