"""What is said of a set of measurements: mean, percentiles, largest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

RANKS = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of `count` values, in their unit. Percentiles are interpolated between the two nearest values."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles | None:
        """None without values."""
        if not len(values):
            return None
        array = np.asarray(values, np.float64)
        p50, p90, p95, p99 = (float(value) for value in np.percentile(array, RANKS))
        return cls(len(array), float(array.mean()), p50, p90, p95, p99, float(array.max()))

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)
