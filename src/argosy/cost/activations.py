"""Bytes of activations kept for the backward pass.

Two levels. `classic_layer_bytes` is the published count of a GPT-2/3 layer: multi-head attention with stored scores,
dropout, a two-matrix feed-forward of 4h (Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer
Models", sections 4 and 5). `layer_activation_bytes` counts the tensors of a layer as specified: grouped-query or latent
attention, gated feed-forward, experts, fused attention.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from argosy.cost.checks import at_least_one
from argosy.cost.device import Precision
from argosy.cost.model_arithmetic import kv_heads_per_device
from argosy.cost.model_spec import DenseFfn, Gqa, Layer, LinearAttention, Mla, MoeFfn, QkNorm
from argosy.cost.parallel import ParallelPlan
from argosy.errors import ConfigError

# Chunk length of the chunked delta rule, whose backward keeps one triangular matrix per chunk and head (Yang et al. 2024).
_DELTA_CHUNK = 64


class Recompute(enum.StrEnum):
    """What the backward pass computes again instead of keeping it."""

    NONE = "none"
    SELECTIVE = "selective"  # scores, softmax and dropout of attention
    FULL = "full"  # everything but a layer's input


@dataclass(frozen=True, slots=True)
class ActivationConventions:
    """What a training stack keeps.

    Attributes:
        fused_attention: scores are never stored, one fp32 log-sum-exp per query and head instead (Dao et al. 2022).
        dropout: masks of one byte per element, after the softmax and after both blocks.
        fused_activation: a gated feed-forward keeps gate, up and their product; unfused also the activated gate.
    """

    fused_attention: bool = True
    dropout: bool = False
    fused_activation: bool = True


def classic_layer_bytes(
    sequence: int,
    micro_batch: int,
    hidden: int,
    heads: int,
    *,
    tensor: int = 1,
    sequence_parallel: bool = False,
    recompute: Recompute = Recompute.NONE,
) -> float:
    """Bytes per GPT layer and device in 16 bit: sbh(34 + 5as/h) and its forms (Korthikanti et al. 2022, table 2).

    none            sbh(10 + 24/t + 5as/(ht))      with sequence parallelism  sbh(34/t + 5as/(ht))
    selective       sbh(10 + 24/t)                                            sbh(34/t)
    full            sbh(2)                                                    sbh(2/t), the layer input is sharded too

    Raises:
        ConfigError: a size below one, or `tensor` that does not divide the heads.
    """
    at_least_one(sequence=sequence, micro_batch=micro_batch, hidden=hidden, heads=heads, tensor=tensor)
    if heads % tensor:
        raise ConfigError(f"tensor parallelism {tensor} does not divide {heads} attention heads")
    sbh = float(sequence) * micro_batch * hidden
    shards = tensor if sequence_parallel else 1
    if recompute is Recompute.FULL:
        return sbh * 2 / shards
    linear = 10 / shards + 24 / tensor
    scores = 0.0 if recompute is Recompute.SELECTIVE else 5 * heads * sequence / (hidden * tensor)
    return sbh * (linear + scores)


def working_memory_bytes(sequence: int, micro_batch: int, hidden: int, heads: int, *, layers: int = 1) -> float:
    """s b (16h + 2as) bytes between two checkpoints of `layers` GPT layers: what recomputation brings back at once.

    Source: Rajbhandari et al. 2021, "ZeRO-Infinity", equation 5; a leaner layer than `classic_layer_bytes`, without dropout
    and with only what matrix products read.

    Raises:
        ConfigError: a size below one.
    """
    at_least_one(sequence=sequence, micro_batch=micro_batch, hidden=hidden, heads=heads, layers=layers)
    return float(sequence) * micro_batch * layers * (16 * hidden + 2 * heads * sequence)


def classic_output_bytes(
    sequence: int, micro_batch: int, hidden: int, vocab: int, *, tensor: int = 1, sequence_parallel: bool = True
) -> float:
    """Bytes outside the layers on the last stage: final norm and head inputs and fp32 logits, 4sbh/t(1 + v/h).

    Source: Korthikanti et al. 2022, section 4.3. Without sequence parallelism the two inputs are not divided by t.

    Raises:
        ConfigError: a size below one.
    """
    at_least_one(sequence=sequence, micro_batch=micro_batch, hidden=hidden, vocab=vocab, tensor=tensor)
    tokens = float(sequence) * micro_batch
    return tokens * (4 * hidden / (tensor if sequence_parallel else 1) + 4 * vocab / tensor)


def layer_activation_bytes(
    layer: Layer,
    hidden: int,
    parallel: ParallelPlan,
    *,
    sequence: int,
    micro_batch: int,
    recompute: Recompute = Recompute.NONE,
    precision: Precision = Precision.BF16,
    conventions: ActivationConventions | None = None,
) -> float:
    """Bytes one micro-batch leaves on one device in `layer` until its backward pass; tensor by tensor, experts balanced.

    Context parallelism divides the tokens; stored scores still span the whole sequence. A GPT layer under
    `ActivationConventions(fused_attention=False, dropout=True)` gives the classic count (Korthikanti et al. 2022).

    Raises:
        ConfigError: a size below one, or degrees that do not divide heads or sequence.
    """
    at_least_one(sequence=sequence, micro_batch=micro_batch, hidden=hidden)
    tensor, context = parallel.tensor, parallel.context
    if sequence % context:
        raise ConfigError(f"context parallelism {context} does not divide a sequence of {sequence}")
    keep = conventions if conventions is not None else ActivationConventions()
    tokens = float(sequence // context) * micro_batch
    element = precision.bytes_per_element
    shards = tensor if parallel.sequence_parallel else 1
    if recompute is Recompute.FULL:
        return tokens * element * hidden / shards
    replicated = layer.norms * element * hidden  # inputs of the norms
    replicated += 2 * element * hidden  # inputs of attention and feed-forward, which the norms put out
    replicated += 2.0 * hidden if keep.dropout else 0.0
    attention = _attention_bytes(layer.attention, tensor, element)
    stored = 0.0
    if not keep.fused_attention and recompute is Recompute.NONE:
        stored = _score_bytes(layer.attention, sequence, tensor, element, dropout=keep.dropout)
    elif keep.fused_attention and not isinstance(layer.attention, LinearAttention):
        stored = 4.0 * layer.attention.heads / tensor
    ffn = _ffn_bytes(layer.ffn, hidden, parallel, element, fused=keep.fused_activation)
    return tokens * (replicated / shards + attention + stored + ffn)


def _score_bytes(
    attention: Gqa | Mla | LinearAttention, sequence: int, tensor: int, element: float, *, dropout: bool
) -> float:
    """Per token: softmax output, and with dropout its mask and result."""
    if isinstance(attention, LinearAttention):
        return 0.0
    return attention.heads * float(sequence) / tensor * (2 * element + 1 if dropout else element)


def _attention_bytes(attention: Gqa | Mla | LinearAttention, tensor: int, element: float) -> float:
    """Per token, without what the block reads: queries, keys, values as attention reads them, and the output's input."""
    if attention.heads % tensor:
        raise ConfigError(f"tensor parallelism {tensor} does not divide {attention.heads} attention heads")
    heads = attention.heads // tensor
    if isinstance(attention, Gqa):
        queries, keys = heads * attention.head_dim, kv_heads_per_device(attention, tensor) * attention.head_dim
        count = 2 * queries + 2 * keys
        if attention.qk_norm is not QkNorm.NONE:
            count += queries + keys
        if attention.output_gate:
            count += 2 * queries  # the gate and what it multiplies
        return count * element
    if isinstance(attention, Mla):
        latent = 2 * attention.kv_lora + attention.rope_dim + 2 * (attention.q_lora or 0)  # before and after their norms
        expanded = 2 * heads * (attention.nope_dim + attention.rope_dim) + 2 * heads * attention.v_dim
        index = 0 if attention.index is None else attention.index.heads * (attention.index.dim + 1) + attention.index.dim
        return (latent + expanded + index) * element
    if attention.kv_heads % tensor:
        raise ConfigError(f"tensor parallelism {tensor} does not divide {attention.kv_heads} key heads")
    keys, values = attention.kv_heads // tensor * attention.key_dim, heads * attention.value_dim
    convolved = 2 * (2 * keys + values)  # before and after
    return (
        convolved + 3 * values + heads * _DELTA_CHUNK
    ) * element + 8.0 * heads  # output, gate, gated; fp32 decay and step


