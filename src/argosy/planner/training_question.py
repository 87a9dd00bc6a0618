"""What to plan a training run for: model, tokens, batch, devices, deadline, and what the search may vary."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from argosy.cost.activations import Recompute
from argosy.cost.checks import at_least_one, positive
from argosy.cost.device import Precision
from argosy.cost.efficiency import Constants
from argosy.cost.model_spec import ModelSpec
from argosy.cost.pipeline_schedules import Schedule
from argosy.cost.serving_memory import MemoryConstants
from argosy.cost.training_time import Overlap
from argosy.cost.zero import Optimizer, ZeroStage
from argosy.errors import ConfigError
from argosy.planner.offers import DeviceOffer

# What sharded data parallelism commonly hides of its gathers and scatters behind the layers next to them.
_USUAL_OVERLAP = Overlap(data=0.8, layers=0.0)


@dataclass(frozen=True, slots=True)
class TrainingSpace:
    """What the search varies; None means the usual values for the model and the device.

    Attributes:
        devices: numbers of devices; by default powers of two times a node, and all of an offer's.
        context: by default more than 1 only for sequences of 16 384 tokens and more.
    """

    devices: tuple[int, ...] | None = None
    tensor: tuple[int, ...] | None = None
    pipeline: tuple[int, ...] | None = None
    context: tuple[int, ...] | None = None
    expert: tuple[int, ...] | None = None
    zero: tuple[ZeroStage, ...] | None = None
    micro_batch: tuple[int, ...] = (1, 2, 4, 8)
    recompute: tuple[Recompute, ...] = (Recompute.NONE, Recompute.FULL)
    schedules: tuple[Schedule, ...] = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.ZB_H1)

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the axis that is empty or impossible."""
        for name in ("devices", "tensor", "pipeline", "context", "expert", "micro_batch"):
            values = getattr(self, name)
            if values == ():
                raise ConfigError(f"{name} must name at least one value; leave it out to search the usual ones")
            for value in values or ():
                at_least_one(**{name: value})
        for name in ("zero", "recompute", "schedules"):
            if getattr(self, name) == ():
                raise ConfigError(f"{name} must name at least one value; leave it out to search the usual ones")


@dataclass(frozen=True, slots=True)
class TrainingQuestion:
    """How to train `model` on `tokens` tokens, by `deadline_days` if given.

    Attributes:
        batch_tokens: of an optimizer step, a multiple of `sequence`.
        compute: arithmetic of the matrix products.
        max_usd: budget of the whole run at the high end of prices.
        overlap: of communication, stated because no measurement stands behind it.
    """

    model: str | ModelSpec
    tokens: float
    batch_tokens: int
    sequence: int
    devices: tuple[DeviceOffer, ...]
    deadline_days: float | None = None
    max_usd: float | None = None
    optimizer: Optimizer = Optimizer.ADAM
    compute: Precision = Precision.BF16
    space: TrainingSpace = field(default_factory=TrainingSpace)
    overlap: Overlap = _USUAL_OVERLAP
    constants: Constants = field(default_factory=Constants)
    memory: MemoryConstants = field(default_factory=MemoryConstants)
    top: int = 5

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the field that is impossible."""
        positive(tokens=self.tokens)
        at_least_one(batch_tokens=self.batch_tokens, sequence=self.sequence, top=self.top)
        if self.batch_tokens % self.sequence:
            raise ConfigError(f"batch_tokens {self.batch_tokens} must be a multiple of sequence {self.sequence}")
        if self.batch_tokens > self.tokens:
            raise ConfigError(f"batch_tokens {self.batch_tokens} exceeds the {self.tokens:g} tokens of the run")
        for name in ("deadline_days", "max_usd"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} must be finite and above 0, got {value}")
        if not self.devices:
            raise ConfigError("devices must name at least one candidate")

    @property
    def sequences_per_step(self) -> int:
        """Sequences of an optimizer step."""
        return self.batch_tokens // self.sequence
