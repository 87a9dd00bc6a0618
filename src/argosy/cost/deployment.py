"""One model under one plan at given precisions: what the op list and the memory model are made from, checked once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from argosy.cost.device import Precision
from argosy.cost.model_arithmetic import kv_elements_per_token, layer_runs, split_layers
from argosy.cost.model_spec import Layer, LinearAttention, Mla, ModelSpec, MoeFfn
from argosy.cost.op import CollectiveKind, OpKind
from argosy.cost.op_template import Exchange, Place, RowOp, Rows
from argosy.cost.parallel import ParallelPlan, Precisions
from argosy.errors import ConfigError, UnsupportedModel


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model, a plan and precisions that fit each other.

    Attributes:
        expert_imbalance: work of the busiest expert rank over the mean, minus 1 (its utilisation is 1/(1+i)).
        mla: the model's latent attention, or None.
    """

    spec: ModelSpec
    plan: ParallelPlan
    precisions: Precisions = field(default_factory=Precisions)
    expert_imbalance: float = 0.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` where the plan does not divide the model, naming both and the remedy."""
        spec, plan = self.spec, self.plan
        if not (math.isfinite(self.expert_imbalance) and self.expert_imbalance >= 0):
            raise ConfigError(f"expert imbalance must be a number from 0 up, got {self.expert_imbalance}")
        split_layers(spec.num_layers, plan.pipeline)
        for _, layer in spec.layers:
            kv_elements_per_token(layer.attention, plan.tensor)
            if isinstance(layer.attention, LinearAttention):
                self._check_linear(layer.attention)
        experts = [layer.ffn.experts for _, layer in spec.layers if isinstance(layer.ffn, MoeFfn)]
        if plan.expert > 1 and not experts:
            raise ConfigError(f"{spec.name} has no experts; use expert parallelism 1 instead of {plan.expert}")
        if experts and plan.expert > min(experts):
            raise ConfigError(f"expert parallelism {plan.expert} exceeds the {min(experts)} experts of {spec.name}")
        if len({layer.attention for _, layer in spec.layers if isinstance(layer.attention, Mla)}) > 1:
            raise UnsupportedModel(f"{spec.name} mixes latent attention of two shapes, which is not costed")

    def _check_linear(self, attention: LinearAttention) -> None:
        if attention.heads % self.plan.tensor or attention.kv_heads % self.plan.tensor:
            heads = f"{attention.heads} value and {attention.kv_heads} key heads"
            raise ConfigError(f"tensor parallelism {self.plan.tensor} does not divide {heads} of linear attention")
        if self.plan.context > 1:
            raise ConfigError("context parallelism is not costed for linear attention; use context 1")

    @property
    def mla(self) -> Mla | None:
        """The model's latent attention, or None."""
        return next((layer.attention for _, layer in self.spec.layers if isinstance(layer.attention, Mla)), None)

    @property
    def token_share(self) -> float:
        """Tokens of one device per token of its data rank."""
        return 1.0 / self.plan.context

    @property
    def residual_share(self) -> float:
        """Rows of the residual stream that one device normalises per token of its data rank."""
        return self.token_share / (self.plan.tensor if self.plan.sequence_parallel else 1)

    @property
    def activation_bytes(self) -> float:
        """Bytes of one activation element."""
        return self.precisions.activations.bytes_per_element

    @property
    def arithmetic(self) -> Precision:
        """Arithmetic of attention, norms, router and head."""
        return self.precisions.activations

    @property
    def scales_inputs(self) -> bool:
        """Whether inputs of projections are brought to a narrow type with scales of their own: one more kernel each.

        So it is where weights carry block scales and the arithmetic is narrower than activations; per-tensor scales are
        known beforehand and applied by the kernel that writes the input.
        """
        narrow = self.precisions.compute.bytes_per_element < self.activation_bytes
        return narrow and self.precisions.scale_bytes_per_element > 0

    @property
    def stages(self) -> tuple[tuple[int, int], ...]:
        """(first, one past the last) layer of each stage."""
        return split_layers(self.spec.num_layers, self.plan.pipeline)

    def runs_of_stage(self, stage: int) -> Iterator[tuple[Place, Layer]]:
        """Distinct layers of a stage, with the first index of each and how many are equal to it."""
        first, stop = self.stages[stage]
        index = first
        places: dict[Layer, tuple[int, int]] = {}
        for count, layer in layer_runs(self.spec, first, stop):
            start, total = places.get(layer, (index, 0))
            places[layer] = (start, total + count)
            index += count
        for layer, (start, total) in places.items():
            yield Place(start, stage, total), layer

    def gemm(
        self,
        name: str,
        place: Place,
        inputs: float,
        outputs: float,
        *,
        bias: float = 0.0,
        counted_in: Rows = Rows.TOKENS,
        share: float | None = None,
        held: bool = True,
    ) -> RowOp:
        """Matrix product of rows x inputs by inputs x outputs at the precision of the projections.

        Args:
            bias: elements of its bias.
            share: rows of this device per row counted; default the device's tokens.
            held: whether it owns the memory of its weights (another op may read the same ones).
        """
        weights = self.precisions.matrix_bytes(inputs * outputs) + bias * self.activation_bytes
        return RowOp(
            name,
            OpKind.GEMM,
            place,
            self.precisions.compute,
            counted_in,
            self.token_share if share is None else share,
            flops=2.0 * inputs * outputs,
            activation_bytes=(inputs + outputs) * self.activation_bytes,
            weight_bytes=weights,
            held_bytes=weights if held else 0.0,
            launches=2 if self.scales_inputs else 1,
        )

    def elementwise(
        self,
        name: str,
        place: Place,
        moved: float,
        *,
        kind: OpKind = OpKind.ELEMENTWISE,
        share: float | None = None,
        held: float = 0.0,
    ) -> RowOp:
        """An op without matrices that reads and writes `moved` elements a row and has `held` elements of weights."""
        weights = held * self.activation_bytes
        return RowOp(
            name,
            kind,
            place,
            self.arithmetic,
            share=self.token_share if share is None else share,
            flops=moved,
            activation_bytes=moved * self.activation_bytes,
            weight_bytes=weights,
            held_bytes=weights,
        )

    def norm(self, name: str, place: Place, *, share: float | None = None) -> RowOp:
        """RMSNorm fused with the residual addition: reads a branch and the residual, writes the residual and its norm."""
        hidden = self.spec.hidden_size
        weights = hidden * (2 if self.spec.norm_has_bias else 1)
        share = self.residual_share if share is None else share
        return self.elementwise(name, place, 4.0 * hidden, kind=OpKind.NORM, share=share, held=weights)

    def exchange(
        self,
        name: str,
        place: Place,
        collective: CollectiveKind,
        axis: str,
        ranks: int,
        stride: int = 1,
        *,
        payload_bytes: float | None = None,
        counted_in: Rows = Rows.TOKENS,
    ) -> list[RowOp]:
        """A collective over an axis, or nothing where the axis has one rank; its payload a row is the hidden vector."""
        if ranks == 1:
            return []
        payload = self.spec.hidden_size * self.activation_bytes if payload_bytes is None else payload_bytes
        return [
            RowOp(
                name,
                OpKind.COMMUNICATION,
                place,
                self.arithmetic,
                counted_in,
                self.token_share,
                exchange=Exchange(collective, payload, ranks, axis, stride),
            )
        ]

    def enter_tensor_parallel(self, name: str, place: Place) -> list[RowOp]:
        """All-gather of the normalised rows before sharded matrices under sequence parallelism; nothing otherwise."""
        if not self.plan.sequence_parallel:
            return []
        return self.exchange(f"{name} all-gather", place, CollectiveKind.ALL_GATHER, "tensor", self.plan.tensor)

    def leave_tensor_parallel(self, name: str, place: Place) -> list[RowOp]:
        """Sum of the partial results of row-sharded matrices: all-reduce, or reduce-scatter under sequence parallelism."""
        kind = CollectiveKind.REDUCE_SCATTER if self.plan.sequence_parallel else CollectiveKind.ALL_REDUCE
        return self.exchange(f"{name} {kind}", place, kind, "tensor", self.plan.tensor)
