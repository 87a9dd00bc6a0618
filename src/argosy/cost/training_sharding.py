"""Parameters that each device of a training plan computes with, before ZeRO shards them further."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from argosy.cost.model_arithmetic import (
    kv_heads_per_device,
    layer_parameters,
    layer_runs,
    split_layers,
)
from argosy.cost.model_spec import DenseFfn, Gqa, Layer, LinearAttention, Mla, ModelSpec, MoeFfn
from argosy.cost.parallel import ParallelPlan
from argosy.cost.pipeline_schedules import part_placement
from argosy.cost.training_plan import TrainingPlan
from argosy.errors import ConfigError


@dataclass(frozen=True, slots=True)
class DeviceParameters:
    """Elements on one device: `dense` of everything but routed experts, `experts` of those; per stage or per layer."""

    dense: int
    experts: int

    @property
    def total(self) -> int:
        """Both."""
        return self.dense + self.experts

    def __add__(self, other: DeviceParameters) -> DeviceParameters:
        return DeviceParameters(self.dense + other.dense, self.experts + other.experts)


def _share(count: int, parts: int, what: str, axis: str) -> int:
    if count % parts:
        raise ConfigError(f"{axis} parallelism {parts} does not divide {what} {count}")
    return count // parts


def _attention_share(attention: Gqa | Mla | LinearAttention, tensor: int) -> Gqa | Mla | LinearAttention:
    """The attention block that one of `tensor` devices computes; latent projections are whole on each."""
    heads = _share(attention.heads, tensor, "attention heads", "tensor")
    if isinstance(attention, Gqa):
        return dataclasses.replace(attention, heads=heads, kv_heads=kv_heads_per_device(attention, tensor))
    if isinstance(attention, Mla):
        return dataclasses.replace(attention, heads=heads)
    return dataclasses.replace(attention, heads=heads, kv_heads=_share(attention.kv_heads, tensor, "key heads", "tensor"))


def _ffn_share(ffn: DenseFfn | MoeFfn, parallel: ParallelPlan) -> DenseFfn | MoeFfn:
    """The feed-forward that one device holds; shared experts are whole where the expert group spans data ranks."""
    tensor = parallel.tensor
    if isinstance(ffn, DenseFfn):
        return dataclasses.replace(ffn, size=_share(ffn.size, tensor, "feed-forward size", "tensor"))
    shared = ffn.shared_size
    if parallel.expert_group <= tensor:
        shared = _share(shared, tensor, "shared expert size", "tensor")
    return dataclasses.replace(
        ffn,
        experts=_share(ffn.experts, parallel.expert, "experts", "expert"),
        size=_share(ffn.size, parallel.expert_shards, "expert size", "expert_tensor"),
        shared_size=shared,
    )


def layer_device_parameters(
    layer: Layer, hidden: int, parallel: ParallelPlan, *, norm_has_bias: bool = False
) -> DeviceParameters:
    """Elements of one layer on one device: matrices divided by tensor, experts by expert groups, norms whole.

    Output biases and the router are whole on every device; KV heads are replicated beyond their number.

    Raises:
        ConfigError: a degree that does not divide heads, feed-forward size or experts.
    """
    share = dataclasses.replace(
        layer, attention=_attention_share(layer.attention, parallel.tensor), ffn=_ffn_share(layer.ffn, parallel)
    )
    held = layer_parameters(share, hidden, norm_has_bias=norm_has_bias)
    router = layer_parameters(layer, hidden, norm_has_bias=norm_has_bias).router
    return DeviceParameters(held.total - held.routed - held.router + router, held.routed)


def stage_parts(spec: ModelSpec, plan: TrainingPlan) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Per stage the (first, one past the last) layers of each chunk it holds, in model order.

    Raises:
        ConfigError: fewer layers than chunks.
    """
    parallel = plan.parallel
    placement = part_placement(plan.schedule, stages=parallel.pipeline, chunks=parallel.interleave)
    bounds = split_layers(spec.num_layers, len(placement))
    return tuple(
        tuple(bound for bound, stage in zip(bounds, placement, strict=True) if stage == wanted)
        for wanted in range(parallel.pipeline)
    )


def first_and_last_stage(plan: TrainingPlan) -> tuple[int, int]:
    """Stages that hold the embedding and the head; the same one without a pipeline and under ZB-V."""
    placement = part_placement(plan.schedule, stages=plan.parallel.pipeline, chunks=plan.parallel.interleave)
    return placement[0], placement[-1]


def stage_device_parameters(spec: ModelSpec, plan: TrainingPlan) -> tuple[DeviceParameters, ...]:
    """Elements on one device of each stage. A tied embedding is held by both ends unless they are one stage.

    The vocabulary is padded to a multiple of `tensor`.

    Raises:
        ConfigError: a degree that does not divide what it shards.
    """
    first, last = first_and_last_stage(plan)
    hidden, tensor = spec.hidden_size, plan.parallel.tensor
    vocabulary = -(-spec.vocab_size // tensor) * hidden
    result = []
    for stage, parts in enumerate(stage_parts(spec, plan)):
        held = DeviceParameters(0, 0)
        for start, stop in parts:
            for count, layer in layer_runs(spec, start, stop):
                one = layer_device_parameters(layer, hidden, plan.parallel, norm_has_bias=spec.norm_has_bias)
                held += DeviceParameters(count * one.dense, count * one.experts)
        outside = vocabulary + spec.learned_positions * hidden if stage == first else 0
        if stage == last:
            outside += hidden * (2 if spec.norm_has_bias else 1)
            outside += 0 if spec.tied_embeddings and stage == first else vocabulary
        result.append(DeviceParameters(held.dense + outside, held.experts))
    return tuple(result)
