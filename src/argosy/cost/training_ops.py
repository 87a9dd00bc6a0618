"""The op list of a training step, made from the forward op list: recomputation, backward, gradients, optimizer.

One micro-batch: `forward`, then `recompute`, `backward_input` and `backward_weight` (apart, since zero-bubble schedules
run them apart). Once per step: `step`. All are of one device of each stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from argosy.cost.activations import Recompute
from argosy.cost.device import Precision
from argosy.cost.model_arithmetic import layer_runs
from argosy.cost.model_spec import ModelSpec
from argosy.cost.op import Collective, CollectiveKind, Op, OpKind, Phase, StepComposition
from argosy.cost.op_list import forward_ops
from argosy.cost.parallel import Precisions
from argosy.cost.traffic import pipeline_sends
from argosy.cost.training_plan import TrainingPlan
from argosy.cost.training_sharding import (
    DeviceParameters,
    first_and_last_stage,
    layer_device_parameters,
    stage_device_parameters,
    stage_parts,
)
from argosy.cost.zero import ZeroStage
from argosy.errors import ConfigError

_MATRICES = (OpKind.GEMM, OpKind.GROUPED_GEMM, OpKind.ROUTER)
# The backward pass of fused attention makes the scores again: one product of the forward pass's two (Dao et al. 2022).
_FUSED_RECOMPUTE = 0.5
# A gated activation reads 2 and writes 1 vector; its backward reads those 2 and a gradient and writes 2: the most of any.
_ELEMENTWISE_BACKWARD = 5 / 3
# Adam: two moment updates, bias corrections, a square root, a division, decay and the update.
_OPTIMIZER_FLOPS = 16.0
_LOGIT_BYTES = 4.0
# What serving does with logits; a loss takes its place.
_SERVING_ONLY = ("logits all-gather", "sample")
_HEAD = ("final norm", "head")


@dataclass(frozen=True, slots=True)
class TrainingOps:
    """Ops of one micro-batch, and of the end of the step."""

    forward: tuple[Op, ...]
    recompute: tuple[Op, ...]
    backward_input: tuple[Op, ...]
    backward_weight: tuple[Op, ...]
    step: tuple[Op, ...]

    @property
    def model_flops(self) -> float:
        """FLOPs that the model needs of one device of every stage for one micro-batch, without what is computed again."""
        return total_flops((*self.forward, *self.backward_input, *self.backward_weight))

    @property
    def hardware_flops(self) -> float:
        """FLOPs that run."""
        return self.model_flops + total_flops(self.recompute)


def total_flops(ops: Iterable[Op]) -> float:
    """FLOPs of matrix products and attention; elementwise work has no part in a model's FLOPs."""
    return sum(op.flops * op.repeats for op in ops if op.kind in (*_MATRICES, OpKind.ATTENTION))


