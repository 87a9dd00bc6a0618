"""Replicas of one kind: device, layout, formats, engine, price."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from argosy.cost.checks import at_least_one, fraction, not_negative
from argosy.cost.parallel import ParallelPlan
from argosy.errors import ConfigError
from argosy.settings.schema import nearest
from argosy.sim.config.engine import EngineSettings

ROLES = ("serve", "prefill", "decode")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class ParallelismSettings:
    """Degrees of one replica; see `ParallelPlan.for_serving`. `data` is attention data parallelism inside it."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1

    def __post_init__(self) -> None:
        """Raise `ConfigError` for degrees that no model has."""
        self.plan()

    def plan(self) -> ParallelPlan:
        """The degrees as the cost model takes them."""
        return ParallelPlan.for_serving(self.tensor, self.pipeline, self.data, self.expert)


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """Speculative decoding.

    Attributes:
        drafts: tokens proposed in a step; acceptance: probability that one is accepted if all before it were.
        draft: the model that proposes them, or None where drafting costs nothing, as from n-grams.
    """

    drafts: int
    acceptance: float
    draft: str | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` for no drafts, or an acceptance that is no probability."""
        at_least_one(drafts=self.drafts)
        fraction(acceptance=self.acceptance)


@dataclass(frozen=True, slots=True)
class ReplicaGroup:
    """`count` replicas that are alike, named `name-0`, `name-1`, ….

    Attributes:
        role: "serve" for both phases, or "prefill" or "decode" of disaggregated pools.
        device, node: name in the catalogue; one of the two.
        weights, kv: formats, as `argosy plan serve` takes them; kv None is the device's 16-bit type.
        step_times: serving engine whose measured step times stand behind the simulated ones.
        memory_fraction: share of a device that may be used at all; kv_fraction: of what is left for KV that it takes.
        weight: capacity for the router, relative to other groups.
        region: where it stands, for the router.
        usd_per_device_hour: None takes the middle of the catalogue's on-demand prices, if there are any.
        watts_per_device: None takes the board power of the catalogue.
    """

    name: str = "replica"
    count: int = 1
    role: str = "serve"
    device: str = ""
    node: str = ""
    parallelism: ParallelismSettings = field(default_factory=ParallelismSettings)
    weights: str = "bf16"
    kv: str | None = None
    engine: EngineSettings = field(default_factory=EngineSettings)
    speculation: SpeculationSettings | None = None
    step_times: str = "vllm"
    memory_fraction: float = 1.0
    kv_fraction: float = 0.9
    weight: float = 1.0
    region: str = ""
    usd_per_device_hour: float | None = None
    watts_per_device: float | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the field that is impossible."""
        if _NAME.fullmatch(self.name) is None:
            raise ConfigError(f"name must be letters, digits, '_', '-' and '.', at most 64, got {self.name!r}")
        if self.count < 0:
            raise ConfigError(f"count must not be negative, got {self.count}")
        if self.role not in ROLES:
            raise ConfigError(f"role {self.role!r} is unknown: {nearest(self.role, ROLES)}")
        if bool(self.device) == bool(self.node):
            raise ConfigError("needs either device or node")
        fraction(memory_fraction=self.memory_fraction, kv_fraction=self.kv_fraction)
        not_negative(weight=self.weight)
        for name in ("usd_per_device_hour", "watts_per_device"):
            value = getattr(self, name)
            if value is not None:
                not_negative(**{name: value})

    @property
    def replica_names(self) -> tuple[str, ...]:
        """Of those that are there from the beginning."""
        return tuple(f"{self.name}-{number}" for number in range(self.count))
