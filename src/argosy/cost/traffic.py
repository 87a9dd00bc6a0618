"""Bytes that each device sends per training step, by axis of parallelism.

A ring all-reduce of M bytes over N ranks sends 2(N-1)/N * M per device, a reduce-scatter or all-gather half of it, an
all-to-all (N-1)/N of what a device dispatches.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from argosy.cost.activations import Recompute
from argosy.cost.checks import at_least_one, not_negative
from argosy.cost.model_arithmetic import kv_elements_per_token, layer_runs
from argosy.cost.model_spec import LinearAttention, ModelSpec, MoeFfn
from argosy.cost.pipeline_schedules import part_placement
from argosy.cost.training_plan import TrainingPlan
from argosy.cost.training_sharding import first_and_last_stage, stage_device_parameters, stage_parts
from argosy.cost.zero import ZeroStage
from argosy.errors import ConfigError

_LOSS_ROW_BYTES = 3 * 4.0


def data_parallel_bytes(
    parameter_bytes: float,
    ranks: int,
    stage: ZeroStage,
    *,
    gradient_bytes: float | None = None,
    shard_ranks: int | None = None,
    micro_batches: int = 1,
    reshard_after_forward: bool = True,
) -> float:
    """Bytes per device and step to keep `ranks` replicas alike.

    DDP and ZeRO-1 2(N-1)/N Pb (gradients reduce-scattered, parameters or gradients gathered); ZeRO-2 the same with
    gradients scattered after every micro-batch; ZeRO-3 3(N-1)/N Pb per micro-batch, two gathers and a scatter, or two
    thirds of it if parameters stay gathered between forward and backward (Rajbhandari et al. 2020, section 7). Hybrid
    sharding adds the all-reduce of gradient shards over the groups (Zhao et al. 2023, section 3.2.2).

    Args:
        parameter_bytes: all parameters a device computes with; `gradient_bytes` where gradients are wider.
        micro_batches: accumulated per step; DDP, ZeRO-1 and the hybrid all-reduce communicate once.

    Raises:
        ConfigError: a size or count that cannot be, or shards that do not divide the ranks.
    """
    gradients = parameter_bytes if gradient_bytes is None else gradient_bytes
    not_negative(parameter_bytes=parameter_bytes, gradient_bytes=gradients)
    shards = ranks if shard_ranks is None else shard_ranks
    at_least_one(ranks=ranks, shard_ranks=shards, micro_batches=micro_batches)
    if ranks % shards:
        raise ConfigError(f"shard_ranks {shards} must divide the {ranks} data-parallel ranks")
    if stage is ZeroStage.NONE:
        return 2 * (ranks - 1) / ranks * gradients
    once, groups = (shards - 1) / shards, ranks // shards
    replicas = 2 * (groups - 1) / groups * gradients / shards
    scatters = 1 if stage is ZeroStage.OPTIMIZER else micro_batches
    gathers = 1
    if stage is ZeroStage.PARAMETERS:
        gathers = micro_batches * (2 if reshard_after_forward else 1)
    return once * (scatters * gradients + gathers * parameter_bytes) + replicas


def tensor_parallel_layer_bytes(
    hidden_bytes: float,
    tensor: int,
    *,
    sequence_parallel: bool = False,
    recompute: Recompute = Recompute.NONE,
    blocks: int = 2,
) -> float:
    """Bytes per device, layer and micro-batch, forward and backward: 4(t-1)/t * 2M with M = bsh x element bytes.

    Four all-reduces, two forward and two backward (Shoeybi et al. 2019, section 3); full recomputation repeats the forward
    two. Sequence parallelism splits each into an all-gather and a reduce-scatter of the same volume, and gathers the two
    sharded inputs once more for the weight gradients (Korthikanti et al. 2022, section 4.2.2).

    Args:
        blocks: of the layer that are sharded: attention and feed-forward, or attention alone.

    Raises:
        ConfigError: a size or count that cannot be.
    """
    not_negative(hidden_bytes=hidden_bytes)
    at_least_one(tensor=tensor)
    share = (tensor - 1) / tensor * hidden_bytes
    all_reduces = blocks * (2 + (recompute is Recompute.FULL))
    return all_reduces * 2 * share + (blocks * share if sequence_parallel else 0.0)


def context_parallel_layer_bytes(kv_bytes: float, context: int, *, recompute: Recompute = Recompute.NONE) -> float:
    """Bytes per device, layer and micro-batch of ring attention: 3(c-1)/c * KV of the whole sequence.

    Keys and values pass once in the forward pass; in the backward pass they pass again and their gradients with them (Liu
    et al. 2023, "Ring Attention"). Recomputing attention passes them once more.

    Raises:
        ConfigError: a size or count that cannot be.
    """
    not_negative(kv_bytes=kv_bytes)
    at_least_one(context=context)
    return (3 + (recompute is Recompute.FULL)) * (context - 1) / context * kv_bytes


def expert_parallel_layer_bytes(dispatched_bytes: float, expert: int, *, recompute: Recompute = Recompute.NONE) -> float:
    """Bytes per device, layer and micro-batch: 4(e-1)/e * tokens x k x h x element bytes.

    Dispatch and combine, forward and backward (Lepikhin et al. 2020, "GShard", section 3.2), with tokens spread evenly;
    full recomputation repeats the forward two.

    Raises:
        ConfigError: a size or count that cannot be.
    """
    not_negative(dispatched_bytes=dispatched_bytes)
    at_least_one(expert=expert)
    return (4 + (2 if recompute is Recompute.FULL else 0)) * (expert - 1) / expert * dispatched_bytes


def pipeline_bytes(boundary_bytes: float, sends: int, micro_batches: int) -> float:
    """Bytes a stage sends per step: activations down and gradients up, once per micro-batch and boundary of its chunks.

    Args:
        sends: model parts of this stage whose input or output crosses to another stage, each direction counted.

    Raises:
        ConfigError: a size or count that cannot be.
    """
    not_negative(boundary_bytes=boundary_bytes, sends=sends)
    at_least_one(micro_batches=micro_batches)
    return boundary_bytes * sends * micro_batches


@dataclass(frozen=True, slots=True)
class StageTraffic:
    """Bytes that one device of a stage sends per optimizer step, by axis."""

    stage: int
    data_bytes: float
    tensor_bytes: float
    context_bytes: float
    expert_bytes: float
    pipeline_bytes: float

    @property
    def total_bytes(self) -> float:
        """All axes."""
        return self.data_bytes + self.tensor_bytes + self.context_bytes + self.expert_bytes + self.pipeline_bytes


def pipeline_sends(plan: TrainingPlan, stage: int) -> tuple[int, int]:
    """Sends of `stage` per micro-batch: (activations to the next model part, gradients to the one before) elsewhere."""
    placement = part_placement(plan.schedule, stages=plan.parallel.pipeline, chunks=plan.parallel.interleave)
    crossings = [(a, b) for a, b in itertools.pairwise(placement) if a != b]
    return sum(a == stage for a, _ in crossings), sum(b == stage for _, b in crossings)


def step_traffic(spec: ModelSpec, plan: TrainingPlan) -> tuple[StageTraffic, ...]:
    """Bytes per device, stage and step of every axis, in the layers and between ranks.

    The vocabulary's embedding and head add one all-reduce each of hidden rows under tensor parallelism, the loss three of
    one number a row (maximum, sum and target of the softmax); a tied embedding
    on two stages adds the all-reduce of its gradient to the data axis.

    Raises:
        ConfigError: a degree that does not divide what it shards.
    """
    parameters = stage_device_parameters(spec, plan)
    first, last = first_and_last_stage(plan)
    result = []
    for stage, parts in enumerate(stage_parts(spec, plan)):
        tensor, context, expert = _layer_traffic(spec, plan, parts)
        ends = ((stage == first) + (stage == last)) * _row_bytes(spec, plan) + (stage == last) * _LOSS_ROW_BYTES
        tensor += 2 * (plan.parallel.tensor - 1) / plan.parallel.tensor * _rows(plan) * ends
        data = _data_bytes(plan, parameters[stage].dense, plan.state_ranks, plan.state_shards)
        data += _data_bytes(plan, parameters[stage].experts, plan.expert_state_ranks, plan.expert_state_shards)
        if spec.tied_embeddings and first != last and stage in (first, last):
            data += -(-spec.vocab_size // plan.parallel.tensor) * spec.hidden_size * plan.state.gradient
        boundary = _rows(plan) * _row_bytes(spec, plan)
        boundary /= plan.parallel.tensor if plan.parallel.sequence_parallel else 1
        sent = pipeline_bytes(boundary, sum(pipeline_sends(plan, stage)), plan.micro_batches)
        times = plan.micro_batches
        result.append(StageTraffic(stage, data, times * tensor, times * context, times * expert, sent))
    return tuple(result)


def _rows(plan: TrainingPlan) -> float:
    """Tokens of one micro-batch on one device."""
    return plan.sequence / plan.parallel.context * plan.micro_batch


def _row_bytes(spec: ModelSpec, plan: TrainingPlan) -> float:
    return spec.hidden_size * plan.activations.bytes_per_element


def _layer_traffic(spec: ModelSpec, plan: TrainingPlan, parts: tuple[tuple[int, int], ...]) -> tuple[float, float, float]:
    """Tensor, context and expert bytes of one micro-batch in the layers of a stage."""
    parallel, rows, row_bytes = plan.parallel, _rows(plan), _row_bytes(spec, plan)
    element = plan.activations.bytes_per_element
    tensor = context = expert = 0.0
    for start, stop in parts:
        for count, layer in layer_runs(spec, start, stop):
            routed = isinstance(layer.ffn, MoeFfn) and parallel.expert_group > parallel.tensor
            tensor += count * tensor_parallel_layer_bytes(
                rows * row_bytes,
                parallel.tensor,
                sequence_parallel=parallel.sequence_parallel,
                recompute=plan.recompute,
                blocks=1 if routed else 2,
            )
            if routed and not parallel.sequence_parallel:  # tensor ranks split the tokens, and gather them again
                passes = 2 + (plan.recompute is Recompute.FULL)
                tensor += count * passes * (parallel.tensor - 1) / parallel.tensor * rows * row_bytes
            if not isinstance(layer.attention, LinearAttention):
                kv = kv_elements_per_token(layer.attention, parallel.tensor) * element * plan.sequence * plan.micro_batch
                context += count * context_parallel_layer_bytes(kv, parallel.context, recompute=plan.recompute)
            if isinstance(layer.ffn, MoeFfn) and parallel.expert_group > parallel.tensor:
                dispatched = rows * layer.ffn.top_k * row_bytes * parallel.expert_shards / parallel.tensor
                expert += count * expert_parallel_layer_bytes(dispatched, parallel.expert, recompute=plan.recompute)
    return tensor, context, expert


def _data_bytes(plan: TrainingPlan, parameters: int, ranks: int, shards: int) -> float:
    return data_parallel_bytes(
        parameters * plan.state.parameter,
        ranks,
        plan.zero,
        gradient_bytes=parameters * plan.state.gradient,
        shard_ranks=None if plan.zero is ZeroStage.NONE else shards,
        micro_batches=plan.micro_batches,
    )
