"""From settings to a source of requests."""

from __future__ import annotations

import itertools
from pathlib import Path

from argosy.sim.random_streams import RandomStreams
from argosy.sim.workload.closed_loop import ClosedLoop
from argosy.sim.workload.config import SourceConfig, TraceConfig, WorkloadConfig
from argosy.sim.workload.generated import GeneratedSource
from argosy.sim.workload.merging import Merged
from argosy.sim.workload.reshaping import (
    Limited,
    RateScaled,
    Retimed,
    Window,
    repeated,
    tagged,
    with_lengths,
    with_limits,
)
from argosy.sim.workload.trace_files import trace_requests
from argosy.sim.workload.trace_request import OpenLoop, Source


def build_source(config: WorkloadConfig, streams: RandomStreams, folder: Path) -> Source:
    """The requests of `config`; equal settings and seeds give equal requests.

    Mutates the streams whose names begin with "workload/", which no one else may draw from.

    Args:
        folder: where relative paths of trace files start.

    Raises:
        ConfigError: a trace file cannot be opened or a distribution cannot be read from one. What is wrong further on in a
            trace is raised while iterating.
    """
    merged: Source = Merged({source.name: _source(source, streams, folder) for source in config.sources})
    if config.duration_s is not None:
        merged = Window(merged, to_s=config.duration_s)
    return merged if config.max_requests is None else Limited(merged, config.max_requests)


def _source(config: SourceConfig, streams: RandomStreams, folder: Path) -> Source:
    rng = streams.python(f"workload/{config.name}/arrivals")
    times = itertools.repeat(0.0) if config.arrivals is None else config.arrivals.times(rng)
    if config.trace is not None:
        source = _trace(config.name, config.trace, folder)
        if config.arrivals is not None:
            source = Retimed(source, times)
    else:
        assert config.requests is not None
        source = GeneratedSource(config.name, times, config.requests, streams, folder)
    if config.closed_loop is not None:
        loop = config.closed_loop
        source = ClosedLoop(config.name, source, loop.clients, loop.think_s.resolved(folder), loop.ramp_s, streams)
    if config.rate_factor != 1.0:
        source = RateScaled(source, config.rate_factor)
    if config.start_s:
        source = Window(source, start_s=config.start_s)
    return tagged(source, config.tenant, config.priority, config.timeout_s)


def _trace(name: str, config: TraceConfig, folder: Path) -> Source:
    path = folder / config.path
    repeat = config.repeat

    def one_pass(number: int) -> Source:
        pass_name = name if repeat is None else f"{name}/{number}"
        contents = name if repeat is None or repeat.same_content else pass_name
        return Window(OpenLoop(trace_requests(path, pass_name, contents)), from_s=config.from_s, to_s=config.to_s)

    # Made here even where passes follow, so that a file that cannot be read is known before the run begins.
    source = one_pass(0)
    if repeat is not None:
        period_s = repeat.period_s
        if period_s is None and config.to_s is not None:
            period_s = config.to_s - config.from_s
        source = repeated(one_pass, repeat.times, period_s)
    if config.prompt_factor != 1.0 or config.output_factor != 1.0:
        source = with_lengths(source, config.prompt_factor, config.output_factor)
    if config.max_prompt_tokens is not None or config.max_output_tokens is not None:
        source = with_limits(source, config.max_prompt_tokens, config.max_output_tokens)
    return source