def _ffn_bytes(ffn: DenseFfn | MoeFfn, hidden: int, parallel: ParallelPlan, element: float, *, fused: bool) -> float:
    """Per token, without the block's own input."""
    inner, tensor = (3 if fused else 4) if ffn.gated else 2, parallel.tensor
    if isinstance(ffn, DenseFfn):
        return inner * ffn.size * element / tensor
    # A device computes a balanced share of its expert group's (token, expert) pairs; where experts are sharded too, every
    # shard of an expert reads the whole hidden vector.
    rows = ffn.top_k * parallel.expert_shards / tensor
    hidden_rows = 2 * hidden * rows  # dispatched inputs, and outputs that the router's weight multiplies
    router = 8.0 * ffn.experts  # fp32 logits and probabilities
    shared = inner * ffn.shared_size / tensor + (hidden if ffn.shared_gate else 0)
    return (hidden_rows + rows * inner * ffn.size / parallel.expert_shards + shared) * element + router


def recompute_flops_ratio(recompute: Recompute, *, sequence: int, hidden: int) -> float:
    """Extra FLOPs of recomputation over those of a GPT layer's forward and backward pass, for MHA with heads x dim = h.

    A layer forward is 24sh^2 + 4s^2h per sequence, backward twice that (Narayanan et al. 2021, appendix). Full
    recomputation repeats the forward pass: 1/3. Selective repeats the two attention products, 4s^2h, which gives
    (s/18h)/(1 + s/6h); Korthikanti et al. 2022 print three times that (2.7 % for GPT-3), the share of a forward pass.

    Raises:
        ConfigError: a size below one.
    """
    at_least_one(sequence=sequence, hidden=hidden)
    if recompute is Recompute.NONE:
        return 0.0
    if recompute is Recompute.FULL:
        return 1 / 3
    ratio = sequence / hidden
    return (ratio / 18) / (1 + ratio / 6)
