"""Seconds of one step: a walk over its op list, each op at the roofline (Williams et al. 2009) plus overheads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from argosy.cost.collectives import Topology, collective_time
from argosy.cost.device import Device, Precision
from argosy.cost.efficiency import Constants
from argosy.cost.op import CollectiveKind, Op, OpKind
from argosy.errors import ConfigError


class Binding(StrEnum):
    """What the time of an op goes into."""

    COMPUTE = "compute"
    MEMORY = "memory"
    NETWORK = "network"
    OVERHEAD = "overhead"


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step.

    Attributes:
        stage_s: of each pipeline stage, transfers to the next one included.
        overhead_s: of the whole step, once (`Constants.step_s` and `sequence_s`).
        by_kind, by_binding: parts that sum to `latency_s`; communication hidden by overlap is not in them.
    """

    stage_s: tuple[float, ...]
    overhead_s: float
    by_kind: Mapping[OpKind, float]
    by_binding: Mapping[Binding, float]

    @property
    def latency_s(self) -> float:
        """From the first stage's start to the last one's end."""
        return sum(self.stage_s) + self.overhead_s

    @property
    def interval_s(self) -> float:
        """Between the ends of successive steps when all stages are kept busy: the slowest stage sets the pace."""
        return max(self.stage_s) + self.overhead_s

    @property
    def binds(self) -> Binding:
        """What most of the time goes into."""
        return max(self.by_binding, key=lambda binding: self.by_binding[binding])


def op_time(op: Op, device: Device, topology: Topology, constants: Constants) -> tuple[float, float, Binding]:
    """(seconds of work, seconds of overhead, what binds) of one repetition of `op`.

    Raises:
        ConfigError: the device has no arithmetic of the op's precision, or its ranks are not connected.
    """
    overhead = op.launches * constants.launch_s
    if op.collective is not None:
        time = collective_time(op.collective, topology, link_efficiency=constants.link_efficiency)
        point_to_point = op.collective.kind is CollectiveKind.POINT_TO_POINT
        overhead += constants.point_to_point_s if point_to_point else constants.collective_s
        return time.seconds, overhead, Binding.NETWORK
    efficiency = constants.efficiencies[op.kind]
    compute = memory = 0.0
    if op.flops:
        compute = op.flops / (efficiency.compute_at(op.rows) * device.peak_flop_per_s(op.precision))
    if op.bytes:
        memory = op.bytes / (efficiency.memory * device.memory_bandwidth.value)
    return (compute, overhead, Binding.COMPUTE) if compute > memory else (memory, overhead, Binding.MEMORY)


def step_time(
    ops: Iterable[Op], device: Device, topology: Topology, constants: Constants, *, sequences: int = 0
) -> StepTime:
    """Time of the step whose op list is `ops`, on `device`s connected by `topology`.

    Within a stage ops run one after the other; `Constants.overlap_fraction` of the shorter of compute and communication is
    hidden. `sequences` of the step are charged `sequence_s` each.

    Raises:
        ConfigError: see `op_time`; or there is no op.
    """
    by_kind: dict[OpKind, float] = dict.fromkeys(OpKind, 0.0)
    work: dict[int, dict[Binding, float]] = {}
    layers: dict[tuple[int, int], int] = {}
    for op in ops:
        seconds, overhead, binding = op_time(op, device, topology, constants)
        stage = work.setdefault(op.stage, dict.fromkeys(Binding, 0.0))
        stage[binding] += op.repeats * seconds
        stage[Binding.OVERHEAD] += op.repeats * overhead
        by_kind[op.kind] += op.repeats * (seconds + overhead)
        if op.layer >= 0:
            layers[op.stage, op.layer] = op.repeats
    if not work:
        raise ConfigError("a step without ops has no time")
    for (index, _), repeats in layers.items():
        work[index][Binding.OVERHEAD] += repeats * constants.layer_s
        by_kind[OpKind.ELEMENTWISE] += repeats * constants.layer_s
    for parts in work.values():
        hidden = constants.overlap_fraction * min(parts[Binding.COMPUTE] + parts[Binding.MEMORY], parts[Binding.NETWORK])
        parts[Binding.NETWORK] -= hidden
        by_kind[OpKind.COMMUNICATION] -= hidden
    overhead_s = constants.step_s + sequences * constants.sequence_s
    by_kind[OpKind.SAMPLE] += overhead_s
    by_binding = {binding: sum(parts[binding] for parts in work.values()) for binding in Binding}
    by_binding[Binding.OVERHEAD] += overhead_s
    stage_s = tuple(sum(work[index].values()) for index in sorted(work))
    return StepTime(stage_s, overhead_s, by_kind, by_binding)


def physical_bound_s(ops: Iterable[Op], device: Device) -> float:
    """Seconds that no implementation undercuts: per stage, all FLOPs at peak or all bytes at full bandwidth.

    Communication is left out, since it may hide behind both.
    """
    flops: dict[int, dict[Precision, float]] = {}
    moved: dict[int, float] = {}
    for op in ops:
        per_precision = flops.setdefault(op.stage, {})
        per_precision[op.precision] = per_precision.get(op.precision, 0.0) + op.repeats * op.flops
        moved[op.stage] = moved.get(op.stage, 0.0) + op.repeats * op.bytes
    return sum(
        max(
            sum(amount / device.peak_flop_per_s(precision) for precision, amount in per_precision.items() if amount),
            moved[stage] / device.memory_bandwidth.value,
        )
        for stage, per_precision in flops.items()
    )


def energy_j(seconds: float, device: Device, devices: int = 1) -> float:
    """Joules of `devices` at board power for `seconds`: an upper bound, since memory-bound steps draw less.

    Raises:
        ConfigError: the device's power is not known.
    """
    if device.power is None:
        raise ConfigError(f"the power of {device.name} is not known, so neither is its energy")
    return seconds * devices * device.power.value
