"""Bytes of model state per device: parameters, gradients and optimizer under ZeRO 0-3 and hybrid sharding.

Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 3 and
table 1; hybrid sharding: Zhao et al. 2023, "PyTorch FSDP", section 3.2.2.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from argosy.cost.checks import at_least_one, not_negative
from argosy.errors import ConfigError


class ZeroStage(enum.IntEnum):
    """What is sharded over the data-parallel ranks; FSDP with full sharding is `PARAMETERS`, plain DDP is `NONE`."""

    NONE = 0
    OPTIMIZER = 1
    GRADIENTS = 2
    PARAMETERS = 3


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes per parameter of what training keeps between steps.

    Attributes:
        parameter: the copy that the forward pass reads.
        gradient: what backward accumulates into.
        optimizer: master copy and moments together.
    """

    parameter: float
    gradient: float
    optimizer: float

    def __post_init__(self) -> None:
        """Raise `ConfigError` for bytes that cannot be."""
        not_negative(parameter=self.parameter, gradient=self.gradient, optimizer=self.optimizer)

    @property
    def total(self) -> float:
        """Bytes per parameter in all."""
        return self.parameter + self.gradient + self.optimizer


# 8-bit moments carry one fp32 scale each per block of 2048 (Dettmers et al. 2022, section 2.1).
_BLOCK_SCALE_BYTES = 4.0 / 2048.0


class Optimizer(enum.StrEnum):
    """Optimizers whose state is the same for every parameter; Adafactor depends on shapes, see `adafactor_bytes`."""

    ADAM = "adam"
    ADAM_8BIT = "adam-8bit"
    SGD_MOMENTUM = "sgd-momentum"
    SGD = "sgd"

    @property
    def moment_bytes(self) -> float:
        """Bytes of moments per parameter, without a master copy."""
        return {"adam": 8.0, "adam-8bit": 2 * (1.0 + _BLOCK_SCALE_BYTES), "sgd-momentum": 4.0, "sgd": 0.0}[self.value]


def state_bytes(optimizer: Optimizer, *, mixed_precision: bool = True, fp32_gradients: bool = False) -> StateBytes:
    """Bytes per parameter: mixed-precision Adam is 2 + 2 + 12 (Rajbhandari et al. 2020, section 3.1), fp32 Adam 4 + 4 + 8.

    Args:
        mixed_precision: 16-bit parameters and gradients with an fp32 master copy; otherwise everything is fp32.
        fp32_gradients: gradients are accumulated in fp32 under mixed precision too (2 + 4 + 12 for Adam).
    """
    if not mixed_precision:
        return StateBytes(4.0, 4.0, optimizer.moment_bytes)
    return StateBytes(2.0, 4.0 if fp32_gradients else 2.0, 4.0 + optimizer.moment_bytes)


def adafactor_bytes(shapes: Iterable[tuple[int, ...]], *, first_moment: bool = False) -> float:
    """Bytes of Adafactor's fp32 state over all of `shapes`, without a master copy.

    A matrix of n x m keeps n + m numbers (leading dimensions are batched), a vector one per element; with a first moment
    one more per element (Shazeer & Stern 2018, section 4).

    Raises:
        ConfigError: a shape with a dimension below one.
    """
    total = 0
    for shape in shapes:
        size = 1
        for length in shape:
            at_least_one(dimension=length)
            size *= length
        factored = size // shape[-1] + size // shape[-2] if len(shape) >= 2 else size
        total += factored + (size if first_moment else 0)
    return 4.0 * total


@dataclass(frozen=True, slots=True)
class ModelState:
    """Bytes of model state on one device."""

    parameter_bytes: float
    gradient_bytes: float
    optimizer_bytes: float

    @property
    def total_bytes(self) -> float:
        """All three together."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes


def model_state(
    parameters: float, stage: ZeroStage, ranks: int, state: StateBytes | None = None, *, shard_ranks: int | None = None
) -> ModelState:
    """Bytes per device of `parameters` parameters under `stage` over `ranks` data-parallel devices.

    With K = 12 bytes of optimizer state: 16P without ZeRO, 4P + 12P/N in stage 1, 2P + 14P/N in stage 2, 16P/N in stage 3
    (Rajbhandari et al. 2020, section 5).

    Args:
        state: bytes per parameter, mixed-precision Adam by default.
        shard_ranks: hybrid sharding: shards span this many devices and are replicated over ranks / shard_ranks groups.

    Raises:
        ConfigError: a count that cannot be, or shards that do not divide the ranks.
    """
    not_negative(parameters=parameters)
    at_least_one(ranks=ranks)
    shards = ranks if shard_ranks is None else shard_ranks
    at_least_one(shard_ranks=shards)
    if ranks % shards:
        raise ConfigError(f"shard_ranks {shards} must divide the {ranks} data-parallel ranks")
    per = state if state is not None else state_bytes(Optimizer.ADAM)
    return ModelState(
        parameter_bytes=parameters * per.parameter / (shards if stage >= ZeroStage.PARAMETERS else 1),
        gradient_bytes=parameters * per.gradient / (shards if stage >= ZeroStage.GRADIENTS else 1),
        optimizer_bytes=parameters * per.optimizer / (shards if stage >= ZeroStage.OPTIMIZER else 1),
    )


def largest_model_parameters(
    memory_bytes: float, stage: ZeroStage, ranks: int, state: StateBytes | None = None, *, model_parallel: int = 1
) -> float:
    """Most parameters whose model state alone fits in `memory_bytes` per device (Rajbhandari et al. 2020, table 2).

    Raises:
        ConfigError: a count or size that cannot be.
    """
    not_negative(memory_bytes=memory_bytes)
    at_least_one(model_parallel=model_parallel)
    return model_parallel * memory_bytes / model_state(1.0, stage, ranks, state).total_bytes
