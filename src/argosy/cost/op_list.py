"""The op list of a forward step: model x parallel plan x precisions x step composition -> ops of one device per stage.

The device is the busiest rank of its stage: shards are rounded up and the expert rank is the most loaded one. Equal layers
are one op with `repeats`. FLOPs count multiply and add as two.
"""

from __future__ import annotations

import math

from argosy.cost.attention_ops import attention_ops
from argosy.cost.deployment import Deployment
from argosy.cost.ffn_ops import ffn_ops
from argosy.cost.model_spec import Layer, ModelSpec
from argosy.cost.op import CollectiveKind, Op, OpKind, StepComposition
from argosy.cost.op_template import GroupOp, Place, RowOp, Rows, Template, mla_form, step_features
from argosy.cost.parallel import ParallelPlan, Precisions
from argosy.errors import ConfigError

_NORM_NAMES = ("attention norm", "ffn norm", "post-attention norm", "post-ffn norm")
# Logits are sampled from in fp32.
_LOGIT_BYTES = 4.0


def forward_ops(
    spec: ModelSpec,
    plan: ParallelPlan,
    precisions: Precisions,
    step: StepComposition,
    *,
    expert_imbalance: float = 0.0,
) -> tuple[Op, ...]:
    """Ops of one forward step, in order, stage by stage.

    `step` is what one data rank computes; with attention-DP all data ranks are taken to compute alike
    (`step_of_data_rank` splits a replica's step). Ops without work in this step are left out.

    Raises:
        ConfigError: the plan does not divide the model, or the step is not a step.
    """
    deployment = Deployment(spec, plan, precisions, expert_imbalance)
    return ops_of_step(deployment, forward_templates(deployment), step)


def ops_of_step(deployment: Deployment, templates: tuple[Template, ...], step: StepComposition) -> tuple[Op, ...]:
    """Evaluate `templates` of `deployment` at `step`.

    Raises:
        ConfigError: a count or length is negative, no token is new, or more logits are wanted than there are tokens.
    """
    check_step(step)
    mla = deployment.mla
    features = step_features(step, mla)
    forms = [None if mla is None else mla_form(mla, new, past) for _, new, past in step.groups]
    ops: list[Op] = []
    for template in templates:
        if isinstance(template, RowOp):
            if features.rows[template.counted_in] > 0:
                ops.append(template.at(features))
            continue
        first = True
        for group, form in zip(step.groups, forms, strict=True):
            if template.form is None or template.form is form:
                ops.append(template.at(*group, first=first))
                first = False
    return tuple(ops)


def check_step(step: StepComposition) -> None:
    """Raise `ConfigError` for a composition that no step can have."""
    for count, new, past in step.groups:
        if count < 1 or new < 1 or past < 0:
            raise ConfigError(f"a step's groups are (count >= 1, new >= 1, past >= 0), got {(count, new, past)}")
    if not step.groups:
        raise ConfigError("a step needs at least one new token")
    if not 0 <= step.logit_rows <= step.tokens:
        raise ConfigError(f"a step of {step.tokens} tokens cannot have {step.logit_rows} logit rows")


def step_of_data_rank(step: StepComposition, data: int) -> StepComposition:
    """The share of a replica's step that falls to the busiest of `data` attention-DP ranks."""
    groups = tuple((math.ceil(count / data), new, past) for count, new, past in step.groups)
    share = StepComposition(groups, 0)
    return StepComposition(groups, min(share.tokens, math.ceil(step.logit_rows / data)))


def forward_templates(deployment: Deployment) -> tuple[Template, ...]:
    """Templates of the forward pass of one device of each stage, in order."""
    templates: list[Template] = []
    last = deployment.plan.pipeline - 1
    for stage in range(deployment.plan.pipeline):
        if stage == 0:
            templates += _embedding(deployment)
        for place, layer in deployment.runs_of_stage(stage):
            templates += _layer(deployment, layer, place)
        if stage < last:
            templates += _send_to_next_stage(deployment, stage)
    return (*templates, *_head(deployment, Place(-1, last, 1)))


