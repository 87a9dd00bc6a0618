"""What many steps ask of a device before any efficiency, and what that costs under given constants.

The split lets one description be priced again and again: calibration changes the constants a thousand times, the planner
changes the steps. Shapes are [ops, steps] for work and [stages, steps] for counts; an op here is one template, or one group
of sequences of one attention template.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from argosy.cost.efficiency import Constants
from argosy.cost.op import OpKind
from argosy.cost.step_time import Binding

Array = NDArray[np.float64]
KINDS = tuple(OpKind)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of many steps.

    Attributes:
        stage_s: [stages, steps].
        overhead_s: [steps], once per step and not of a stage.
        by_binding: [steps] each; they sum to `latency_s`.
    """

    stage_s: Array
    overhead_s: Array
    by_binding: dict[Binding, Array]

    @property
    def latency_s(self) -> Array:
        """[steps], from the first stage's start to the last one's end."""
        return np.asarray(self.stage_s.sum(axis=0) + self.overhead_s)

    @property
    def interval_s(self) -> Array:
        """[steps], between the ends of successive steps when all stages are kept busy."""
        return np.asarray(self.stage_s.max(axis=0) + self.overhead_s)


@dataclass(frozen=True, slots=True)
class ExchangeWork:
    """One collective of the steps, by every algorithm there is; the fastest is taken at every payload.

    Attributes:
        repeats: [stages].
        latency_s: [algorithms, 1] α terms; wire_s: [algorithms, calls] at full bandwidth.
        steps: [calls], the step that each call belongs to.
    """

    repeats: Array
    latency_s: Array
    wire_s: Array
    steps: NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class StepWork:
    """Work of many steps on one device of each stage.

    Attributes:
        kind: [ops], index into `KINDS`; repeats: [stages, ops].
        compute_s: [ops, steps] FLOPs at peak; padding_s: the same for one more row of each of the op's matrices.
        memory_s: [ops, steps] bytes at full bandwidth.
        launches, collectives, transfers: [stages, steps], how often.
        layers: [stages]; sequences: [steps].
    """

    kind: NDArray[np.intp]
    repeats: Array
    compute_s: Array
    padding_s: Array
    memory_s: Array
    launches: Array
    collectives: Array
    transfers: Array
    layers: Array
    sequences: Array
    exchanges: Sequence[ExchangeWork]

    def priced(self, constants: Constants) -> StepTimes:
        """Seconds of the steps: `step_time` of each, to rounding."""
        efficiencies = [constants.efficiencies[kind] for kind in KINDS]
        compute_share = np.array([e.compute for e in efficiencies])[self.kind][:, None]
        memory_share = np.array([e.memory for e in efficiencies])[self.kind][:, None]
        half_rows = np.array([e.half_rows for e in efficiencies])[self.kind][:, None]
        compute = (self.compute_s + half_rows * self.padding_s) / compute_share
        memory = self.memory_s / memory_share
        bound = compute > memory
        compute_s = self.repeats @ np.where(bound, compute, 0.0)
        memory_s = self.repeats @ np.where(bound, 0.0, memory)
        network_s = np.zeros_like(compute_s)
        for exchange in self.exchanges:
            fastest = (exchange.latency_s + exchange.wire_s / constants.link_efficiency).min(axis=0)
            network_s += np.outer(exchange.repeats, np.bincount(exchange.steps, fastest, len(self.sequences)))
        network_s -= constants.overlap_fraction * np.minimum(compute_s + memory_s, network_s)
        overhead_s = (
            self.launches * constants.launch_s
            + self.collectives * constants.collective_s
            + self.transfers * constants.point_to_point_s
            + self.layers[:, None] * constants.layer_s
        )
        step_overhead = constants.step_s + constants.sequence_s * self.sequences
        parts = {
            Binding.COMPUTE: compute_s,
            Binding.MEMORY: memory_s,
            Binding.NETWORK: network_s,
            Binding.OVERHEAD: overhead_s,
        }
        by_binding = {binding: np.asarray(part.sum(axis=0)) for binding, part in parts.items()}
        by_binding[Binding.OVERHEAD] = by_binding[Binding.OVERHEAD] + step_overhead
        return StepTimes(compute_s + memory_s + network_s + overhead_s, step_overhead, by_binding)
