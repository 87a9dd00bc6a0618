"""Distributions of lengths in tokens, of counts, and of times in seconds; the unit is that of the key that holds one."""

from __future__ import annotations

import bisect
import itertools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import NormalDist
from typing import ClassVar, TypeAlias

from argosy.cost.checks import not_negative, positive
from argosy.errors import ConfigError
from argosy.sim.workload.trace_files import trace_requests

_MIN_KEPT = 0.01


class Distribution(ABC):
    """Draws numbers of at least 0, and mutates nothing but the stream it is given."""

    __slots__ = ()

    @abstractmethod
    def draw(self, rng: Random) -> float:
        """One value."""

    def draw_whole(self, rng: Random) -> int:
        """One value as a count: the nearest whole number, at least 1."""
        return max(1, round(self.draw(rng)))

    def resolved(self, folder: Path) -> Distribution:  # noqa: ARG002
        """This distribution with its files read; paths that are not absolute start at `folder`."""
        return self


@dataclass(frozen=True, slots=True)
class Fixed(Distribution):
    """Always `value`."""

    kind: ClassVar[str] = "fixed"
    value: float

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a negative value."""
        not_negative(value=self.value)

    @classmethod
    def from_number(cls, value: float) -> Fixed:
        """What a bare number stands for."""
        return cls(value)

    def draw(self, rng: Random) -> float:  # noqa: ARG002
        """`value`; draws nothing from the stream."""
        return self.value


@dataclass(frozen=True, slots=True)
class Uniform(Distribution):
    """Every value from `low` to `high` alike; of counts, every whole number from `low` to `high`, both included."""

    kind: ClassVar[str] = "uniform"
    low: float
    high: float

    def __post_init__(self) -> None:
        """Raise `ConfigError` for bounds in the wrong order."""
        not_negative(low=self.low, high=self.high)
        if self.high < self.low:
            raise ConfigError(f"high must be at least low, got {self.low:g} and {self.high:g}")

    def draw(self, rng: Random) -> float:
        """One value."""
        return rng.uniform(self.low, self.high)

    def draw_whole(self, rng: Random) -> int:
        """One whole number, at least 1."""
        low, high = math.ceil(self.low), math.floor(self.high)
        return max(1, rng.randint(low, high)) if low <= high else max(1, round(self.low))


@dataclass(frozen=True, slots=True)
class Exponential(Distribution):
    """Exponential of this mean; values above `max` are drawn again."""

    kind: ClassVar[str] = "exponential"
    mean: float
    max: float | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a mean that is not above 0, or a `max` that nearly nothing is below."""
        positive(mean=self.mean)
        if self.max is not None:
            _check_max(self.max, -math.expm1(-self.max / self.mean))

    def draw(self, rng: Random) -> float:
        """One value."""
        while True:
            value = rng.expovariate(1.0 / self.mean)
            if self.max is None or value <= self.max:
                return value


@dataclass(frozen=True, slots=True)
class Lognormal(Distribution):
    """Lognormal of this mean and coefficient of variation, before values above `max` are drawn again."""

    kind: ClassVar[str] = "lognormal"
    mean: float
    cv: float
    max: float | None = None
    _location: float = field(init=False, repr=False, compare=False)
    _scale: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a mean or cv that is not above 0, or a `max` that nearly nothing is below."""
        positive(mean=self.mean, cv=self.cv)
        # E = exp(m + s²/2) and CV² = exp(s²) - 1.
        variance = math.log1p(self.cv**2)
        object.__setattr__(self, "_location", math.log(self.mean) - variance / 2)
        object.__setattr__(self, "_scale", math.sqrt(variance))
        if self.max is not None:
            positive(max=self.max)
            _check_max(self.max, NormalDist(self._location, self._scale).cdf(math.log(self.max)))

    def draw(self, rng: Random) -> float:
        """One value."""
        while True:
            value = rng.lognormvariate(self._location, self._scale)
            if self.max is None or value <= self.max:
                return value


@dataclass(frozen=True, slots=True)
class Empirical(Distribution):
    """Each of `values` alike."""

    kind: ClassVar[str] = "empirical"
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raise `ConfigError` for no values, or negative ones."""
        if not self.values:
            raise ConfigError("values must not be empty")
        not_negative(**{f"values[{position}]": value for position, value in enumerate(self.values)})

    def draw(self, rng: Random) -> float:
        """One value."""
        return self.values[rng.randrange(len(self.values))]


@dataclass(frozen=True, slots=True)
class FromTrace(Distribution):
    """The prompt or the output lengths of a trace file, each alike; reading it keeps one number a request."""

    kind: ClassVar[str] = "trace"
    path: str
    of: str

    def __post_init__(self) -> None:
        """Raise `ConfigError` for another `of` than prompt or output."""
        if self.of not in ("prompt", "output"):
            raise ConfigError(f"of must be prompt or output, got {self.of!r}")

    def resolved(self, folder: Path) -> Empirical:
        """The lengths as they stand in the file. Raises `TraceFileError` as the reader does."""
        requests = trace_requests(folder / self.path)
        if self.of == "prompt":
            return Empirical(tuple([float(request.num_prompt_tokens) for request in requests]))
        return Empirical(tuple([float(request.output_tokens) for request in requests]))

    def draw(self, rng: Random) -> float:  # noqa: ARG002
        """Not possible before the file is read."""
        raise AssertionError("a distribution from a trace is resolved before it is drawn from")


@dataclass(frozen=True, slots=True)
class MixturePart:
    """One part of a mixture; only the ratios of weights matter."""

    weight: float
    distribution: AnyDistribution

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a weight that is not above 0."""
        positive(weight=self.weight)


@dataclass(frozen=True, slots=True)
class Mixture(Distribution):
    """A value of one of the parts, which is drawn first, in proportion to the weights."""

    kind: ClassVar[str] = "mixture"
    parts: tuple[MixturePart, ...]
    _bounds: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raise `ConfigError` for no parts."""
        if not self.parts:
            raise ConfigError("parts must not be empty")
        object.__setattr__(self, "_bounds", tuple(itertools.accumulate(part.weight for part in self.parts)))

    def resolved(self, folder: Path) -> Mixture:
        """The mixture of the resolved parts."""
        return Mixture(
            tuple(MixturePart(part.weight, part.distribution.resolved(folder)) for part in self.parts)  # type: ignore[arg-type]
        )

    def draw(self, rng: Random) -> float:
        """One value."""
        return self._part(rng).draw(rng)

    def draw_whole(self, rng: Random) -> int:
        """One count, as its part draws counts."""
        return self._part(rng).draw_whole(rng)

    def _part(self, rng: Random) -> Distribution:
        return self.parts[weighted_index(self._bounds, rng)].distribution


AnyDistribution: TypeAlias = Fixed | Uniform | Exponential | Lognormal | Empirical | FromTrace | Mixture


def weighted_index(bounds: tuple[float, ...], rng: Random) -> int:
    """An index in proportion to weights whose running sums are `bounds`; one draw from the stream."""
    # The product can round up to the last bound itself.
    return min(bisect.bisect_right(bounds, rng.random() * bounds[-1]), len(bounds) - 1)


def _check_max(limit: float, kept: float) -> None:
    if not kept >= _MIN_KEPT:
        raise ConfigError(f"max {limit:g} keeps only {kept:.2g} of all values; it must keep at least {_MIN_KEPT}")
