"""Seconds of a training step: the op list at the roofline, run through the pipeline's schedule, with stated overlap."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from argosy.cost.checks import fraction
from argosy.cost.collectives import Topology
from argosy.cost.device import Device
from argosy.cost.efficiency import Constants
from argosy.cost.mfu import FlopConvention, model_flops_per_token, utilisation_of
from argosy.cost.model_spec import ModelSpec
from argosy.cost.op import CollectiveKind, Op
from argosy.cost.parallel import Precisions
from argosy.cost.pipeline import PassTimes, PipelineRun, run_pipeline
from argosy.cost.pipeline_schedules import Schedule, pipeline_program
from argosy.cost.step_time import op_time
from argosy.cost.training_ops import TrainingOps, training_ops
from argosy.cost.training_plan import TrainingPlan

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Overlap:
    """Shares of communication that hide behind computation of the same pass, 0 unless stated.

    Attributes:
        data: gathers and scatters of sharded parameters and gradients, and the last gradient reduction behind backward.
        layers: tensor, context and expert collectives inside the layers.
    """

    data: float = 0.0
    layers: float = 0.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a share outside 0 to 1."""
        fraction(data=self.data, layers=self.layers)


@dataclass(frozen=True, slots=True)
class TrainingStepTime:
    """One optimizer step.

    Attributes:
        pipeline_s: all micro-batches through all stages, bubbles included; `bubble_s` of it idle.
        step_end_s: gradient reduction that is not hidden, optimizer, gathers.
        passes: times of the slowest stage.
        mfu: share of the dense peak of the matrix products' precision.
        hfu: the same with what is computed again, the scores of fused attention included.
    """

    pipeline_s: float
    bubble_s: float
    step_end_s: float
    passes: PassTimes
    tokens: int
    devices: int
    mfu: float
    hfu: float

    @property
    def step_s(self) -> float:
        """The whole step."""
        return self.pipeline_s + self.step_end_s

    @property
    def tokens_per_s(self) -> float:
        """Of the whole job."""
        return self.tokens / self.step_s

    def days(self, tokens: float) -> float:
        """Days to train on `tokens`."""
        return tokens / self.tokens_per_s / _DAY_S


@dataclass(frozen=True, slots=True)
class _Seconds:
    work: float = 0.0
    layer_communication: float = 0.0
    data_communication: float = 0.0
    transfer: float = 0.0

    def __add__(self, other: _Seconds) -> _Seconds:
        return _Seconds(
            self.work + other.work,
            self.layer_communication + other.layer_communication,
            self.data_communication + other.data_communication,
            max(self.transfer, other.transfer),
        )

    def total(self, overlap: Overlap) -> float:
        """Communication hides behind work as far as stated and as far as there is work."""
        hidden = overlap.layers * self.layer_communication + overlap.data * self.data_communication
        return self.work + self.layer_communication + self.data_communication - min(hidden, self.work)


def _seconds(ops: Iterable[Op], stage: int, device: Device, topology: Topology, constants: Constants) -> _Seconds:
    work = layers = data = transfer = 0.0
    for op in ops:
        if op.stage != stage:
            continue
        seconds, overhead, _ = op_time(op, device, topology, constants)
        both = op.repeats * (seconds + overhead)
        if op.collective is None:
            work += both
        elif op.collective.kind is CollectiveKind.POINT_TO_POINT:
            transfer = max(transfer, seconds + overhead)
        elif op.collective.axis in ("data", "replicas"):
            data += both
        else:
            layers += both
    return _Seconds(work, layers, data, transfer)


