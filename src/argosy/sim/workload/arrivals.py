"""When requests arrive: stationary processes and bursts. Times are seconds from 0 on, never falling, without end."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from argosy.cost.checks import not_negative, positive
from argosy.errors import ConfigError


class Arrivals(ABC):
    """A point process; mutates nothing but the stream it is given."""

    __slots__ = ()

    @abstractmethod
    def times(self, rng: Random) -> Iterator[float]:
        """The arrival times in seconds."""


@dataclass(frozen=True, slots=True)
class Constant(Arrivals):
    """One arrival every 1/`rate_per_s` seconds, the first after one such gap."""

    kind: ClassVar[str] = "constant"
    rate_per_s: float

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a rate that is not above 0."""
        positive(rate_per_s=self.rate_per_s)

    def times(self, rng: Random) -> Iterator[float]:  # noqa: ARG002
        """The arrival times in seconds."""
        return (number / self.rate_per_s for number in itertools.count(1))


@dataclass(frozen=True, slots=True)
class Poisson(Arrivals):
    """Independent arrivals: exponential gaps of mean 1/`rate_per_s`."""

    kind: ClassVar[str] = "poisson"
    rate_per_s: float

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a rate that is not above 0."""
        positive(rate_per_s=self.rate_per_s)

    def times(self, rng: Random) -> Iterator[float]:
        """The arrival times in seconds."""
        time_s = 0.0
        while True:
            time_s += rng.expovariate(self.rate_per_s)
            yield time_s


@dataclass(frozen=True, slots=True)
class Gamma(Arrivals):
    """Independent gamma-distributed gaps of mean 1/`rate_per_s` and coefficient of variation `cv`.

    A cv of 1 is Poisson, above it arrivals clump, below it they are regular. Shape 1/cv², scale cv²/rate.
    """

    kind: ClassVar[str] = "gamma"
    rate_per_s: float
    cv: float

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a rate or a cv that is not above 0."""
        positive(rate_per_s=self.rate_per_s, cv=self.cv)

    def times(self, rng: Random) -> Iterator[float]:
        """The arrival times in seconds."""
        shape = self.cv**-2
        scale_s = 1.0 / (self.rate_per_s * shape)
        time_s = 0.0
        while True:
            time_s += rng.gammavariate(shape, scale_s)
            yield time_s


@dataclass(frozen=True, slots=True)
class OnOff(Arrivals):
    """Bursts: Poisson arrivals whose rate switches between two values, each kept for an exponential time (MMPP-2).

    Fischer and Meier-Hellstern, "The Markov-modulated Poisson process (MMPP) cookbook", 1993. Starts in either state with
    its long-run share of time.
    """

    kind: ClassVar[str] = "on_off"
    on_rate_per_s: float
    off_rate_per_s: float
    mean_on_s: float
    mean_off_s: float

    def __post_init__(self) -> None:
        """Raise `ConfigError` for times or a rate not above 0, or a rate outside bursts that is not below theirs."""
        positive(on_rate_per_s=self.on_rate_per_s, mean_on_s=self.mean_on_s, mean_off_s=self.mean_off_s)
        not_negative(off_rate_per_s=self.off_rate_per_s)
        if self.off_rate_per_s >= self.on_rate_per_s:
            raise ConfigError(
                f"off_rate_per_s must be below on_rate_per_s, got {self.off_rate_per_s:g} and {self.on_rate_per_s:g}"
            )

    def times(self, rng: Random) -> Iterator[float]:
        """The arrival times in seconds."""
        on = rng.random() * (self.mean_on_s + self.mean_off_s) < self.mean_on_s
        start_s = 0.0
        while True:
            end_s = start_s + rng.expovariate(1.0 / (self.mean_on_s if on else self.mean_off_s))
            rate_per_s = self.on_rate_per_s if on else self.off_rate_per_s
            # The last gap is cut off by the switch: exponential gaps have no memory, so the next state draws afresh.
            time_s = start_s
            while rate_per_s > 0 and (time_s := time_s + rng.expovariate(rate_per_s)) < end_s:
                yield time_s
            start_s, on = end_s, not on
