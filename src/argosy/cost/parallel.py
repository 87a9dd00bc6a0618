"""How a model is laid over devices, and at what precision."""

from __future__ import annotations

from dataclasses import dataclass

from argosy.cost.device import Precision
from argosy.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ParallelPlan:
    """Degrees of parallelism of one replica (serving) or of the whole job (training).

    Devices used: tensor x pipeline x data x context, laid out with tensor innermost, then data, context and pipeline.
    Experts are spread over groups of expert x expert_tensor devices out of tensor x data.

    Attributes:
        tensor: shards of every matrix (Megatron); KV heads are replicated once it exceeds their number.
        pipeline: stages of consecutive layers.
        expert: groups that hold disjoint experts; 1 means the experts are sharded like other matrices (MoE-TP).
        expert_tensor: shards of each expert's matrices; None means what is left of `tensor` after `expert`.
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
    expert_tensor: int | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the degree that is impossible whatever the model."""
        for axis in ("tensor", "pipeline", "expert", "data", "context", "interleave"):
            if getattr(self, axis) < 1:
                raise ConfigError(f"{axis} parallelism must be at least 1, got {getattr(self, axis)}")
        if self.expert_tensor is not None and self.expert_tensor < 1:
            raise ConfigError(f"expert_tensor parallelism must be at least 1, got {self.expert_tensor}")
        if (self.tensor * self.data) % self.expert:
            raise ConfigError(f"expert parallelism {self.expert} must divide tensor x data = {self.tensor * self.data}")
        if (self.tensor * self.data) % self.expert_group:
            group = f"expert {self.expert} x expert_tensor {self.expert_shards}"
            raise ConfigError(f"{group} must divide tensor x data = {self.tensor * self.data}")

    @classmethod
    def for_serving(cls, tensor: int = 1, pipeline: int = 1, data: int = 1, expert: int = 1) -> ParallelPlan:
        """A serving replica that holds its experts once: moe_tp x moe_ep = tensor x data.

        Raises:
            ConfigError: `expert` does not divide tensor x data.
        """
        if expert < 1 or (tensor * data) % expert:
            raise ConfigError(f"expert parallelism {expert} must divide tensor x data = {tensor * data}")
        return cls(tensor=tensor, pipeline=pipeline, data=data, expert=expert, expert_tensor=tensor * data // expert)

    @property
    def expert_shards(self) -> int:
        """Shards of each expert's matrices."""
        return self.expert_tensor if self.expert_tensor is not None else max(1, self.tensor // self.expert)

    @property
    def expert_group(self) -> int:
        """Devices that together hold every expert once."""
        return self.expert * self.expert_shards

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
        activations: of residuals and of what is communicated, of norms, biases and routers, and the arithmetic of attention.
        expert_compute: arithmetic of the routed experts where different from `compute`.
        scale_bytes_per_element: quantisation scales per element of weights below two bytes (e.g. 2/128 for groups of 128
            with an fp16 scale).
        embeddings: of the embedding and head matrices, usually not quantised.
    """

    weights: Precision = Precision.BF16
    compute: Precision = Precision.BF16
    kv: Precision = Precision.BF16
    activations: Precision = Precision.BF16
    experts: Precision | None = None
    embeddings: Precision = Precision.BF16
    scale_bytes_per_element: float = 0.0
    expert_compute: Precision | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` for scales that cannot be."""
        if not 0 <= self.scale_bytes_per_element <= 4:
            raise ConfigError(f"scale_bytes_per_element must be 0 to 4, got {self.scale_bytes_per_element}")

    def matrix_bytes(self, elements: float, precision: Precision | None = None) -> float:
        """Bytes of a matrix of so many elements, with scales where `precision` (default `weights`) is quantised."""
        element = (precision or self.weights).bytes_per_element
        return elements * (element + (self.scale_bytes_per_element if element < 2 else 0.0))
