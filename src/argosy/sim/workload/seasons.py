"""Arrivals whose rate follows the hours of the day and the days of the week, by thinning.

Lewis and Shedler, "Simulation of nonhomogeneous Poisson processes by thinning", 1979: candidates come at the highest rate
there is, and one at time t is kept with probability rate(t) / highest rate.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from argosy.cost.checks import fraction, not_negative, positive
from argosy.errors import ConfigError
from argosy.sim.workload.arrivals import Arrivals

# Candidates rejected in a row, over so many of the longest period, before thinning gives up.
_PATIENCE, _PATIENCE_PERIODS = 1_000_000, 10


@dataclass(frozen=True, slots=True)
class Sinusoid:
    """A factor 1 + amplitude x cos(2 pi (t - peak_s) / period_s): mean 1, highest at `peak_s`."""

    kind: ClassVar[str] = "sinusoid"
    period_s: float
    amplitude: float
    peak_s: float = 0.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a period not above 0, or an amplitude that would make rates negative."""
        positive(period_s=self.period_s)
        fraction(amplitude=self.amplitude)
        not_negative(peak_s=self.peak_s)

    @property
    def highest(self) -> float:
        """The largest factor."""
        return 1.0 + self.amplitude

    def factor(self, time_s: float) -> float:
        """The factor at `time_s`."""
        return 1.0 + self.amplitude * math.cos(2.0 * math.pi * (time_s - self.peak_s) / self.period_s)


@dataclass(frozen=True, slots=True)
class Steps:
    """A factor given at points [seconds, factor] of each period: kept until the next point, or straight lines between them.

    With `interpolate`, the last point is joined to the first of the next period.
    """

    kind: ClassVar[str] = "steps"
    period_s: float
    points: tuple[tuple[float, float], ...]
    interpolate: bool = False

    def __post_init__(self) -> None:
        """Raise `ConfigError` for points that do not start at 0, do not ascend within the period, or are all 0."""
        positive(period_s=self.period_s)
        times = [time_s for time_s, _ in self.points]
        if not times or times[0] != 0:
            raise ConfigError("points must begin with one at 0 seconds")
        if not all(later > earlier for earlier, later in zip(times, [*times[1:], self.period_s], strict=True)):
            raise ConfigError(f"the seconds of points must ascend and stay below period_s {self.period_s:g}")
        not_negative(**{f"points[{position}][1]": factor for position, (_, factor) in enumerate(self.points)})
        if self.highest == 0:
            raise ConfigError("points must have a factor above 0")

    @property
    def highest(self) -> float:
        """The largest factor."""
        return max(factor for _, factor in self.points)

    def factor(self, time_s: float) -> float:
        """The factor at `time_s`."""
        since_s = time_s % self.period_s
        position = bisect.bisect_right(self.points, since_s, key=lambda point: point[0]) - 1
        start_s, factor = self.points[position]
        if not self.interpolate:
            return factor
        end_s, next_factor = (
            self.points[position + 1] if position + 1 < len(self.points) else (self.period_s, self.points[0][1])
        )
        return factor + (next_factor - factor) * (since_s - start_s) / (end_s - start_s)


@dataclass(frozen=True, slots=True)
class Seasonal(Arrivals):
    """Poisson arrivals at `rate_per_s` times the factor of every season at that time.

    Attributes:
        start_s: where in the seasons time 0 lies, e.g. 28 800 to begin at eight in the morning.
    """

    kind: ClassVar[str] = "seasonal"
    rate_per_s: float
    seasons: tuple[Sinusoid | Steps, ...]
    start_s: float = 0.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a rate not above 0, or no seasons."""
        positive(rate_per_s=self.rate_per_s)
        not_negative(start_s=self.start_s)
        if not self.seasons:
            raise ConfigError("seasons must not be empty; for a steady rate take kind poisson")

    def rate_at(self, time_s: float) -> float:
        """Requests per second at `time_s`."""
        return self.rate_per_s * math.prod([season.factor(self.start_s + time_s) for season in self.seasons])

    def times(self, rng: Random) -> Iterator[float]:
        """The arrival times in seconds.

        Raises:
            ConfigError: the seasons have no moment in common at which all of them are above 0.
        """
        highest_per_s = self.rate_per_s * math.prod(season.highest for season in self.seasons)
        patience_s = _PATIENCE_PERIODS * max(season.period_s for season in self.seasons)
        time_s = last_s = 0.0
        rejected = 0
        while True:
            time_s += rng.expovariate(highest_per_s)
            if rng.random() * highest_per_s < self.rate_at(time_s):
                yield time_s
                last_s, rejected = time_s, 0
            else:
                rejected += 1
                if rejected > _PATIENCE and time_s - last_s > patience_s:
                    raise ConfigError("the factors of all seasons multiply to 0 (nearly) always; no request would arrive")
