"""Ops of a layer before the step is known: amounts per row, or per pair of tokens that attention looks at.

Everything a forward step does is one of two kinds of work:

- a `RowOp` does the same for every row (token, logit row, sequence): its FLOPs and activation bytes are linear in the rows,
  its weights are read once however many rows there are, except experts, of which more are touched by more tokens;
- a `GroupOp` is attention of one sequence: its FLOPs grow with pairs (new token, token it sees), its KV bytes with the
  tokens read.

The op list evaluates templates one by one; the vectorised step-time model stacks them into arrays. Both therefore say the
same by construction.
"""

from __future__ import annotations

import enum
import math
from typing import NamedTuple

from argosy.cost.device import Precision
from argosy.cost.model_spec import Mla
from argosy.cost.op import Collective, CollectiveKind, Op, OpKind, Phase, StepComposition

# Stands in for log(0) where a token visits every expert, so that 0 tokens x log(0) stays 0.
CERTAIN = -745.0


class Rows(enum.IntEnum):
    """What the rows of a `RowOp` are counted in."""

    TOKENS = 0
    LOGITS = 1
    SEQUENCES = 2
    ABSORBED_TOKENS = 3
    EXPANDED_TOKENS = 4


class Place(NamedTuple):
    """Where an op runs: the first layer it stands for (-1 outside), its stage, and for how many equal layers."""

    layer: int
    stage: int
    repeats: int


class Exchange(NamedTuple):
    """A collective whose payload is linear in rows: `payload_bytes` per row (or per token read)."""

    kind: CollectiveKind
    payload_bytes: float
    ranks: int
    axis: str
    stride: int


class Touched(NamedTuple):
    """Routed experts of one device. A token misses each of `experts` with probability exp(`log_miss`).

    Expected share touched by n tokens: 1 - exp(n x log_miss), with n = tokens x `tokens_per_token` of the expert group.
    """

    experts: float
    log_miss: float
    tokens_per_token: float

    @classmethod
    def of(cls, experts: float, visit_probability: float, tokens_per_token: float) -> Touched:
        """Experts that a token visits with `visit_probability` each."""
        log_miss = math.log1p(-visit_probability) if visit_probability < 1 else CERTAIN
        return cls(experts, log_miss, tokens_per_token)

    def share(self, tokens: float) -> float:
        """Expected share of the experts that at least one of the tokens visits, 0 to 1."""
        return -math.expm1(max(CERTAIN, tokens * self.tokens_per_token * self.log_miss))


class RowOp(NamedTuple):
    """Work linear in rows; see the module. Bytes and FLOPs of one repetition on one device.

    Attributes:
        share: rows of this device per row counted (sequence parallelism, expert routing).
        flops, activation_bytes, kv_bytes, weight_row_bytes: per row of this device.
        kv_sequence_bytes: per sequence (recurrent states).
        weight_bytes: read once if there is any row, or in the share of experts `touched`.
        held_bytes: weights resident for it, whether or not read.
    """

    name: str
    kind: OpKind
    place: Place
    precision: Precision
    counted_in: Rows = Rows.TOKENS
    share: float = 1.0
    flops: float = 0.0
    activation_bytes: float = 0.0
    kv_bytes: float = 0.0
    weight_row_bytes: float = 0.0
    kv_sequence_bytes: float = 0.0
    weight_bytes: float = 0.0
    held_bytes: float = 0.0
    launches: int = 1
    touched: Touched | None = None
    exchange: Exchange | None = None

    def at(self, features: StepFeatures) -> Op:
        """The op in a step of these features."""
        rows = self.share * features.rows[self.counted_in]
        weights = self.weight_bytes if rows > 0 else 0.0
        efficiency_rows = rows
        if self.touched is not None and rows > 0:
            share = self.touched.share(features.tokens)
            weights *= share
            efficiency_rows = rows / (self.touched.experts * share)
        collective = None
        if self.exchange is not None:
            kind, per_row, ranks, axis, stride = self.exchange
            collective = Collective(kind, per_row * rows, ranks, axis, stride)
        return Op(
            name=self.name,
            kind=self.kind,
            phase=Phase.FORWARD,
            layer=self.place.layer,
            stage=self.place.stage,
            flops=self.flops * rows,
            weight_bytes=weights + self.weight_row_bytes * rows,
            kv_bytes=self.kv_bytes * rows + self.kv_sequence_bytes * features.sequences,
            activation_bytes=self.activation_bytes * rows,
            precision=self.precision,
            rows=efficiency_rows,
            launches=self.launches if rows > 0 else 0,
            collective=collective,
            repeats=self.place.repeats,
        )


