"""What a training plan says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from argosy.cost.quantity import Grade
from argosy.planner.plain import Plain
from argosy.planner.serving_answer import UsdRange


@dataclass(frozen=True, slots=True)
class TrainingLayout(Plain):
    """Degrees and settings.

    Attributes:
        data: replicas; expert: groups that hold disjoint experts; zero: stage over data x context ranks.
        micro_batch: sequences; accumulation: micro-batches of a replica per step; chunks: of the model per stage.
    """

    device: str
    devices: int
    tensor: int
    pipeline: int
    data: int
    context: int
    expert: int
    zero: int
    schedule: str
    chunks: int
    micro_batch: int
    accumulation: int
    recompute: str

    def describe(self) -> str:
        """One line, such as `64 x H100 SXM: TP 8 x PP 2 x DP 4, ZeRO 1, 1f1b, micro-batch 2 x 16, recompute none`."""
        degrees = [
            f"{name} {value}"
            for name, value in (
                ("TP", self.tensor),
                ("PP", self.pipeline),
                ("CP", self.context),
                ("EP", self.expert),
                ("DP", self.data),
            )
            if value > 1 or name == "DP"
        ]
        schedule = f", {self.schedule}" if self.pipeline > 1 else ""
        return (
            f"{self.devices} x {self.device}: {' x '.join(degrees)}, ZeRO {self.zero}{schedule}, "
            f"micro-batch {self.micro_batch} x {self.accumulation}, recompute {self.recompute}"
        )


@dataclass(frozen=True, slots=True)
class TrainingMemoryBreakdown(Plain):
    """Bytes on a device of the fullest stage; `free_bytes` of the device's memory is left."""

    total_bytes: float
    parameter_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    activation_bytes: float
    workspace_bytes: float
    buffer_bytes: float
    runtime_bytes: float
    free_bytes: float


@dataclass(frozen=True, slots=True)
class TrainingPlanned(Plain):
    """One way to train.

    Attributes:
        step_s: seconds of an optimizer step; bubble_share: idle for the pipeline; step_end_share: optimizer and what of
            gradient reduction is not hidden.
        mfu, hfu: of the dense peak; attention counts under its causal mask.
        usd: of the whole run; energy_kwh: at board power, None where unknown.
        worse_because: against the best plan; "" for the best one.
    """

    layout: TrainingLayout
    memory: TrainingMemoryBreakdown
    step_s: float
    bubble_share: float
    step_end_share: float
    tokens_per_s: float
    mfu: float
    hfu: float
    days: float
    usd: UsdRange
    energy_kwh: float | None
    grades: Mapping[str, Grade]
    notes: tuple[str, ...] = ()
    worse_because: str = ""

    def describe(self) -> str:
        """One line."""
        return self.layout.describe()


@dataclass(frozen=True, slots=True)
class TrainingChange(Plain):
    """A change of the question that would make a plan feasible, and the plan it leads to."""

    what: str
    plan: str
    days: float
    usd: UsdRange


@dataclass(frozen=True, slots=True)
class TrainingInfeasible(Plain):
    """Why no plan exists, and changes that would allow one, smallest first."""

    reason: str
    changes: tuple[TrainingChange, ...]


@dataclass(frozen=True, slots=True)
class TrainingAnswer(Plain):
    """Plans by dollars of the whole run, and by days; or why there is none."""

    model: str
    plans: tuple[TrainingPlanned, ...]
    by_days: tuple[TrainingPlanned, ...]
    evaluated: int
    infeasible: TrainingInfeasible | None = None

    @property
    def best(self) -> TrainingPlanned | None:
        """The cheapest plan, or None."""
        return self.plans[0] if self.plans else None
