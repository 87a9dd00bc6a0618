"""What a model gives up, step by step, while its backends run out of KV memory.

An engine whose KV pool is full preempts running requests and computes them anew: everybody waits longer than if all had been
given a little less. Which steps a model takes part in, and when, is its own choice; without steps nothing changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from argosy.errors import ConfigError
from argosy.fleet.policies.routing.replica_state import ReplicaState


class Concession(StrEnum):
    """One step. `SHORTER_CONTEXT`: answers end sooner; `NO_SPECULATION`: no draft tokens are computed and kept;
    `SMALLER_MODEL`: another model answers."""

    SHORTER_CONTEXT = "shorter_context"
    NO_SPECULATION = "no_speculation"
    SMALLER_MODEL = "smaller_model"


@dataclass(frozen=True, slots=True)
class LadderSettings:
    """When each step is taken.

    Attributes:
        above: KV pressure, [0, 1], above which a step is taken; a step that is not named is never taken.
        hysteresis: a step ends once the pressure has been this much below its `above` for `calm_s`.
    """

    above: Mapping[Concession, float] = field(default_factory=lambda: MappingProxyType({}))
    hysteresis: float = 0.05
    calm_s: float = 5.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        if not 0.0 <= self.hysteresis < 1.0:
            raise ConfigError(f"hysteresis of a degradation must be within [0, 1), got {self.hysteresis}")
        if not self.calm_s >= 0.0:
            raise ConfigError(f"calm_s of a degradation must not be negative, got {self.calm_s}")
        for concession, above in self.above.items():
            if not self.hysteresis < above <= 1.0:
                raise ConfigError(f"{concession.value} must begin above the hysteresis and at most at 1, got {above}")


class DegradationLadder:
    """Which steps one model takes at the moment."""

    def __init__(self, settings: LadderSettings) -> None:
        self.settings = settings
        self._calm_since_s: dict[Concession, float] = {}
        """Of the steps that are taken: since when the pressure has been low enough to end them; infinity if it is not."""

    @property
    def active(self) -> frozenset[Concession]:
        """The steps that are taken, as of the last `update`."""
        return frozenset(self._calm_since_s)

    def update(self, kv_pressure: float, now_s: float) -> frozenset[Concession]:
        """Take in the pressure and return the steps that are taken. A step begins at once."""
        for concession, above in self.settings.above.items():
            if kv_pressure > above:
                self._calm_since_s[concession] = math.inf
            elif concession in self._calm_since_s:
                if kv_pressure > above - self.settings.hysteresis:
                    self._calm_since_s[concession] = math.inf
                else:
                    since_s = self._calm_since_s[concession] = min(self._calm_since_s[concession], now_s)
                    if now_s - since_s >= self.settings.calm_s:
                        del self._calm_since_s[concession]
        return self.active


def kv_pressure(replicas: Sequence[ReplicaState]) -> float:
    """Mean use of the KV pools of the replicas that take requests, booked work included; 0 where none is known."""
    known = [
        replica.kv_fraction
        for replica in replicas
        if replica.takes_requests and (replica.report is not None or replica.info.kv_capacity_tokens is not None)
    ]
    return sum(known) / len(known) if known else 0.0
