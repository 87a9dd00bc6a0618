"""What a router knows of one replica: what it is, whether it may be used, and how loaded it is at this moment."""

from __future__ import annotations

import math
from dataclasses import dataclass

from argosy.errors import ConfigError
from argosy.fleet.policies.routing.peak_ewma import PeakEwma


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """What does not change while a replica lives.

    Attributes:
        replica_id: unique within the pool. A replica that restarts may keep its id, and with it its place on a hash ring;
            tell the prefix matcher to forget what it held.
        weight: capacity relative to the other replicas; 0 means that it gets no request.
        models: names it serves; empty for any.
        max_model_len: longest sequence in tokens, prompt and output, or None if unknown.
        kv_capacity_tokens: tokens that its KV pool holds, or None if unknown.
        max_in_flight: requests that may run or wait there at once, or None for what the pool's settings say.
        max_adapters: LoRA adapters that it holds at once.
        usd_per_hour: its price.
        labels: (name, value) pairs.
    """

    replica_id: str
    weight: float = 1.0
    region: str = ""
    models: frozenset[str] = frozenset()
    max_model_len: int | None = None
    kv_capacity_tokens: int | None = None
    max_adapters: int = 0
    usd_per_hour: float = 0.0
    labels: frozenset[tuple[str, str]] = frozenset()
    max_in_flight: int | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the value that is out of range."""
        if not self.replica_id:
            raise ConfigError("a replica needs an id")
        if not (math.isfinite(self.weight) and self.weight >= 0.0):
            raise ConfigError(f"weight of replica {self.replica_id!r} must be a number from 0 up, got {self.weight}")
        if self.kv_capacity_tokens is not None and self.kv_capacity_tokens < 1:
            raise ConfigError(f"kv_capacity_tokens of replica {self.replica_id!r} must be at least 1")
        if self.max_in_flight is not None and self.max_in_flight < 1:
            raise ConfigError(f"max_in_flight of replica {self.replica_id!r} must be at least 1")


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Load that a replica told of itself: what every router and client together have put on it, at time `at_s`.

    Attributes:
        active_tokens: prompt and output tokens of the requests that run or wait.
        kv_used_fraction: part of the KV pool held by running sequences, [0, 1].
    """

    at_s: float
    num_running: int = 0
    num_waiting: int = 0
    active_tokens: int = 0
    kv_used_fraction: float = 0.0


@dataclass(slots=True)
class Booked:
    """Work that this router has put on a replica and that has not ended.

    Attributes:
        tokens: prompt tokens to be computed and output tokens expected, of every request.
        prefill_tokens: prompt tokens to be computed, of the requests that have given no token yet.
    """

    requests: int = 0
    tokens: int = 0
    prefill_tokens: int = 0


