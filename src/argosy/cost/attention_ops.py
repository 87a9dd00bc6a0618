"""Ops of one attention block on one device: grouped-query, latent (DeepSeek-V2), linear (gated delta rule)."""

from __future__ import annotations

from argosy.cost.deployment import Deployment
from argosy.cost.model_arithmetic import INDEX_KEY_BYTES_PER_ELEMENT, kv_heads_per_device
from argosy.cost.model_spec import Gqa, LinearAttention, Mla, QkNorm
from argosy.cost.op import CollectiveKind, OpKind
from argosy.cost.op_template import Exchange, GroupOp, MlaForm, Place, RowOp, Rows, Template

# The recurrent state of linear attention is kept in fp32 whatever the weights are.
_STATE_BYTES_PER_ELEMENT = 4.0


def attention_ops(deployment: Deployment, attention: Gqa | Mla | LinearAttention, place: Place) -> list[Template]:
    """From the normalised hidden rows to the summed output of the block."""
    ops: list[Template] = [*deployment.enter_tensor_parallel("attention", place)]
    if isinstance(attention, Gqa):
        ops += _gqa(deployment, attention, place)
    elif isinstance(attention, Mla):
        ops += _mla(deployment, attention, place)
    else:
        ops += _linear(deployment, attention, place)
    return [*ops, *deployment.leave_tensor_parallel("attention", place)]


def _gqa(deployment: Deployment, attention: Gqa, place: Place) -> list[Template]:
    hidden, head_dim = deployment.spec.hidden_size, attention.head_dim
    heads = attention.heads // deployment.plan.tensor
    kv_heads = kv_heads_per_device(attention, deployment.plan.tensor)
    queries, keys = heads * head_dim, kv_heads * head_dim
    projected = (2 if attention.output_gate else 1) * queries + (1 if attention.keys_are_values else 2) * keys
    norms = {QkNorm.NONE: 0, QkNorm.PER_HEAD: 2 * head_dim, QkNorm.PER_PROJECTION: queries + keys}[attention.qk_norm]
    small = norms + (heads if attention.sinks else 0)
    element, cached = deployment.activation_bytes, 2 * keys * deployment.precisions.kv.bytes_per_element
    rotate = deployment.elementwise("rope and kv write", place, 2.0 * queries + 2.0 * keys, held=small)
    ops: list[Template] = [
        deployment.gemm("qkv projection", place, hidden, projected, bias=projected if attention.qkv_bias else 0),
        rotate._replace(kv_bytes=cached),
        *_context_exchange(deployment, cached, attention.window, place),
        GroupOp(
            "attention",
            OpKind.ATTENTION,
            place,
            deployment.arithmetic,
            limit=attention.window,
            flops=4.0 * queries * deployment.token_share,
            kv_bytes=cached,
            token_bytes=2.0 * queries * element * deployment.token_share,
            rows_per_token=heads / kv_heads,
        ),
    ]
    if attention.output_gate:
        ops.append(deployment.elementwise("output gate", place, 3.0 * queries))
    ops.append(deployment.gemm("output projection", place, queries, hidden, bias=hidden if attention.output_bias else 0))
    return ops


def _context_exchange(deployment: Deployment, cached: float, limit: int | None, place: Place) -> list[GroupOp]:
    """Ring attention passes keys and values of all tokens read around the context axis (Liu et al. 2023)."""
    plan = deployment.plan
    if plan.context == 1:
        return []
    exchange = Exchange(CollectiveKind.ALL_GATHER, cached, plan.context, "context", plan.tensor * plan.data)
    return [
        GroupOp(
            "context all-gather",
            OpKind.COMMUNICATION,
            place,
            deployment.arithmetic,
            limit=limit,
            launches=1,
            exchange=exchange,
        )
    ]


def _mla(deployment: Deployment, attention: Mla, place: Place) -> list[Template]:
    hidden = deployment.spec.hidden_size
    heads = attention.heads // deployment.plan.tensor
    queries = heads * (attention.nope_dim + attention.rope_dim)
    latent = attention.kv_lora + attention.rope_dim
    cached = latent * deployment.precisions.kv.bytes_per_element
    if attention.q_lora is None:
        into = [deployment.gemm("q and kv-down projection", place, hidden, queries + latent)]
        norms = attention.kv_lora
    else:
        into = [
            deployment.gemm("q-down and kv-down projection", place, hidden, attention.q_lora + latent),
            deployment.gemm("q-up projection", place, attention.q_lora, queries),
        ]
        norms = attention.kv_lora + attention.q_lora
    rotate = deployment.elementwise("rope and kv write", place, 2.0 * heads * attention.rope_dim + 2.0 * latent, held=norms)
    return [
        *into,
        rotate._replace(kv_bytes=cached),
        *_sparse_index(deployment, attention, place),
        *_context_exchange(deployment, cached, None, place),
        *_absorbed(deployment, attention, heads, place),
        *([] if attention.index else _expanded(deployment, attention, heads, place)),
        deployment.gemm("output projection", place, heads * attention.v_dim, hidden),
    ]


