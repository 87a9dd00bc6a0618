"""Priority classes: who goes first, who gives way, and how much of each may wait."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from enum import IntEnum

from argosy.errors import ConfigError, InvalidRequest


class Priority(IntEnum):
    """A class of requests. A higher one is served first.

    A critical request may displace queued best-effort ones when the queue is full, and preempt running ones when no backend
    has room. Nothing else gives way to another class once it is admitted.
    """

    BEST_EFFORT = 0
    STANDARD = 1
    CRITICAL = 2

    @property
    def label(self) -> str:
        """Its name in headers, configuration and metrics: `best_effort`, `standard` or `critical`."""
        return self.name.lower()


BY_LABEL = {priority.label: priority for priority in Priority}


def priority_for(asked: str | None, *, default: Priority, highest: Priority) -> Priority:
    """The class that a request is served in.

    Args:
        asked: what the request names, as `Priority.label`, or with hyphens; None if it names none.
        default, highest: of its key. A request that asks for more than its key may is served at `highest`.

    Raises:
        InvalidRequest: there is no such class.
    """
    if asked is None:
        wanted = default
    elif (named := BY_LABEL.get(asked.strip().lower().replace("-", "_"))) is not None:
        wanted = named
    else:
        close = difflib.get_close_matches(asked, BY_LABEL, n=1)
        hint = f", did you mean {close[0]!r}?" if close else ""
        raise InvalidRequest(f"priority {asked[:40]!r} is unknown{hint}: use one of {', '.join(BY_LABEL)}", param="priority")
    return min(wanted, highest)


@dataclass(frozen=True, slots=True)
class ClassSettings:
    """What may wait in one class.

    Attributes:
        max_requests, max_bytes: that wait at once; bytes are those of the request bodies, which are held meanwhile.
        ttl_s: longest wait of a request that brings no shorter one.
        guaranteed_share: part of the dispatched tokens that this class gets while it waits, whatever waits above it.
    """

    max_requests: int = 1024
    max_bytes: int = 256 * 2**20
    ttl_s: float = 30.0
    guaranteed_share: float = 0.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        if self.max_requests < 0 or self.max_bytes < 0:
            raise ConfigError("max_requests and max_bytes of a priority class must not be negative")
        if not self.ttl_s > 0.0:
            raise ConfigError(f"ttl_s of a priority class must be above 0, got {self.ttl_s}")
        if not 0.0 <= self.guaranteed_share < 0.5:
            raise ConfigError(f"guaranteed_share of a priority class must be within [0, 0.5), got {self.guaranteed_share}")


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """A queue of three classes.

    Attributes:
        max_requests, max_bytes: that wait at once in all classes together.
        headroom: part of the capacity that tenants with more than their fair share in flight leave free, so that one that
            comes need not wait for a long answer to end.
        keeps_headroom_alone: whether a tenant leaves it free although no other was seen for `linger_s`. False gives it
            everything; right where there is one tenant only.
        linger_s: how long a tenant without requests counts as one who may come back, and what it was served is remembered.
        max_tenants: tenants without requests that are remembered per class.
    """

    critical: ClassSettings = field(default_factory=ClassSettings)
    standard: ClassSettings = field(default_factory=lambda: ClassSettings(guaranteed_share=0.05))
    best_effort: ClassSettings = field(default_factory=lambda: ClassSettings(guaranteed_share=0.01))
    max_requests: int = 2048
    max_bytes: int = 512 * 2**20
    headroom: float = 0.1
    keeps_headroom_alone: bool = True
    linger_s: float = 60.0
    max_tenants: int = 10_000

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        if self.max_requests < 0 or self.max_bytes < 0 or self.max_tenants < 0:
            raise ConfigError("max_requests, max_bytes and max_tenants of a queue must not be negative")
        if not 0.0 <= self.headroom <= 0.5:
            raise ConfigError(f"headroom of a queue must be within [0, 0.5], got {self.headroom}")
        if not self.linger_s >= 0.0:
            raise ConfigError(f"linger_s of a queue must not be negative, got {self.linger_s}")

    def of(self, priority: Priority) -> ClassSettings:
        """The settings of one class."""
        return (self.best_effort, self.standard, self.critical)[priority]