def training_ops(spec: ModelSpec, plan: TrainingPlan, precisions: Precisions | None = None) -> TrainingOps:
    """Ops of one step of `plan`.

    Backward costs twice the forward products: gradients of inputs and of weights, each as many FLOPs (Kaplan et al. 2020).
    Collectives turn round: an all-gather's gradient is a reduce-scatter, and what was gathered is gathered again for the
    weight gradients (Korthikanti et al. 2022, section 4.2.2); an all-reduce behind a block has one before it in backward.

    Args:
        precisions: of weights and arithmetic, bf16 by default.

    Raises:
        ConfigError: the plan does not divide the model, or weights have too few bits to be trained.
    """
    chosen = precisions if precisions is not None else Precisions()
    for precision in (chosen.weights, chosen.experts or chosen.weights, chosen.embeddings):
        if precision in (Precision.INT8, Precision.INT4, Precision.FP4):
            raise ConfigError(f"training needs floating-point weights of at least 8 bits, got {precision}")
    tokens = plan.micro_batch * plan.sequence
    rows = -(-tokens // plan.parallel.context)
    composition = StepComposition(((plan.micro_batch, plan.sequence, 0),), rows)
    forward = [*_model_forward(spec, plan, chosen, composition), *_loss(spec, plan, chosen, rows)]
    gathers = list(_parameter_gathers(spec, plan, chosen, Phase.FORWARD))
    backward_input = [
        *_head_backward(spec, plan, chosen, rows),
        *(turned for op in forward for turned in _input_backward(op)),
    ]
    backward_weight = [turned for op in forward for turned in _weight_backward(op, plan, chosen)]
    recompute = tuple(_recomputed(forward, plan))
    forward += _sends(spec, plan, chosen, rows, Phase.FORWARD)
    backward_input += _sends(spec, plan, chosen, rows, Phase.BACKWARD)
    if plan.zero is ZeroStage.PARAMETERS:
        backward_input += _parameter_gathers(spec, plan, chosen, Phase.BACKWARD)
    if plan.zero >= ZeroStage.GRADIENTS:
        backward_weight += _gradient_scatters(spec, plan, chosen)
    return TrainingOps(
        forward=(*gathers, *forward) if plan.zero is ZeroStage.PARAMETERS else tuple(forward),
        recompute=recompute,
        backward_input=tuple(backward_input),
        backward_weight=tuple(backward_weight),
        step=tuple(_step_end(spec, plan, chosen)),
    )


def _model_forward(spec: ModelSpec, plan: TrainingPlan, precisions: Precisions, step: StepComposition) -> Iterator[Op]:
    """The forward list without what only serving does, and without sends, which depend on the schedule."""
    _, last = first_and_last_stage(plan)
    for op in forward_ops(spec, plan.parallel, precisions, step):
        sends = op.collective is not None and op.collective.kind is CollectiveKind.POINT_TO_POINT
        if op.name in _SERVING_ONLY or sends:
            continue
        yield op._replace(stage=last) if op.name in _HEAD else op


def _sends(spec: ModelSpec, plan: TrainingPlan, precisions: Precisions, rows: int, phase: Phase) -> Iterator[Op]:
    """Activations to the stage of the next model part, gradients back, as often as the schedule's placement crosses."""
    parallel = plan.parallel
    payload = rows * spec.hidden_size * precisions.activations.bytes_per_element
    payload /= parallel.tensor if parallel.sequence_parallel else 1
    stride = parallel.tensor * parallel.data * parallel.context
    send = Collective(CollectiveKind.POINT_TO_POINT, payload, 2, "pipeline", stride)
    for stage in range(parallel.pipeline):
        activations, gradients = pipeline_sends(plan, stage)
        times = activations if phase is Phase.FORWARD else gradients
        if times:
            yield _communication(f"send {phase}", phase, stage, precisions, send)._replace(repeats=times)


def _communication(name: str, phase: Phase, stage: int, precisions: Precisions, collective: Collective) -> Op:
    return Op(
        name, OpKind.COMMUNICATION, phase, -1, stage, 0.0, 0.0, 0.0, 0.0, precisions.activations, 0.0, 0, collective, 1
    )


def _loss(spec: ModelSpec, plan: TrainingPlan, precisions: Precisions, rows: int) -> Iterator[Op]:
    """Head input gathered under sequence parallelism; cross-entropy over the vocabulary shard, three sums a row."""
    _, stage = first_and_last_stage(plan)
    tensor = plan.parallel.tensor
    if tensor > 1 and plan.parallel.sequence_parallel:
        payload = rows * spec.hidden_size * precisions.activations.bytes_per_element
        gather = Collective(CollectiveKind.ALL_GATHER, payload, tensor, "tensor")
        yield _communication("head all-gather", Phase.FORWARD, stage, precisions, gather)
    vocabulary = -(-spec.vocab_size // tensor)
    moved = 2.0 * rows * vocabulary * _LOGIT_BYTES
    yield Op(
        "cross entropy",
        OpKind.ELEMENTWISE,
        Phase.FORWARD,
        -1,
        stage,
        5.0 * rows * vocabulary,
        0.0,
        0.0,
        moved,
        precisions.activations,
        rows,
        1,
        None,
        1,
    )
    if tensor > 1:
        sums = Collective(CollectiveKind.ALL_REDUCE, rows * _LOGIT_BYTES, tensor, "tensor")
        yield _communication("cross entropy all-reduce", Phase.FORWARD, stage, precisions, sums)._replace(repeats=3)


def _head_backward(spec: ModelSpec, plan: TrainingPlan, precisions: Precisions, rows: int) -> Iterator[Op]:
    """Sum of the hidden gradient over vocabulary shards; under sequence parallelism the head's gather turns into it."""
    parallel = plan.parallel
    if parallel.tensor == 1 or parallel.sequence_parallel:
        return
    payload = rows * spec.hidden_size * precisions.activations.bytes_per_element
    total = Collective(CollectiveKind.ALL_REDUCE, payload, parallel.tensor, "tensor")
    yield _communication("head all-reduce dgrad", Phase.BACKWARD, first_and_last_stage(plan)[1], precisions, total)


def _input_backward(op: Op) -> Iterator[Op]:
    """Gradient of an op's input."""
    turned = op._replace(name=f"{op.name} dgrad", phase=Phase.BACKWARD)
    if op.collective is not None:
        if op.layer < 0 and op.collective.kind is CollectiveKind.ALL_REDUCE:
            return  # the embedding's gradient is whole on every rank, and the loss's sums are known
        mirrored = {
            CollectiveKind.ALL_GATHER: CollectiveKind.REDUCE_SCATTER,
            CollectiveKind.REDUCE_SCATTER: CollectiveKind.ALL_GATHER,
        }
        kind = mirrored.get(op.collective.kind, op.collective.kind)
        yield turned._replace(collective=op.collective._replace(kind=kind))
    elif op.kind in _MATRICES:
        yield turned
    elif op.kind is OpKind.ATTENTION:
        # Products for the gradients of queries, keys, values and scores; reads outputs and their gradients besides.
        yield turned._replace(flops=2 * op.flops, kv_bytes=2 * op.kv_bytes, activation_bytes=2 * op.activation_bytes)
    elif op.kind is OpKind.NORM:
        yield turned
    elif op.kind is OpKind.ELEMENTWISE:
        yield turned._replace(flops=2 * op.flops, activation_bytes=_ELEMENTWISE_BACKWARD * op.activation_bytes)


def _weight_backward(op: Op, plan: TrainingPlan, precisions: Precisions) -> Iterator[Op]:
    """Gradient of an op's weights, accumulated in place; what was gathered in forward is gathered again for it."""
    turned = op._replace(name=f"{op.name} wgrad", phase=Phase.BACKWARD)
    if op.collective is not None:
        sharded = op.collective.axis == "context" or (op.collective.axis == "tensor" and plan.parallel.sequence_parallel)
        if op.collective.kind is CollectiveKind.ALL_GATHER and sharded and op.layer >= 0:
            yield turned
    elif op.kind in _MATRICES:
        stored = precisions.weights
        if op.kind is OpKind.GROUPED_GEMM:
            stored = precisions.experts or precisions.weights
        elements = op.weight_bytes / stored.bytes_per_element
        yield turned._replace(weight_bytes=2 * elements * plan.state.gradient)
    elif op.kind is OpKind.EMBEDDING:
        yield turned._replace(flops=0.0, weight_bytes=2 * op.weight_bytes)


def _recomputed(forward: list[Op], plan: TrainingPlan) -> Iterator[Op]:
    """What backward computes again: layers under full recomputation, attention under selective, scores if fused."""
    for op in forward:
        again = op._replace(name=f"{op.name} recompute", phase=Phase.BACKWARD)
        if op.kind is OpKind.ATTENTION and plan.conventions.fused_attention:
            yield again._replace(
                name=f"{op.name} scores", flops=_FUSED_RECOMPUTE * op.flops, kv_bytes=0.0, activation_bytes=0.0, launches=0
            )
        if op.layer < 0:
            continue
        selective = plan.recompute is Recompute.SELECTIVE and op.kind is OpKind.ATTENTION
        if plan.recompute is Recompute.FULL or (selective and not plan.conventions.fused_attention):
            yield again


def _state_collectives(
    plan: TrainingPlan, held: DeviceParameters, kind: CollectiveKind, bytes_per_parameter: float
) -> Iterator[tuple[str, Collective]]:
    """One collective over the shards of dense parameters and one over those of experts, where there is anything to do."""
    parallel = plan.parallel
    for what, count, ranks, stride in (
        ("dense", held.dense, plan.state_shards, parallel.tensor),
        ("expert", held.experts, plan.expert_state_shards, parallel.expert_group),
    ):
        if count and ranks > 1:
            yield what, Collective(kind, count * bytes_per_parameter, ranks, "data", stride)


def _parameter_gathers(spec: ModelSpec, plan: TrainingPlan, precisions: Precisions, phase: Phase) -> Iterator[Op]:
    """All-gathers of each layer's parameters before its pass (Rajbhandari et al. 2020, section 7.2)."""
    yield from _per_layer(spec, plan, precisions, phase, CollectiveKind.ALL_GATHER, plan.state.parameter, "parameters")


def _gradient_scatters(spec: ModelSpec, plan: TrainingPlan, precisions: Precisions) -> Iterator[Op]:
    """Reduce-scatters of each layer's gradients after every micro-batch."""
    kind = CollectiveKind.REDUCE_SCATTER
    yield from _per_layer(spec, plan, precisions, Phase.BACKWARD, kind, plan.state.gradient, "gradients")


def _per_layer(
    spec: ModelSpec,
    plan: TrainingPlan,
    precisions: Precisions,
    phase: Phase,
    kind: CollectiveKind,
    bytes_per_parameter: float,
    name: str,
) -> Iterator[Op]:
    stages = stage_device_parameters(spec, plan)
    for stage, parts in enumerate(stage_parts(spec, plan)):
        inside = DeviceParameters(0, 0)
        for start, stop in parts:
            for count, layer in layer_runs(spec, start, stop):
                one = layer_device_parameters(layer, spec.hidden_size, plan.parallel, norm_has_bias=spec.norm_has_bias)
                inside += DeviceParameters(count * one.dense, count * one.experts)
                for what, collective in _state_collectives(plan, one, kind, bytes_per_parameter):
                    op = _communication(f"{what} {name} {kind}", phase, stage, precisions, collective)
                    yield op._replace(repeats=count)
        outside = DeviceParameters(stages[stage].dense - inside.dense, 0)
        for what, collective in _state_collectives(plan, outside, kind, bytes_per_parameter):
            yield _communication(f"{what} outside {name} {kind}", phase, stage, precisions, collective)


def _step_end(spec: ModelSpec, plan: TrainingPlan, precisions: Precisions) -> Iterator[Op]:
    """Gradients made equal, the optimizer's pass over its shard, parameters gathered: once per step."""
    first, last = first_and_last_stage(plan)
    for stage, held in enumerate(stage_device_parameters(spec, plan)):
        if spec.tied_embeddings and first != last and stage in (first, last):
            payload = -(-spec.vocab_size // plan.parallel.tensor) * spec.hidden_size * plan.state.gradient
            devices = plan.parallel.tensor * plan.parallel.data * plan.parallel.context
            tied = Collective(CollectiveKind.ALL_REDUCE, payload, 2, "pipeline", devices * (plan.parallel.pipeline - 1))
            yield _communication("tied embedding all-reduce", Phase.OPTIMIZER, stage, precisions, tied)
        for name, collective in _gradient_reduction(plan, held):
            yield _communication(name, Phase.OPTIMIZER, stage, precisions, collective)
        yield _optimizer(plan, precisions, stage, held)
        if plan.zero in (ZeroStage.OPTIMIZER, ZeroStage.GRADIENTS):
            for what, collective in _state_collectives(plan, held, CollectiveKind.ALL_GATHER, plan.state.parameter):
                yield _communication(f"{what} parameters all-gather", Phase.OPTIMIZER, stage, precisions, collective)


def _gradient_reduction(plan: TrainingPlan, held: DeviceParameters) -> Iterator[tuple[str, Collective]]:
    gradient = plan.state.gradient
    if plan.zero <= ZeroStage.OPTIMIZER:
        kind = CollectiveKind.ALL_REDUCE if plan.zero is ZeroStage.NONE else CollectiveKind.REDUCE_SCATTER
        for what, collective in _state_collectives(plan, held, kind, gradient):
            yield f"{what} gradients {kind}", collective
    if plan.shard_ranks is None:
        return
    for what, count, shards, ranks, stride in (
        ("dense", held.dense, plan.state_shards, plan.state_ranks, plan.parallel.tensor),
        ("expert", held.experts, plan.expert_state_shards, plan.expert_state_ranks, plan.parallel.expert_group),
    ):
        if count and ranks > shards:
            payload = count * gradient / shards
            replicas = Collective(CollectiveKind.ALL_REDUCE, payload, ranks // shards, "replicas", stride * shards)
            yield f"{what} gradient shards all-reduce", replicas


def _optimizer(plan: TrainingPlan, precisions: Precisions, stage: int, held: DeviceParameters) -> Op:
    """Reads gradients, reads and writes the state, writes parameters: bound by memory."""
    sharded = plan.zero >= ZeroStage.OPTIMIZER
    elements = held.dense / (plan.state_shards if sharded else 1)
    elements += held.experts / (plan.expert_state_shards if sharded else 1)
    per = plan.state.gradient + 2 * plan.state.optimizer + plan.state.parameter
    return Op(
        "optimizer",
        OpKind.ELEMENTWISE,
        Phase.OPTIMIZER,
        -1,
        stage,
        _OPTIMIZER_FLOPS * elements,
        0.0,
        0.0,
        per * elements,
        precisions.activations,
        0.0,
        1,
        None,
        1,
    )