def stage_pass_times(
    ops: TrainingOps,
    stage: int,
    device: Device,
    topology: Topology,
    constants: Constants,
    overlap: Overlap,
    *,
    decoder_layers: int = 0,
    split_backward: bool = False,
) -> PassTimes:
    """Forward, input-gradient (with what is computed again) and weight-gradient seconds of one micro-batch on `stage`.

    Args:
        split_backward: the schedule runs weight gradients apart, so communication of theirs hides behind them alone; else
            both are one pass, and what hides behind its computation is taken off the weight gradients' seconds.

    Raises:
        ConfigError: the device lacks a precision, or ranks are not connected.
    """
    forward = _seconds(ops.forward, stage, device, topology, constants)
    inputs = _seconds((*ops.recompute, *ops.backward_input), stage, device, topology, constants)
    weights = _seconds(ops.backward_weight, stage, device, topology, constants)
    inputs_s = inputs.total(overlap)
    weights_s = weights.total(overlap) if split_backward else (inputs + weights).total(overlap) - inputs_s
    layer_s = decoder_layers * constants.layer_s
    return PassTimes(
        forward_s=forward.total(overlap) + layer_s,
        backward_input_s=inputs_s + layer_s,
        backward_weight_s=weights_s + layer_s,
        transfer_s=max(forward.transfer, inputs.transfer),
    )


def training_step_time(
    spec: ModelSpec,
    plan: TrainingPlan,
    device: Device,
    topology: Topology,
    constants: Constants,
    *,
    precisions: Precisions | None = None,
    overlap: Overlap | None = None,
    convention: FlopConvention = FlopConvention.CAUSAL_ATTENTION,
) -> TrainingStepTime:
    """Time of one step of `plan`; every stage is taken as slow as the slowest one, which sets the pace of a pipeline.

    Attention is computed, and by default counted, under a causal mask; conventions that count the whole square report a
    higher utilisation of the same run.

    Raises:
        ConfigError: the plan does not divide the model, the device lacks a precision, or ranks are not connected.
        MeasurementError: a convention that counts more than runs gives a utilisation above 1.
    """
    chosen = precisions if precisions is not None else Precisions()
    stated = overlap if overlap is not None else Overlap()
    ops = training_ops(spec, plan, chosen)
    stages = plan.parallel.pipeline
    per_stage = -(-spec.num_layers // stages)
    split = plan.schedule in (Schedule.ZB_H1, Schedule.ZB_V)
    times = [
        stage_pass_times(ops, stage, device, topology, constants, stated, decoder_layers=per_stage, split_backward=split)
        for stage in range(stages)
    ]
    slowest = PassTimes(
        forward_s=max(time.forward_s for time in times),
        backward_input_s=max(time.backward_input_s for time in times),
        backward_weight_s=max(time.backward_weight_s for time in times),
        transfer_s=max(time.transfer_s for time in times),
    )
    run = _run(plan, slowest)
    ends = [_seconds(ops.step, stage, device, topology, constants) for stage in range(stages)]
    # The reduction of gradients hides behind the last micro-batch's backward pass.
    backward_s = slowest.backward_input_s + slowest.backward_weight_s
    step_end_s = max(
        end.work + end.layer_communication + end.data_communication - min(stated.data * end.data_communication, backward_s)
        for end in ends
    )
    step_end_s += constants.step_s
    tokens, devices = plan.tokens_per_step, plan.parallel.devices
    rate, peak = tokens / (run.makespan_s + step_end_s), device.peak_flop_per_s(chosen.compute)
    mfu = utilisation_of(model_flops_per_token(spec, plan.sequence, convention), rate, devices, peak)
    return TrainingStepTime(
        pipeline_s=run.makespan_s,
        bubble_s=run.bubble_s,
        step_end_s=step_end_s,
        passes=slowest,
        tokens=tokens,
        devices=devices,
        mfu=mfu,
        hfu=mfu * ops.hardware_flops / ops.model_flops,
    )


def _run(plan: TrainingPlan, times: PassTimes) -> PipelineRun:
    parallel = plan.parallel
    program = pipeline_program(
        plan.schedule, stages=parallel.pipeline, micro_batches=plan.micro_batches, chunks=parallel.interleave
    )
    return run_pipeline(program, times)
