"""What a workload is made of, as settings: the `workload` part of a configuration file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from argosy.cost.checks import at_least_one, not_negative, positive
from argosy.errors import ConfigError
from argosy.settings.schema import from_mapping
from argosy.sim.workload.arrivals import Constant, Gamma, OnOff, Poisson
from argosy.sim.workload.distributions import AnyDistribution, Fixed
from argosy.sim.workload.requests import RequestShape
from argosy.sim.workload.seasons import Seasonal

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class RepeatConfig:
    """A trace several times over.

    Attributes:
        times: how often in all.
        period_s: seconds from one pass to the next; None takes the length of the window, or, if it has no end, the time
            of the last arrival and one mean gap.
        same_content: later passes repeat the first one's texts, and may find them cached; otherwise each has its own.
    """

    times: int
    period_s: float | None = None
    same_content: bool = False

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the field that is impossible."""
        at_least_one(times=self.times)
        if self.period_s is not None:
            positive(period_s=self.period_s)


@dataclass(frozen=True, slots=True)
class TraceConfig:
    """A trace file, and what is done to it, in this order: a window, repetition, lengths.

    Attributes:
        path: relative to the configuration file.
        from_s, to_s: of the trace's own time, only the arrivals in [from_s, to_s); `from_s` becomes 0.
        prompt_factor, output_factor: lengths are multiplied by these.
        max_prompt_tokens, max_output_tokens: after that, longer ones are cut to their first tokens.
    """

    path: str
    from_s: float = 0.0
    to_s: float | None = None
    repeat: RepeatConfig | None = None
    prompt_factor: float = 1.0
    output_factor: float = 1.0
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the field that is impossible."""
        not_negative(from_s=self.from_s)
        positive(prompt_factor=self.prompt_factor, output_factor=self.output_factor)
        if self.to_s is not None and not self.to_s > self.from_s:
            raise ConfigError(f"to_s must be above from_s, got {self.to_s:g} and {self.from_s:g}")
        for name in ("max_prompt_tokens", "max_output_tokens"):
            if getattr(self, name) is not None:
                at_least_one(**{name: getattr(self, name)})


@dataclass(frozen=True, slots=True)
class ClosedLoopConfig:
    """Clients that wait for each answer.

    Attributes:
        clients: how many.
        think_s: seconds from the end of an answer to the client's next request.
        ramp_s: the first requests are spread evenly over so many seconds.
    """

    clients: int
    think_s: AnyDistribution = field(default_factory=lambda: Fixed(0.0))
    ramp_s: float = 0.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the field that is impossible."""
        at_least_one(clients=self.clients)
        not_negative(ramp_s=self.ramp_s)


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """One stream of requests: from a trace or generated, at the trace's times, at generated ones, or in a closed loop.

    Attributes:
        name: keeps ids, contents and random streams apart.
        trace: where requests come from; this or `requests`.
        requests: how requests are generated.
        arrivals: when they come; with `trace`, instead of the trace's own times.
        closed_loop: instead of arrivals.
        rate_factor: so many times as many requests a second; the source's times, times to think too, are divided by it.
        start_s: when the source begins.
        tenant, priority, timeout_s: of all its requests; None leaves what a recorded trace says.
    """

    name: str
    trace: TraceConfig | None = None
    requests: RequestShape | None = None
    arrivals: Constant | Poisson | Gamma | OnOff | Seasonal | None = None
    closed_loop: ClosedLoopConfig | None = None
    rate_factor: float = 1.0
    start_s: float = 0.0
    tenant: str | None = None
    priority: int | None = None
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the field that is impossible, or the fields that exclude each other."""
        if _NAME.fullmatch(self.name) is None:
            raise ConfigError(f"name must be letters, digits, '_', '-' and '.', at most 64, got {self.name!r}")
        positive(rate_factor=self.rate_factor)
        not_negative(start_s=self.start_s)
        if self.timeout_s is not None:
            positive(timeout_s=self.timeout_s)
        if (self.trace is None) == (self.requests is None):
            raise ConfigError("needs either trace or requests")
        if self.arrivals is not None and self.closed_loop is not None:
            raise ConfigError("closed_loop decides when requests come; leave arrivals out")
        if self.trace is None and self.arrivals is None and self.closed_loop is None:
            raise ConfigError("requests need arrivals or closed_loop, to say when they come")
        if self.closed_loop is not None and self.rate_factor != 1.0:
            raise ConfigError("closed_loop has no rate to scale; leave rate_factor out")

    @property
    def is_endless(self) -> bool:
        """Whether it gives requests for as long as it is asked."""
        return self.trace is None


@dataclass(frozen=True, slots=True)
class WorkloadConfig:
    """All requests of a run.

    Attributes:
        sources: merged by arrival.
        duration_s: only arrivals before this.
        max_requests: only so many requests.
    """

    sources: tuple[SourceConfig, ...]
    duration_s: float | None = None
    max_requests: int | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` for no sources, two of one name, or requests without end."""
        if not self.sources:
            raise ConfigError("sources must not be empty")
        names = [source.name for source in self.sources]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"two sources have the name {name!r}")
        if self.duration_s is not None:
            positive(duration_s=self.duration_s)
        if self.max_requests is not None:
            at_least_one(max_requests=self.max_requests)
        endless = next((source.name for source in self.sources if source.is_endless), None)
        if endless is not None and self.duration_s is None and self.max_requests is None:
            raise ConfigError(f"source {endless!r} never ends; set duration_s or max_requests")

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any], path: str = "workload") -> WorkloadConfig:
        """From plain settings, as a YAML file gives them; `path` is what messages call them.

        Raises:
            ConfigError: an unknown key (the nearest known one is named), a value of another type or out of range.
        """
        return from_mapping(cls, settings, path)
