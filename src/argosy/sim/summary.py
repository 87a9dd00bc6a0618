"""A run as plain data, for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from argosy.sim.results import SimulationResults
from argosy.sim.run import SimulationRun
from argosy.sim.time_series import Window
from argosy.sim.timeline import FleetSample, FleetWindow


def summary(run: SimulationRun) -> dict[str, Any]:
    """All figures of a run, and what was kept over time; seconds, tokens, dollars, joules. What depends on the machine that
    simulated stands under "simulator"; the rest is equal for equal configurations and seeds."""
    return {
        "seed": run.seed,
        "end": str(run.end),
        "results": _results(run.results),
        "fleet": {
            **asdict(run.counters),
            "sent_again_by_clients": run.num_sent_again,
            "skipped_faults": run.num_skipped_faults,
        },
        "over_time": {
            "replicas": {
                "width_s": run.results.series.width_s,
                "windows": run.results.series.rows(_window),
            },
            "fleet": {
                "width_s": run.timeline.windows.width_s,
                "windows": run.timeline.windows.rows(_fleet_window),
            },
        },
        "simulator": {"wall_s": run.wall_s, "times_real_time": run.times_real_time},
    }


def _results(results: SimulationResults) -> dict[str, Any]:
    """Every field but the series; the mapping of outcomes as it is."""
    plain = {
        name: getattr(results, name)
        for name in results.__dataclass_fields__
        if name not in ("series", "replicas", "stability", "ttft", "tpot", "itl", "e2e", "queueing")
    }
    plain["outcomes"] = dict(results.outcomes)
    for name in ("ttft", "tpot", "itl", "e2e", "queueing"):
        plain[name] = asdict(getattr(results, name))
    plain["usd_per_million_output_tokens"] = results.usd_per_million_output_tokens
    plain["stability"] = {**asdict(results.stability), "verdict": str(results.stability)}
    plain["replicas"] = [asdict(replica) for replica in results.replicas]
    return plain


def _window(start_s: float, window: Window) -> dict[str, Any]:
    return {"start_s": start_s, **asdict(window)}


def _fleet_window(start_s: float, window: FleetWindow) -> dict[str, Any]:
    row: dict[str, Any] = {"start_s": start_s, "answered": window.e2e.count}
    for name, histogram in (("ttft", window.ttft), ("tpot", window.tpot), ("e2e", window.e2e)):
        row[name] = {"mean_s": histogram.mean, "p50_s": histogram.quantile(0.5), "p99_s": histogram.quantile(0.99)}
    row |= {"failed": window.failed, "timed_out": window.timed_out}
    row |= {name: window.mean(name) for name in FleetSample.__dataclass_fields__}
    return row