class MlaForm(enum.IntEnum):
    """How latent attention is computed (DeepSeek-V2, section 2.1): over the latent itself, or over keys made from it."""

    ABSORBED = 0
    EXPANDED = 1


class GroupOp(NamedTuple):
    """Attention of sequences with equal (new, past). Bytes and FLOPs of one repetition on one device.

    Attributes:
        limit: most tokens that one new token sees (sliding window, sparse top-k), or None.
        gathers: each new token reads its own tokens (sparse attention); otherwise the tokens read are the union.
        form: evaluated only for groups that take this form of latent attention; None for all.
        flops: per pair (new token, token seen); kv_bytes, span_bytes: per token read; token_bytes: per new token.
        rows_per_token: query rows per new token against the same keys, for efficiency.
        exchange: payload per token read.
    """

    name: str
    kind: OpKind
    place: Place
    precision: Precision
    limit: int | None = None
    gathers: bool = False
    form: MlaForm | None = None
    flops: float = 0.0
    kv_bytes: float = 0.0
    span_bytes: float = 0.0
    token_bytes: float = 0.0
    rows_per_token: float = 1.0
    launches: int = 1
    exchange: Exchange | None = None

    def at(self, count: int, new: int, past: int, *, first: bool) -> Op:
        """The op for `count` sequences of (new, past); all groups of a step are one launch, counted with the `first`."""
        pairs = causal_pairs(new, past, self.limit)
        span = pairs if self.gathers else tokens_read(new, past, self.limit)
        collective = None
        if self.exchange is not None:
            kind, per_token, ranks, axis, stride = self.exchange
            collective = Collective(kind, per_token * count * span, ranks, axis, stride)
        return Op(
            name=self.name,
            kind=self.kind,
            phase=Phase.FORWARD,
            layer=self.place.layer,
            stage=self.place.stage,
            flops=self.flops * count * pairs,
            weight_bytes=0.0,
            kv_bytes=self.kv_bytes * count * span,
            activation_bytes=count * (self.span_bytes * span + self.token_bytes * new),
            precision=self.precision,
            rows=self.rows_per_token * new,
            launches=self.launches if first else 0,
            collective=collective,
            repeats=self.place.repeats,
        )


Template = RowOp | GroupOp


class StepFeatures(NamedTuple):
    """What `RowOp`s need to know of a step: `rows` indexed by `Rows`."""

    rows: tuple[float, float, float, float, float]

    @property
    def tokens(self) -> float:
        """New tokens of the step."""
        return self.rows[Rows.TOKENS]

    @property
    def sequences(self) -> float:
        """Sequences of the step."""
        return self.rows[Rows.SEQUENCES]


def step_features(step: StepComposition, mla: Mla | None) -> StepFeatures:
    """Features of `step`; `mla` decides which sequences are computed in which form."""
    absorbed = expanded = 0.0
    if mla is not None:
        for count, new, past in step.groups:
            if mla_form(mla, new, past) is MlaForm.ABSORBED:
                absorbed += count * new
            else:
                expanded += count * (past + new)
    return StepFeatures((step.tokens, step.logit_rows, step.sequences, absorbed, expanded))


def causal_pairs(new: float, past: float, limit: int | None) -> float:
    """Sum over the new tokens j = 1..new of min(past + j, limit): pairs that causal attention scores."""
    if limit is None:
        return new * past + new * (new + 1) / 2
    growing = min(max(limit - past, 0), new)
    return growing * past + growing * (growing + 1) / 2 + (new - growing) * limit


def tokens_read(new: float, past: float, limit: int | None) -> float:
    """Distinct tokens whose keys and values the new tokens read, each once."""
    return past + new if limit is None else min(past + new, limit + new - 1)


def mla_form(mla: Mla, new: float, past: float) -> MlaForm:
    """The form of latent attention with fewer operations: absorbed for few new tokens, expanded for long prefills.

    Absorbed, queries and outputs pass the up-projections and scores are over kv_lora + rope, values over kv_lora;
    expanded, every token read passes the up-projections and heads are nope + rope and v wide. Sparse attention gathers
    latents and is always absorbed.
    """
    if mla.index is not None:
        return MlaForm.ABSORBED
    pairs = causal_pairs(new, past, None)
    up = mla.kv_lora * (mla.nope_dim + mla.v_dim)
    absorbed = new * up + pairs * (2 * mla.kv_lora + mla.rope_dim)
    expanded = (past + new) * up + pairs * (mla.nope_dim + mla.rope_dim + mla.v_dim)
    return MlaForm.ABSORBED if absorbed <= expanded else MlaForm.EXPANDED
