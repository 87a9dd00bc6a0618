"""How a model is trained: the parallel plan and everything that memory, traffic and time depend on beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from argosy.cost.activations import ActivationConventions, Recompute
from argosy.cost.checks import at_least_one, not_negative
from argosy.cost.device import Precision
from argosy.cost.parallel import ParallelPlan
from argosy.cost.pipeline_schedules import Schedule, part_placement
from argosy.cost.zero import Optimizer, StateBytes, ZeroStage, state_bytes
from argosy.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Offload:
    """What is kept in host memory (or below it) instead of on the device."""

    optimizer: bool = False
    gradients: bool = False
    parameters: bool = False
    checkpoints: bool = False


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """One step of training.

    Attributes:
        parallel: degrees; data counts replicas, and with context the ranks that model state is sharded over.
        sequence, micro_batch: tokens per sequence and sequences per micro-batch of one replica.
        micro_batches: per replica and step: gradient accumulation without a pipeline, what fills it with one.
        shard_ranks: hybrid sharding over groups of this many of the data x context ranks; None shards over all.
        zero: applies to data x context ranks; experts are sharded over the ranks that hold the same ones.
        state: bytes per parameter of parameters, gradients and optimizer.
        activations: element type of activations and of what is communicated of them.
    """

    parallel: ParallelPlan
    sequence: int
    micro_batch: int = 1
    micro_batches: int = 1
    schedule: Schedule = Schedule.ONE_F_ONE_B
    recompute: Recompute = Recompute.NONE
    zero: ZeroStage = ZeroStage.NONE
    shard_ranks: int | None = None
    state: StateBytes = field(default_factory=lambda: state_bytes(Optimizer.ADAM))
    activations: Precision = Precision.BF16
    conventions: ActivationConventions = field(default_factory=ActivationConventions)
    offload: Offload = field(default_factory=Offload)
    reserved_bytes: float = 0.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming what does not fit together."""
        at_least_one(sequence=self.sequence, micro_batch=self.micro_batch, micro_batches=self.micro_batches)
        not_negative(reserved_bytes=self.reserved_bytes)
        part_placement(self.schedule, stages=self.parallel.pipeline, chunks=self.parallel.interleave)
        if self.sequence % self.parallel.context:
            raise ConfigError(f"context parallelism {self.parallel.context} does not divide a sequence of {self.sequence}")
        if self.parallel.sequence_parallel and (self.sequence // self.parallel.context) % self.parallel.tensor:
            local = self.sequence // self.parallel.context
            raise ConfigError(f"sequence parallelism over tensor {self.parallel.tensor} does not divide {local} tokens")
        if self.schedule is Schedule.INTERLEAVED and self.micro_batches % self.parallel.pipeline:
            raise ConfigError(
                f"interleaved 1f1b needs micro_batches a multiple of stages, "
                f"got {self.micro_batches} and {self.parallel.pipeline}"
            )
        if self.shard_ranks is not None:
            at_least_one(shard_ranks=self.shard_ranks)
            if self.zero is ZeroStage.NONE:
                raise ConfigError(f"shard_ranks {self.shard_ranks} needs a ZeRO stage of 1, 2 or 3")
            if self.state_ranks % self.shard_ranks:
                raise ConfigError(f"shard_ranks {self.shard_ranks} must divide data x context = {self.state_ranks}")

    @property
    def state_ranks(self) -> int:
        """Ranks that hold the same dense parameters before sharding: data x context."""
        return self.parallel.data * self.parallel.context

    @property
    def expert_state_ranks(self) -> int:
        """Ranks that hold the same shard of the same experts."""
        return self.parallel.tensor * self.state_ranks // self.parallel.expert_group

    @property
    def state_shards(self) -> int:
        """Ranks that dense model state is sharded over by the ZeRO stage."""
        return self.state_ranks if self.shard_ranks is None else self.shard_ranks

    @property
    def expert_state_shards(self) -> int:
        """The same of experts, which have fewer replicas: as many of them as fit in a hybrid group."""
        return self.expert_state_ranks if self.shard_ranks is None else math.gcd(self.expert_state_ranks, self.shard_ranks)

    @property
    def sequences_per_step(self) -> int:
        """Effective batch: micro-batch x data parallelism x accumulation."""
        return self.micro_batch * self.parallel.data * self.micro_batches

    @property
    def tokens_per_step(self) -> int:
        """Tokens of the effective batch."""
        return self.sequences_per_step * self.sequence