def _absorbed(deployment: Deployment, attention: Mla, heads: int, place: Place) -> list[Template]:
    """Scores and values over the latent itself; the up-projections are applied per head to queries and outputs."""
    latent = attention.kv_lora + attention.rope_dim
    sparse = attention.index is not None
    into = _per_head_gemm(deployment, "absorb into query", place, heads, attention.nope_dim, attention.kv_lora)
    out = _per_head_gemm(deployment, "latent to value", place, heads, attention.kv_lora, attention.v_dim)
    share, element = deployment.token_share, deployment.activation_bytes
    core = GroupOp(
        "latent attention",
        OpKind.ATTENTION,
        place,
        deployment.arithmetic,
        limit=attention.index.top_k if attention.index else None,
        gathers=sparse,
        form=MlaForm.ABSORBED,
        flops=2.0 * heads * (latent + attention.kv_lora) * share,
        kv_bytes=latent * deployment.precisions.kv.bytes_per_element * (share if sparse else 1.0),
        token_bytes=heads * (latent + attention.kv_lora) * element * share,
        rows_per_token=heads,
    )
    return [into, core, out]


def _per_head_gemm(deployment: Deployment, name: str, place: Place, heads: int, inputs: int, outputs: int) -> RowOp:
    """One small matrix per head, applied to that head's part of every row."""
    weights = deployment.precisions.matrix_bytes(heads * inputs * outputs)
    return RowOp(
        name,
        OpKind.GEMM,
        place,
        deployment.precisions.compute,
        Rows.ABSORBED_TOKENS,
        deployment.token_share,
        flops=2.0 * heads * inputs * outputs,
        activation_bytes=heads * (inputs + outputs) * deployment.activation_bytes,
        weight_bytes=weights,
        held_bytes=weights,
    )


def _expanded(deployment: Deployment, attention: Mla, heads: int, place: Place) -> list[Template]:
    """Keys and values of every token read are made from the latent, then ordinary multi-head attention.

    The matrices are those that the absorbed form holds. Under context parallelism each device expands all tokens it reads.
    """
    element = deployment.activation_bytes
    up = heads * (attention.nope_dim + attention.v_dim)
    wide = attention.nope_dim + attention.rope_dim
    expand = deployment.gemm(
        "expand keys and values", place, attention.kv_lora, up, counted_in=Rows.EXPANDED_TOKENS, share=1.0, held=False
    )
    latent = (attention.kv_lora + attention.rope_dim) * deployment.precisions.kv.bytes_per_element
    core = GroupOp(
        "expanded attention",
        OpKind.ATTENTION,
        place,
        deployment.arithmetic,
        form=MlaForm.EXPANDED,
        flops=2.0 * heads * (wide + attention.v_dim) * deployment.token_share,
        span_bytes=heads * (wide + attention.v_dim) * element,
        token_bytes=heads * (wide + attention.v_dim) * element * deployment.token_share,
    )
    return [expand._replace(activation_bytes=up * element, kv_bytes=latent), core]


def _sparse_index(deployment: Deployment, attention: Mla, place: Place) -> list[Template]:
    """The lightning indexer scores every token (DeepSeek-V3.2, section 2.1); it is replicated over the tensor axis."""
    index = attention.index
    if index is None:
        return []
    hidden, share = deployment.spec.hidden_size, deployment.token_share
    key_bytes = index.dim * INDEX_KEY_BYTES_PER_ELEMENT
    norm = deployment.elementwise("index key norm and write", place, 2.0 * index.dim, held=2 * index.dim)
    return [
        deployment.gemm("index query projection", place, attention.q_lora or hidden, index.heads * index.dim),
        deployment.gemm("index key projection", place, hidden, index.dim + index.heads),
        norm._replace(kv_bytes=key_bytes),
        GroupOp(
            "index scores",
            OpKind.ATTENTION,
            place,
            deployment.precisions.compute,
            flops=2.0 * index.heads * index.dim * share,
            kv_bytes=key_bytes,
            token_bytes=index.heads * index.dim * deployment.activation_bytes * share,
            rows_per_token=index.heads,
        ),
    ]


def _linear(deployment: Deployment, attention: LinearAttention, place: Place) -> list[Template]:
    """Gated delta rule: decay, prediction, rank-one update and read-out take 2 operations each per state element."""
    hidden, tensor = deployment.spec.hidden_size, deployment.plan.tensor
    heads, key_heads = attention.heads // tensor, attention.kv_heads // tensor
    keys, values = 2 * key_heads * attention.key_dim, heads * attention.value_dim
    channels, state = keys + values, heads * attention.key_dim * attention.value_dim
    tail = channels * (attention.conv_width - 1)
    convolution = deployment.elementwise(
        "causal convolution", place, 2.0 * channels, held=channels * attention.conv_width + 2 * heads + attention.value_dim
    )
    scan = RowOp(
        "delta rule",
        OpKind.ATTENTION,
        place,
        deployment.arithmetic,
        share=deployment.token_share,
        flops=8.0 * state,
        activation_bytes=(channels + values) * deployment.activation_bytes,
        kv_sequence_bytes=2.0 * state * _STATE_BYTES_PER_ELEMENT,
    )
    return [
        deployment.gemm("qkvz projection", place, hidden, keys + 2 * values + 2 * heads),
        convolution._replace(
            flops=2.0 * channels * attention.conv_width, kv_sequence_bytes=2.0 * tail * _STATE_BYTES_PER_ELEMENT
        ),
        scan,
        deployment.elementwise("gated output norm", place, 3.0 * values),
        deployment.gemm("output projection", place, values, hidden),
    ]