class ReplicaState:
    """One replica as a router sees it. Owned by one router; whoever watches health sets `healthy` and the like.

    Load is read at the moment of a decision: a report, if there is one, corrected by what this router booked and let go of
    since. Two routers in front of the same replicas thus see each other's work through the reports and their own at once.

    Attributes:
        takes_requests: whether a request may go there at all: healthy, breaker closed, not draining, weight above 0.
        weight, max_prompt_tokens: as `info` has them; the longest prompt is one token short of the context, or unbounded.
        booked: work of this router.
        report: the last one taken in, or None.
        adapters: LoRA adapters that it said it holds.
        booked_adapters: number of booked requests per adapter.
        latency: of the answers that this router saw.
        last_picked: number of the router's pick that chose it last, from 1; 0 if none has.
    """

    __slots__ = (
        "_breaker_open",
        "_draining",
        "_healthy",
        "_info",
        "_requests_at_report",
        "_tokens_at_report",
        "adapters",
        "booked",
        "booked_adapters",
        "last_picked",
        "latency",
        "max_prompt_tokens",
        "report",
        "takes_requests",
        "weight",
    )

    def __init__(self, info: ReplicaInfo, *, healthy: bool = True) -> None:
        self._info = info
        self._healthy = healthy
        self._breaker_open = False
        self._draining = False
        self.takes_requests = False
        self.weight = 0.0
        self.max_prompt_tokens = math.inf
        self.booked = Booked()
        self.report: LoadReport | None = None
        self.adapters: frozenset[str] = frozenset()
        self.booked_adapters: dict[str, int] = {}
        self.latency = PeakEwma()
        self.last_picked = 0
        self._requests_at_report = 0
        self._tokens_at_report = 0
        self._refresh()

    def __repr__(self) -> str:
        return f"ReplicaState({self.replica_id!r}, takes_requests={self.takes_requests}, booked={self.booked})"

    @property
    def info(self) -> ReplicaInfo:
        """What it is; may be replaced, for instance by one with another weight."""
        return self._info

    @info.setter
    def info(self, info: ReplicaInfo) -> None:
        self._info = info
        self._refresh()

    @property
    def healthy(self) -> bool:
        """As health checks say."""
        return self._healthy

    @healthy.setter
    def healthy(self, healthy: bool) -> None:
        self._healthy = healthy
        self._refresh()

    @property
    def breaker_open(self) -> bool:
        """Whether too many requests failed; no request goes there until it closes."""
        return self._breaker_open

    @breaker_open.setter
    def breaker_open(self, breaker_open: bool) -> None:
        if breaker_open is not self._breaker_open:  # set with every answer, and seldom another
            self._breaker_open = breaker_open
            self._refresh()

    @property
    def draining(self) -> bool:
        """Whether it finishes what it has and takes no more."""
        return self._draining

    @draining.setter
    def draining(self, draining: bool) -> None:
        self._draining = draining
        self._refresh()

    @property
    def replica_id(self) -> str:
        """As in `info`."""
        return self._info.replica_id

    def _refresh(self) -> None:
        """What every decision asks of every replica is kept and not computed when asked for."""
        info = self._info
        self.weight = info.weight
        self.max_prompt_tokens = math.inf if info.max_model_len is None else info.max_model_len - 1
        self.takes_requests = self._healthy and not self._breaker_open and not self._draining and info.weight > 0.0

    def take_report(self, report: LoadReport | None) -> None:
        """Replace the report; None forgets it, so that only what this router booked counts."""
        self.report = report
        self._requests_at_report = self.booked.requests
        self._tokens_at_report = self.booked.tokens

    @property
    def num_requests(self) -> int:
        """Requests that run or wait: reported ones and those booked since, and never fewer than are booked."""
        own = self.booked.requests
        if self.report is None:
            return own
        return max(own, self.report.num_running + self.report.num_waiting + own - self._requests_at_report)

    @property
    def num_tokens(self) -> int:
        """Tokens of the requests that run or wait, likewise."""
        own = self.booked.tokens
        if self.report is None:
            return own
        return max(own, self.report.active_tokens + own - self._tokens_at_report)

    @property
    def kv_fraction(self) -> float:
        """Part of the KV pool that is or will be held, likewise; above 1 if more is booked than fits.

        Raises:
            ConfigError: neither a report nor the capacity of the pool is known.
        """
        capacity = self._info.kv_capacity_tokens
        if self.report is None and capacity is None:
            raise ConfigError(
                f"the KV use of replica {self.replica_id!r} is unknown: give its kv_capacity_tokens, take in its reports, "
                "or route by another load"
            )
        own = 0.0 if capacity is None else self.booked.tokens / capacity
        if self.report is None:
            return own
        since = 0.0 if capacity is None else (self.booked.tokens - self._tokens_at_report) / capacity
        return max(own, self.report.kv_used_fraction + since)

    def holds_adapter(self, adapter_id: str) -> bool:
        """Whether it holds a LoRA adapter, or will for a request that is booked."""
        return adapter_id in self.adapters or adapter_id in self.booked_adapters

    @property
    def num_adapters(self) -> int:
        """LoRA adapters that it holds or will hold."""
        return len(self.adapters.union(self.booked_adapters))
