"""How a model is laid over devices, and at what precision."""

from __future__ import annotations

from dataclasses import dataclass

from argosy.cost.device import Precision
from argosy.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ParallelPlan:
    """Degrees of parallelism of one replica (serving) or of the whole job (training).

    Devices used: tensor x pipeline x data x context; experts are spread over `expert` of the tensor x data devices.

    Attributes:
        tensor: shards of every matrix (Megatron); KV heads are replicated once it exceeds their number.
        pipeline: stages of consecutive layers.
        expert: groups that hold disjoint experts; 1 means the experts are sharded like other matrices (MoE-TP).
        data: training replicas, or attention-DP ranks in serving (attention replicated, requests split).
        context: shards of the sequence (ring attention).
        sequence_parallel: norms and residuals sharded over `tensor` (Korthikanti et al. 2022).
        interleave: model chunks per stage (interleaved 1F1B).
    """

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    data: int = 1
    context: int = 1
    sequence_parallel: bool = False
    interleave: int = 1

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the degree that is impossible whatever the model."""
        for axis in ("tensor", "pipeline", "expert", "data", "context", "interleave"):
            if getattr(self, axis) < 1:
                raise ConfigError(f"{axis} parallelism must be at least 1, got {getattr(self, axis)}")
        if (self.tensor * self.data) % self.expert:
            raise ConfigError(f"expert parallelism {self.expert} must divide tensor x data = {self.tensor * self.data}")

    @property
    def devices(self) -> int:
        """Devices of the whole plan."""
        return self.tensor * self.pipeline * self.data * self.context


@dataclass(frozen=True, slots=True)
class Precisions:
    """Element types of one deployment.

    Attributes:
        weights: of the projection matrices; `experts` of routed experts where different.
        compute: arithmetic of the matrix products (int4 and weight-only fp8/int8 compute in bf16).
        kv: of the KV cache.
        activations: of residuals and of what is communicated.
        scale_bytes_per_element: quantisation scales per weight element (e.g. 2/128 for groups of 128 with an fp16 scale).
        embeddings: of the embedding and head matrices, usually not quantised.
    """

    weights: Precision = Precision.BF16
    compute: Precision = Precision.BF16
    kv: Precision = Precision.BF16
    activations: Precision = Precision.BF16
    experts: Precision | None = None
    embeddings: Precision = Precision.BF16
    scale_bytes_per_element: float = 0.0
