"""Traffic to plan for, from the requests of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from argosy.cost.checks import positive
from argosy.errors import ConfigError
from argosy.planner.lengths import Lengths
from argosy.planner.traffic import PrefixReuse, Traffic
from argosy.sim.workload.trace_request import TraceRequest

_PEAK_WINDOW_S = 60.0
# Arrivals that a window for burstiness must hold on average, and its least length.
_WINDOW_ARRIVALS, _WINDOW_S = 10.0, 10.0


def trace_traffic(
    requests: Sequence[TraceRequest], *, source: str = "trace", scale: float = 1.0, at_peak: bool = False
) -> Traffic:
    """Traffic of a trace: its lengths as they are, its rate x `scale`, the burstiness and prefix reuse that it shows.

    Args:
        at_peak: plan for the busiest minute instead of the mean.

    Raises:
        ConfigError: fewer than two requests, no time between first and last, or a scale that is not above 0.
    """
    positive(scale=scale)
    arrivals = np.array([request.arrival_s for request in requests])
    if len(arrivals) < 2 or arrivals[-1] <= arrivals[0]:
        raise ConfigError(f"{source} needs at least two requests at different times to have a rate")
    rate = (len(arrivals) - 1) / float(arrivals[-1] - arrivals[0])
    busiest = _counts(arrivals, min(_PEAK_WINDOW_S, float(arrivals[-1] - arrivals[0])))
    window = max(_WINDOW_S, _WINDOW_ARRIVALS / rate)
    counts = _counts(arrivals, window)
    peak = float(busiest.max()) / min(_PEAK_WINDOW_S, float(arrivals[-1] - arrivals[0]))
    return Traffic(
        requests_per_s=scale * (max(rate, peak) if at_peak else rate),
        prompt=Lengths.empirical([request.num_prompt_tokens for request in requests], source),
        output=Lengths.empirical([request.output_tokens for request in requests], source),
        prefix=_prefix(requests),
        burstiness=float(counts.var() / counts.mean()) if len(counts) > 1 else 1.0,
    )


def _counts(arrivals: np.ndarray[Any, Any], window_s: float) -> np.ndarray[Any, Any]:
    """Arrivals in successive whole windows; at least one window."""
    since = arrivals - arrivals[0]
    windows = max(1, int(since[-1] // window_s))
    inside = since[since < windows * window_s] if since[-1] > window_s else since
    return np.bincount(np.minimum((inside // window_s).astype(int), windows - 1), minlength=windows)


def _prefix(requests: Sequence[TraceRequest]) -> PrefixReuse:
    """Reuse by a cache that never evicts: leading segments seen before count as found, what was found must stay resident.

    Answers count as seen where the trace says what they are.
    """
    # Tokens from the content's start on that were seen, and that were found, by content id.
    seen: dict[int, int] = {}
    found: dict[int, int] = {}
    found_tokens = 0
    for request in requests:
        hits = 0
        for segment in request.segments:
            end = min(segment.start + segment.num_tokens, seen.get(segment.content_id, 0))
            if end <= segment.start:
                break
            hits += end - segment.start
            found[segment.content_id] = max(end, found.get(segment.content_id, 0))
            if end < segment.start + segment.num_tokens:
                break
        # One token at least is always computed.
        found_tokens += min(hits, request.num_prompt_tokens - 1)
        for segment in (*request.segments, *request.output_segments):
            end = segment.start + segment.num_tokens
            seen[segment.content_id] = max(end, seen.get(segment.content_id, 0))
    total = sum(request.num_prompt_tokens for request in requests)
    return PrefixReuse(found_tokens / total, float(sum(found.values())))
