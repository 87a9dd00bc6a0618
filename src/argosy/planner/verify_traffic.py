"""The traffic of a question as a workload of the simulator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from argosy.errors import ConfigError
from argosy.planner.lengths import Lengths
from argosy.planner.traffic import Traffic
from argosy.sim.workload.arrivals import Constant, Gamma, Poisson
from argosy.sim.workload.config import SourceConfig, TraceConfig, WorkloadConfig
from argosy.sim.workload.distributions import AnyDistribution, Fixed, Lognormal, Mixture, MixturePart
from argosy.sim.workload.requests import RequestShape, SystemPrompts
from argosy.sim.workload.trace_files import read_trace

_NAME = "plan"


@dataclass(frozen=True, slots=True)
class TraceTraffic:
    """The trace that a question's traffic was made from, with its mean rate and its length as recorded."""

    path: Path
    requests_per_s: float
    duration_s: float

    @classmethod
    def of(cls, path: Path) -> TraceTraffic:
        """The trace in a file. Raises `TraceFileError` or `ConfigError` if it has no rate."""
        requests = read_trace(path)
        duration_s = requests[-1].arrival_s - requests[0].arrival_s
        if duration_s <= 0.0:
            raise ConfigError(f"{path} needs at least two requests at different times to have a rate")
        return cls(path, (len(requests) - 1) / duration_s, duration_s)


def planned_workload(traffic: Traffic, requests_per_s: float, num_requests: int) -> WorkloadConfig:
    """`num_requests` requests at `requests_per_s` with the lengths, bursts and shared prefix of `traffic`.

    Gaps are gamma-distributed with the coefficient of variation under which counts in a long window have the variance over
    mean that `traffic.burstiness` says; 0 is a constant gap. All requests share one prefix.
    """
    shared = min(round(traffic.prefix.resident_tokens), traffic.prompt.tokens - 1)
    shape = RequestShape(
        user_tokens=_distribution(traffic.prompt, shared),
        output_tokens=_distribution(traffic.output),
        system_prompts=SystemPrompts(1, Fixed(float(shared))) if shared else None,
    )
    source = SourceConfig(_NAME, requests=shape, arrivals=_arrivals(requests_per_s, traffic.burstiness))
    return WorkloadConfig((source,), max_requests=num_requests)


def traced_workload(trace: TraceTraffic, requests_per_s: float) -> WorkloadConfig:
    """The requests of the trace, at this rate in the mean."""
    factor = requests_per_s / trace.requests_per_s
    return WorkloadConfig((SourceConfig(_NAME, trace=TraceConfig(str(trace.path.absolute())), rate_factor=factor),))


def _arrivals(requests_per_s: float, burstiness: float) -> Constant | Poisson | Gamma:
    if burstiness == 1.0:
        return Poisson(requests_per_s)
    return Gamma(requests_per_s, burstiness**0.5) if burstiness else Constant(requests_per_s)


def _distribution(lengths: Lengths, shared: int = 0) -> AnyDistribution:
    """`lengths` without the `shared` first tokens: the distribution behind them where that is known, else their nodes.

    Nodes are scaled to the mean, which those of a long tail miss.
    """
    if not lengths.cv:
        return Fixed(float(lengths.tokens - shared))
    if not shared and lengths == Lengths.lognormal(lengths.mean, lengths.cv):
        return Lognormal(lengths.mean, lengths.cv)
    scale = lengths.mean / sum(share * node for share, node in zip(lengths.shares, lengths.nodes, strict=True))
    return Mixture(
        tuple(
            MixturePart(share, Fixed(max(1.0, scale * node - shared)))
            for share, node in zip(lengths.shares, lengths.nodes, strict=True)
        )
    )
