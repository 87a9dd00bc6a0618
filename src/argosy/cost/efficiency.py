"""The few constants between physics and measured time: efficiencies and overheads, with grade and fitted range.

An efficiency never exceeds 1, an overhead is never negative: no constants make a step faster than its FLOPs at peak or its
bytes at full bandwidth.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from argosy.cost.op import OpKind
from argosy.cost.quantity import Grade
from argosy.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of the peak and of the bandwidth that a kind of op reaches.

    A matrix product of r rows reaches compute x r/(r + half_rows) of the peak: as if it had `half_rows` more rows, which is
    what padding to tiles and filling the pipeline cost. So its time stays linear in r.
    """

    compute: float
    memory: float
    half_rows: float = 0.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` for an efficiency that physics does not allow."""
        for name in ("compute", "memory"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"{name} efficiency must be above 0 and at most 1, got {getattr(self, name)}")
        if not (math.isfinite(self.half_rows) and self.half_rows >= 0):
            raise ConfigError(f"half_rows must be finite and not negative, got {self.half_rows}")

    def compute_at(self, rows: float) -> float:
        """Share of the peak reached with `rows`; 0 rows means that rows have no meaning for the op."""
        return self.compute if rows <= 0 else self.compute * rows / (rows + self.half_rows)


_MATRIX = Efficiency(compute=0.7, memory=0.8, half_rows=64.0)
_MOVER = Efficiency(compute=1.0, memory=0.8)

DEFAULT_EFFICIENCIES: Mapping[OpKind, Efficiency] = MappingProxyType(
    {
        OpKind.GEMM: _MATRIX,
        OpKind.GROUPED_GEMM: Efficiency(compute=0.6, memory=0.7, half_rows=64.0),
        OpKind.ATTENTION: Efficiency(compute=0.5, memory=0.7),
        OpKind.NORM: _MOVER,
        OpKind.ELEMENTWISE: _MOVER,
        OpKind.EMBEDDING: _MOVER,
        OpKind.ROUTER: _MATRIX,
        OpKind.SAMPLE: _MOVER,
        OpKind.COMMUNICATION: _MOVER,
    }
)


@dataclass(frozen=True, slots=True)
class FittedRange:
    """Range of a quantity over the measurements that constants were fitted to; a figure outside it is an extrapolation."""

    low: float
    high: float

    def contains(self, value: float) -> bool:
        """Whether `value` was covered."""
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Constants:
    """Efficiencies and overheads of one kind of deployment.

    The defaults are what public performance models use: 0.8 of HBM bandwidth and 3 µs per kernel (three of them, of one
    origin, so second-hand), compute efficiencies as large matrix products commonly reach. Calibration replaces them.

    Attributes:
        efficiencies: per kind of op.
        link_efficiency: share of a link's bandwidth that collectives reach.
        launch_s: per kernel; collective_s: per collective, on top of α; layer_s: per decoder layer.
        step_s: per forward step (scheduling, sampling, detokenisation); sequence_s: per sequence of it.
        point_to_point_s: per transfer between stages, on top of α.
        overlap_fraction: share of the shorter of compute and communication of a stage that hides behind the longer.
        source, grade, as_of, rows, held_out_error: where they are from; `rows` measurements, median relative error.
        fitted: ranges of what was measured, by name (e.g. "tokens", "context").
    """

    efficiencies: Mapping[OpKind, Efficiency] = field(default_factory=lambda: DEFAULT_EFFICIENCIES)
    link_efficiency: float = 0.8
    launch_s: float = 3e-6
    collective_s: float = 5e-6
    point_to_point_s: float = 10e-6
    layer_s: float = 0.0
    step_s: float = 0.0
    sequence_s: float = 0.0
    overlap_fraction: float = 0.0
    source: str = "constants common to public performance models: HBM x 0.8, 3 µs per op, 10 µs per point-to-point"
    grade: Grade = Grade.SECONDARY
    as_of: str = ""
    rows: int = 0
    held_out_error: float | None = None
    fitted: Mapping[str, FittedRange] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise `ConfigError` for constants that physics does not allow or that leave an op kind out."""
        for name in ("launch_s", "collective_s", "point_to_point_s", "layer_s", "step_s", "sequence_s"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ConfigError(f"{name} must be finite and not negative, got {getattr(self, name)}")
        if not 0 < self.link_efficiency <= 1:
            raise ConfigError(f"link_efficiency must be above 0 and at most 1, got {self.link_efficiency}")
        if not 0 <= self.overlap_fraction <= 1:
            raise ConfigError(f"overlap_fraction must be 0 to 1, got {self.overlap_fraction}")
        missing = [kind for kind in OpKind if kind not in self.efficiencies]
        if missing:
            raise ConfigError(f"no efficiency is given for {missing[0]} ops")

    def replace(self, **changes: object) -> Constants:
        """These constants with some changed; checked again."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def extrapolates(self, **values: float) -> tuple[str, ...]:
        """Names of `values` that lie outside the range they were fitted on; a name never fitted is not judged."""
        return tuple(name for name, value in values.items() if name in self.fitted and not self.fitted[name].contains(value))


PERFECT = Constants(
    efficiencies=dict.fromkeys(OpKind, Efficiency(compute=1.0, memory=1.0)),
    link_efficiency=1.0,
    launch_s=0.0,
    collective_s=0.0,
    point_to_point_s=0.0,
    source="roofline without losses",
    grade=Grade.DERIVED,
)
