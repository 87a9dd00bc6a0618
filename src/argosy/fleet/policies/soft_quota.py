"""Limits that may be exceeded while nobody else needs what they hold back."""

from __future__ import annotations

from dataclasses import dataclass

from argosy.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SoftQuota:
    """How far soft limits stretch with the load of the fleet.

        factor
        max_burst  ------.
                          \\
                           \\
        1                   `-------
             0      free_below  enforced_above     load

    Attributes:
        max_burst: factor while the load is at most `free_below`.
        free_below, enforced_above: load of the fleet, 0 to 1; between them the factor falls linearly to 1.
    """

    max_burst: float = 2.0
    free_below: float = 0.5
    enforced_above: float = 0.9

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        if not 1.0 <= self.max_burst <= 100.0:
            raise ConfigError(f"max_burst of a soft quota must be from 1 to 100, got {self.max_burst}")
        if not 0.0 <= self.free_below < self.enforced_above:
            raise ConfigError(
                "free_below of a soft quota must be from 0 to below enforced_above, got "
                f"{self.free_below} and {self.enforced_above}"
            )

    def burst(self, load: float) -> float:
        """Factor on soft limits at `load`, the saturation of the fleet (1 is full). Not a number counts as full."""
        if load <= self.free_below:
            return self.max_burst
        if not load < self.enforced_above:
            return 1.0
        share = (self.enforced_above - load) / (self.enforced_above - self.free_below)
        return 1.0 + share * (self.max_burst - 1.0)
