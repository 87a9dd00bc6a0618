"""Device memory of training, stage by stage: model state, activations in flight, buffers, and what is kept on the host."""

from __future__ import annotations

from dataclasses import dataclass

from argosy.cost.activations import Recompute, layer_activation_bytes
from argosy.cost.model_arithmetic import layer_runs
from argosy.cost.model_spec import Layer, ModelSpec
from argosy.cost.pipeline import in_flight_micro_batches
from argosy.cost.pipeline_schedules import Schedule
from argosy.cost.training_plan import TrainingPlan
from argosy.cost.training_sharding import (
    DeviceParameters,
    first_and_last_stage,
    layer_device_parameters,
    stage_device_parameters,
    stage_parts,
)
from argosy.cost.zero import ModelState, ZeroStage, model_state


@dataclass(frozen=True, slots=True)
class TrainingStageMemory:
    """Bytes on each device of one pipeline stage.

    Attributes:
        activation_bytes: kept for backward, of all micro-batches in flight, with the head's inputs and fp32 logits.
        workspace_bytes: under recomputation, what one layer's backward pass brings back for a moment.
        buffer_bytes: parameters and gradients of whole layers under ZeRO-3, two layers gathered (one ahead) and one
            layer's gradients before they are scattered; under ZeRO-2 the latter.
        host_bytes: kept off the device, per device.
    """

    stage: int
    parameter_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    activation_bytes: float
    workspace_bytes: float
    buffer_bytes: float
    reserved_bytes: float
    host_bytes: float

    @property
    def total_bytes(self) -> float:
        """All that lies on the device."""
        state = self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes
        return state + self.activation_bytes + self.workspace_bytes + self.buffer_bytes + self.reserved_bytes


def training_memory(spec: ModelSpec, plan: TrainingPlan) -> tuple[TrainingStageMemory, ...]:
    """Bytes per device of every stage.

    Model state after Rajbhandari et al. 2020, activations after Korthikanti et al. 2022 with the tensors of this model's
    layers, micro-batches in flight after the schedule. Chunks of one stage are taken as equally large.

    Raises:
        ConfigError: a degree that does not divide what it shards.
    """
    first, last = first_and_last_stage(plan)
    parameters = stage_device_parameters(spec, plan)
    result = []
    for stage, parts in enumerate(stage_parts(spec, plan)):
        layers = [run for start, stop in parts for run in layer_runs(spec, start, stop)]
        state = _state(plan, parameters[stage])
        kept = sum(count * _layer_bytes(plan, layer, spec, plan.recompute) for count, layer in layers)
        activations = kept * _in_flight(plan, stage) + _ends_bytes(spec, plan, embeds=stage == first, heads=stage == last)
        workspace = 0.0
        if plan.recompute is not Recompute.NONE:
            workspace = max(
                _layer_bytes(plan, layer, spec, Recompute.NONE) - _layer_bytes(plan, layer, spec, plan.recompute)
                for _, layer in layers
            )
        offload = plan.offload
        host = state.parameter_bytes if offload.parameters else 0.0
        host += state.gradient_bytes if offload.gradients else 0.0
        host += state.optimizer_bytes if offload.optimizer else 0.0
        host += activations if offload.checkpoints else 0.0
        result.append(
            TrainingStageMemory(
                stage=stage,
                parameter_bytes=0.0 if offload.parameters else state.parameter_bytes,
                gradient_bytes=0.0 if offload.gradients else state.gradient_bytes,
                optimizer_bytes=0.0 if offload.optimizer else state.optimizer_bytes,
                activation_bytes=0.0 if offload.checkpoints else activations,
                workspace_bytes=workspace,
                buffer_bytes=_buffer_bytes(spec, plan, layers),
                reserved_bytes=plan.reserved_bytes,
                host_bytes=host,
            )
        )
    return tuple(result)


def peak_device_bytes(spec: ModelSpec, plan: TrainingPlan) -> float:
    """Bytes on the fullest device.

    Raises:
        ConfigError: a degree that does not divide what it shards.
    """
    return max(stage.total_bytes for stage in training_memory(spec, plan))


def _state(plan: TrainingPlan, parameters: DeviceParameters) -> ModelState:
    dense = model_state(parameters.dense, plan.zero, plan.state_ranks, plan.state, shard_ranks=plan.shard_ranks)
    experts = model_state(
        parameters.experts, plan.zero, plan.expert_state_ranks, plan.state, shard_ranks=plan.expert_state_shards
    )
    return ModelState(
        parameter_bytes=dense.parameter_bytes + experts.parameter_bytes,
        gradient_bytes=dense.gradient_bytes + experts.gradient_bytes,
        optimizer_bytes=dense.optimizer_bytes + experts.optimizer_bytes,
    )


def _layer_bytes(plan: TrainingPlan, layer: Layer, spec: ModelSpec, recompute: Recompute) -> float:
    return layer_activation_bytes(
        layer,
        spec.hidden_size,
        plan.parallel,
        sequence=plan.sequence,
        micro_batch=plan.micro_batch,
        recompute=recompute,
        precision=plan.activations,
        conventions=plan.conventions,
    )


def _in_flight(plan: TrainingPlan, stage: int) -> float:
    """Micro-batches whose activations a stage holds; without a pipeline one, however many accumulate."""
    parallel = plan.parallel
    if parallel.pipeline == 1:
        return 1.0
    return in_flight_micro_batches(plan.schedule, stage, parallel.pipeline, plan.micro_batches, parallel.interleave)


def _ends_bytes(spec: ModelSpec, plan: TrainingPlan, *, embeds: bool, heads: bool) -> float:
    """Embedding dropout, final norm's and head's inputs, fp32 logits; the head's backward follows its forward at once.

    Korthikanti et al. 2022, section 4.3. GPipe keeps every micro-batch's.
    """
    parallel = plan.parallel
    tokens = plan.sequence // parallel.context * plan.micro_batch
    shards = parallel.tensor if parallel.sequence_parallel else 1
    total = 0.0
    if embeds and plan.conventions.dropout:
        flight = in_flight_micro_batches(plan.schedule, 0, parallel.pipeline, plan.micro_batches, parallel.interleave)
        total += tokens * spec.hidden_size / shards * (1.0 if parallel.pipeline == 1 else flight)
    if heads:
        kept = plan.micro_batches if plan.schedule is Schedule.GPIPE and parallel.pipeline > 1 else 1
        inputs = 2 * plan.activations.bytes_per_element * spec.hidden_size / shards
        total += kept * tokens * (inputs + 4.0 * spec.vocab_size / parallel.tensor)
    return total


def _buffer_bytes(spec: ModelSpec, plan: TrainingPlan, layers: list[tuple[int, Layer]]) -> float:
    if plan.zero < ZeroStage.GRADIENTS or plan.state_ranks == 1:
        return 0.0
    largest = max(
        layer_device_parameters(layer, spec.hidden_size, plan.parallel, norm_has_bias=spec.norm_has_bias).total
        for _, layer in layers
    )
    gathered = 2 * plan.state.parameter if plan.zero is ZeroStage.PARAMETERS else 0.0
    return largest * (gathered + plan.state.gradient)
