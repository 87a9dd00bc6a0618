"""Loading an engine for a command; its model has been fetched by `fetch_model`."""

from __future__ import annotations

from argosy.engine.args import EngineArgs
from argosy.engine.async_engine import AsyncEngine
from argosy.engine.build import build_parts, start_async_engine
from argosy.observe.metrics import EngineMetrics
from argosy.observe.stats import RequestStats, StatsSink, StepStats


class LateSink:
    """A `StatsSink` that passes on to one which can be made only once the engine's facts are known."""

    def __init__(self) -> None:
        self.target: StatsSink | None = None

    def on_step(self, stats: StepStats) -> None:
        """Pass on."""
        if self.target is not None:
            self.target.on_step(stats)

    def on_request_finished(self, stats: RequestStats) -> None:
        """Pass on."""
        if self.target is not None:
            self.target.on_request_finished(stats)


def load_measured_engine(args: EngineArgs, served_name: str | None) -> tuple[AsyncEngine, EngineMetrics]:
    """A started engine and its metrics, labelled `served_name`, or as the model was called. Raises as `build_parts`."""
    sink = LateSink()
    parts = build_parts(args, sink=sink)
    metrics = EngineMetrics(served_name or parts.info.model_name, max_model_len=parts.info.max_model_len)
    sink.target = metrics
    return start_async_engine(parts), metrics