def _layer(deployment: Deployment, layer: Layer, place: Place) -> list[Template]:
    """One decoder layer; norms beyond the four whose places are common run after the feed-forward block."""
    names = (*_NORM_NAMES, *(f"norm {index}" for index in range(len(_NORM_NAMES) + 1, layer.norms + 1)))
    norms = [deployment.norm(name, place) for name in names[: layer.norms]]
    attention, ffn = attention_ops(deployment, layer.attention, place), ffn_ops(deployment, layer.ffn, place)
    return [*norms[:1], *attention, *norms[2:3], *norms[1:2], *ffn, *norms[3:]]


def _embedding(deployment: Deployment) -> list[Template]:
    """Look-up in a table sharded by vocabulary; the rows of other shards are zeros that the sum fills in."""
    spec, plan, place = deployment.spec, deployment.plan, Place(-1, 0, 1)
    element = deployment.precisions.embeddings.bytes_per_element
    tables = 2 if spec.learned_positions else 1
    rows = math.ceil(spec.vocab_size / plan.tensor) + spec.learned_positions
    table = RowOp(
        "embedding",
        OpKind.EMBEDDING,
        place,
        deployment.arithmetic,
        share=deployment.token_share,
        activation_bytes=spec.hidden_size * deployment.activation_bytes,
        weight_row_bytes=tables * spec.hidden_size * element,
        held_bytes=rows * spec.hidden_size * element,
    )
    return [table, *deployment.leave_tensor_parallel("embedding", place)]


def _send_to_next_stage(deployment: Deployment, stage: int) -> list[RowOp]:
    plan = deployment.plan
    payload = deployment.spec.hidden_size * deployment.activation_bytes
    if plan.sequence_parallel:
        payload /= plan.tensor
    stride = plan.tensor * plan.data * plan.context
    place, kind = Place(-1, stage, 1), CollectiveKind.POINT_TO_POINT
    return deployment.exchange("send to next stage", place, kind, "pipeline", 2, stride, payload_bytes=payload)


def _head(deployment: Deployment, place: Place) -> list[Template]:
    """Final norm, head over the vocabulary shard, gather of the logits, sampling."""
    spec, plan = deployment.spec, deployment.plan
    vocabulary = math.ceil(spec.vocab_size / plan.tensor)
    element = deployment.precisions.embeddings.bytes_per_element
    shares_table = spec.tied_embeddings and plan.pipeline == 1
    weights = vocabulary * spec.hidden_size * element
    head = RowOp(
        "head",
        OpKind.GEMM,
        place,
        deployment.arithmetic,
        Rows.LOGITS,
        flops=2.0 * spec.hidden_size * vocabulary,
        activation_bytes=spec.hidden_size * deployment.activation_bytes + vocabulary * _LOGIT_BYTES,
        weight_bytes=weights,
        held_bytes=0.0 if shares_table else weights,
    )
    gather = deployment.exchange(
        "logits all-gather",
        place,
        CollectiveKind.ALL_GATHER,
        "tensor",
        plan.tensor,
        payload_bytes=spec.vocab_size * _LOGIT_BYTES,
        counted_in=Rows.LOGITS,
    )
    sample = RowOp(
        "sample",
        OpKind.SAMPLE,
        place,
        deployment.arithmetic,
        Rows.LOGITS,
        flops=float(spec.vocab_size),
        activation_bytes=2.0 * spec.vocab_size * _LOGIT_BYTES,
    )
    return [deployment.norm("final norm", place), head, *[op._replace(share=1.0) for op in gather], sample]


def held_weight_bytes(templates: tuple[Template, ...], stage: int) -> float:
    """Weights resident on one device of `stage`."""
    return sum(
        template.held_bytes * template.place.repeats
        for template in templates
        if not isinstance(template, GroupOp) and template.place.stage == stage
    )
