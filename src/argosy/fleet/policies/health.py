"""From single probes to whether a replica gets requests."""

from __future__ import annotations

from dataclasses import dataclass

from argosy.errors import ConfigError


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """How a replica is probed.

    A shallow probe asks whether the server answers. A deep one has it generate a token and looks at it (finite logprobs,
    plausible entropy): only that one sees an engine that hangs behind a server that answers, or that computes nonsense.

    Attributes:
        interval_s: from one probe to the next; timeout_s: after which a probe has failed.
        failures: in a row, after which the replica gets no more requests; successes: in a row, after which it does again.
    """

    interval_s: float = 5.0
    timeout_s: float = 3.0
    failures: int = 2
    successes: int = 1
    deep: bool = False

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        if not 0.0 < self.timeout_s <= self.interval_s:
            raise ConfigError(
                f"timeout_s of a health check must be above 0 and at most interval_s, got {self.timeout_s} and "
                f"{self.interval_s}"
            )
        if self.failures < 1 or self.successes < 1:
            raise ConfigError("failures and successes of a health check must be at least 1")


@dataclass(slots=True)
class HealthTracker:
    """One replica's health. A refused connection of a request counts like a failed probe; a 429 does not."""

    check: HealthCheck
    healthy: bool = True
    _in_a_row: int = 0

    def on_success(self) -> bool:
        """Take in a probe that was answered; return whether the replica is healthy."""
        return self._take(True, self.check.successes)

    def on_failure(self) -> bool:
        """Take in a probe that failed; return whether the replica is healthy."""
        return self._take(False, self.check.failures)

    def _take(self, good: bool, needed: int) -> bool:
        if good == self.healthy:
            self._in_a_row = 0
            return self.healthy
        self._in_a_row += 1
        if self._in_a_row >= needed:
            self.healthy, self._in_a_row = good, 0
        return self.healthy
