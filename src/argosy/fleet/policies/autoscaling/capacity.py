"""What one replica serves: told, or learnt from replicas that are warm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from argosy.errors import ConfigError


class Capacity(Protocol):
    """Requests per second that one replica serves at full load."""

    @property
    def requests_per_s(self) -> float:
        """Above 0."""
        ...


@dataclass(frozen=True, slots=True)
class KnownCapacity:
    """A constant, from a plan or a benchmark."""

    requests_per_s: float

    def __post_init__(self) -> None:
        """Raise `ConfigError` if it is not positive."""
        if not self.requests_per_s > 0.0:
            raise ConfigError(f"requests_per_s of a replica must be above 0, got {self.requests_per_s}")


@dataclass(slots=True)
class LearntCapacity:
    """An exponentially weighted mean of requests served per busy second.

    Only time in which a replica computed counts: neither requests waiting nor idle seconds make it look slower. A replica
    younger than `warm_up_s` is left out: its first batches compile kernels and fill caches, and a model that learnt from
    them would want more replicas, which start cold again.

    Attributes:
        requests_per_s: the estimate; before the first sample, what is given.
        weight: of a new sample, (0, 1].
        min_busy_s: samples with less busy time say too little.
    """

    requests_per_s: float
    warm_up_s: float = 60.0
    weight: float = 0.1
    min_busy_s: float = 1.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the value that is out of range."""
        if not self.requests_per_s > 0.0:
            raise ConfigError(f"requests_per_s of a replica must be above 0, got {self.requests_per_s}")
        if not 0.0 < self.weight <= 1.0:
            raise ConfigError(f"weight of a sample must be within (0, 1], got {self.weight}")

    def observe(self, *, age_s: float, busy_s: float, num_finished: int) -> bool:
        """Take in what one replica of that age did lately; whether the sample counted. Mutates the estimate."""
        if age_s < self.warm_up_s or busy_s < self.min_busy_s or num_finished == 0:
            return False
        self.requests_per_s += self.weight * (num_finished / busy_s - self.requests_per_s)
        return True
