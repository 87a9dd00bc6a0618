"""One op list from which every figure is summed or walked: FLOPs, bytes, communication, launches, stage."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from argosy.cost.device import Precision


class Phase(enum.StrEnum):
    """What an op belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


class OpKind(enum.StrEnum):
    """What an op is, for efficiencies and for reports."""

    GEMM = "gemm"
    GROUPED_GEMM = "grouped gemm"
    ATTENTION = "attention"
    NORM = "norm"
    ELEMENTWISE = "elementwise"
    EMBEDDING = "embedding"
    ROUTER = "router"
    SAMPLE = "sample"
    COMMUNICATION = "communication"


class CollectiveKind(enum.StrEnum):
    """Patterns of communication."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    POINT_TO_POINT = "point-to-point"
    BROADCAST = "broadcast"


class Collective(NamedTuple):
    """One call among `ranks` devices of the mesh axis `axis`, which lie `stride` devices apart.

    `payload_bytes` is the size of the whole vector M of the formulas, undivided; for an all-to-all, what one rank sends.
    """

    kind: CollectiveKind
    payload_bytes: float
    ranks: int
    axis: str
    stride: int = 1


class Op(NamedTuple):
    """Work of one device for one kernel (or collective), `repeats` times over.

    Attributes:
        layer: index of the first layer it stands for, -1 outside the layers.
        stage: pipeline stage.
        flops: floating-point operations, multiply and add counted as two.
        weight_bytes, kv_bytes, activation_bytes: read and written by it, each byte once.
        precision: of the arithmetic, which selects the peak.
        rows: rows of the matrix product (tokens), for efficiency at small sizes; 0 where it has no meaning.
        launches: kernels launched.
        repeats: how often; flops, bytes and launches are of one.
    """

    name: str
    kind: OpKind
    phase: Phase
    layer: int
    stage: int
    flops: float
    weight_bytes: float
    kv_bytes: float
    activation_bytes: float
    precision: Precision
    rows: float
    launches: int
    collective: Collective | None
    repeats: int

    @property
    def bytes(self) -> float:
        """Bytes moved to and from memory by one repetition."""
        return self.weight_bytes + self.kv_bytes + self.activation_bytes


@dataclass(frozen=True, slots=True)
class StepComposition:
    """What one forward step computes: pairs (new tokens, context before them), runs of equal pairs as (count, new, past).

    A decode step of 64 sequences at context 1000 is `((64, 1, 1000),)`; a prefill chunk is `((1, 512, 1024),)`; both
    together are a mixed step; a speculative verify of 4 drafts is `((64, 5, 1000),)`. `logit_rows` counts rows through the
    head.
    """

    groups: tuple[tuple[int, int, int], ...]
    logit_rows: int

    @property
    def tokens(self) -> int:
        """New tokens in the step."""
        return sum(count * new for count, new, _ in self.groups)

    @property
    def sequences(self) -> int:
        """Sequences in the step."""
        return sum(count for count, _, _ in self.groups)
