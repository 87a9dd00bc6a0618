"""Ops of one feed-forward block on one device: dense, or routed experts with their exchanges."""

from __future__ import annotations

import math

from argosy.cost.deployment import Deployment
from argosy.cost.device import Precision
from argosy.cost.model_spec import DenseFfn, MoeFfn
from argosy.cost.op import CollectiveKind, OpKind
from argosy.cost.op_template import Place, RowOp, Template, Touched


def ffn_ops(deployment: Deployment, ffn: DenseFfn | MoeFfn, place: Place) -> list[Template]:
    """From the normalised hidden rows to the summed output of the block."""
    if isinstance(ffn, DenseFfn):
        inner = _dense(deployment, "ffn", ffn.size, ffn.gated, ffn.bias, place)
        return [
            *deployment.enter_tensor_parallel("ffn", place),
            *inner,
            *deployment.leave_tensor_parallel("ffn", place),
        ]
    return _moe(deployment, ffn, place)


def _dense(
    deployment: Deployment,
    name: str,
    size: int,
    gated: bool,
    bias: bool,
    place: Place,
    *,
    shards: int | None = None,
    share: float | None = None,
) -> list[RowOp]:
    hidden = deployment.spec.hidden_size
    local = math.ceil(size / (deployment.plan.tensor if shards is None else shards))
    inner = (2 if gated else 1) * local
    return [
        deployment.gemm(f"{name} up", place, hidden, inner, bias=inner if bias else 0, share=share),
        deployment.elementwise(f"{name} activation", place, inner + local, share=share),
        deployment.gemm(f"{name} down", place, local, hidden, bias=hidden if bias else 0, share=share),
    ]


def _moe(deployment: Deployment, ffn: MoeFfn, place: Place) -> list[Template]:
    """Routed and shared experts.

    Within one tensor group every device sees all tokens, computes its own experts, and the sum is the all-reduce that a
    dense layer has. Where the expert group spans data ranks, tokens are exchanged: by all-to-all dispatch and combine when
    experts are whole, by all-gather and reduce-scatter over the group when they are sharded too (attention-DP). Tensor ranks
    then split the tokens between them, and the shared experts are replicated.
    """
    plan = deployment.plan
    spans_data = plan.expert_group > plan.tensor
    share = deployment.token_share / (plan.tensor if spans_data else 1)
    routed = [*_router(deployment, ffn, place, share), *_routed(deployment, ffn, place)]
    shared = _shared(deployment, ffn, place, shards=1 if spans_data else plan.tensor, share=share)
    if not spans_data:
        enter, leave = deployment.enter_tensor_parallel("ffn", place), deployment.leave_tensor_parallel("ffn", place)
        return [*enter, *routed, *shared, *leave]
    dispatch, combine = _exchanges(deployment, ffn, place)
    ops: list[Template] = [routed[0], *dispatch, *routed[1:], *combine, *shared]
    if not plan.sequence_parallel:
        ops += deployment.exchange("ffn all-gather", place, CollectiveKind.ALL_GATHER, "tensor", plan.tensor)
    return ops


def _router(deployment: Deployment, ffn: MoeFfn, place: Place, share: float) -> list[RowOp]:
    hidden, element = deployment.spec.hidden_size, deployment.activation_bytes
    weights = hidden * ffn.experts + (ffn.experts if ffn.router_bias else 0) + (hidden if ffn.router_scale else 0)
    return [
        RowOp(
            "router",
            OpKind.ROUTER,
            place,
            deployment.arithmetic,
            share=share,
            flops=2.0 * hidden * ffn.experts,
            activation_bytes=(hidden + ffn.experts) * element,
            weight_bytes=weights * element,
            held_bytes=weights * element,
            launches=2,  # logits, then top-k
        )
    ]


def _routed(deployment: Deployment, ffn: MoeFfn, place: Place) -> list[RowOp]:
    """Grouped matrix products of the busiest device over the experts it holds."""
    plan, precisions, hidden = deployment.plan, deployment.precisions, deployment.spec.hidden_size
    experts = math.ceil(ffn.experts / plan.expert)
    # Tokens that enter the expert group per token of one data rank, and the share of their top-k visits that fall here.
    entering = deployment.token_share * plan.expert_group / plan.tensor
    busiest = min(1.0 + deployment.expert_imbalance, ffn.experts / experts)
    visits = entering * ffn.top_k * experts / ffn.experts * busiest
    touched = Touched.of(experts, ffn.top_k / ffn.experts, entering)
    local = math.ceil(ffn.size / plan.expert_shards)
    inner = (2 if ffn.gated else 1) * local
    weights = precisions.experts or precisions.weights
    compute = precisions.expert_compute or precisions.compute

    def grouped(name: str, inputs: int, outputs: int) -> RowOp:
        bias = outputs * deployment.activation_bytes if ffn.bias else 0.0
        held = experts * (precisions.matrix_bytes(inputs * outputs, weights) + bias)
        return _grouped_gemm(deployment, name, place, compute, visits, touched, inputs, outputs, held)

    return [
        deployment.elementwise("permute to experts", place, 2.0 * hidden, share=visits),
        grouped("experts up", hidden, inner),
        deployment.elementwise("experts activation", place, inner + local, share=visits),
        grouped("experts down", local, hidden),
        deployment.elementwise("weigh and sum experts", place, hidden * (1.0 + 1.0 / ffn.top_k), share=visits),
    ]


def _grouped_gemm(
    deployment: Deployment,
    name: str,
    place: Place,
    compute: Precision,
    visits: float,
    touched: Touched,
    inputs: int,
    outputs: int,
    held_bytes: float,
) -> RowOp:
    return RowOp(
        name,
        OpKind.GROUPED_GEMM,
        place,
        compute,
        share=visits,
        flops=2.0 * inputs * outputs,
        activation_bytes=(inputs + outputs) * deployment.activation_bytes,
        weight_bytes=held_bytes,
        held_bytes=held_bytes,
        touched=touched,
    )


def _shared(deployment: Deployment, ffn: MoeFfn, place: Place, *, shards: int, share: float) -> list[RowOp]:
    if not ffn.shared_size:
        return []
    ops = _dense(deployment, "shared experts", ffn.shared_size, ffn.gated, ffn.bias, place, shards=shards, share=share)
    if ffn.shared_gate:
        ops.append(deployment.gemm("shared experts gate", place, deployment.spec.hidden_size, 1, share=share))
    return ops


def _exchanges(deployment: Deployment, ffn: MoeFfn, place: Place) -> tuple[list[RowOp], list[RowOp]]:
    """Dispatch to and combine from an expert group that spans data ranks."""
    plan = deployment.plan
    hidden_bytes = deployment.spec.hidden_size * deployment.activation_bytes
    if plan.expert_shards == 1:
        # A token goes once to each device that holds one of its experts; it misses a device with probability (1-1/N)^k.
        devices = plan.expert * -math.expm1(ffn.top_k * math.log1p(-1.0 / plan.expert))
        payload = hidden_bytes * devices / plan.tensor
        kind, ranks = CollectiveKind.ALL_TO_ALL, plan.expert
        return (
            deployment.exchange("expert dispatch", place, kind, "expert", ranks, payload_bytes=payload),
            deployment.exchange("expert combine", place, kind, "expert", ranks, payload_bytes=payload),
        )
    payload, ranks = hidden_bytes * plan.expert_group / plan.tensor, plan.expert_group
    gather, scatter = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
    return (
        deployment.exchange("expert gather", place, gather, "expert", ranks, payload_bytes=payload),
        deployment.exchange("expert scatter", place, scatter, "expert", ranks, payload_bytes=payload),
    )
