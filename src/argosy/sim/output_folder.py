"""The files that a simulation writes: records and trace while it runs, summary and report at its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import orjson

from argosy import __version__
from argosy.errors import ConfigError
from argosy.sim.assembly import Sinks
from argosy.sim.blueprint import Blueprint
from argosy.sim.config.simulation import LoadedSimulation
from argosy.sim.parquet_log import ParquetLog
from argosy.sim.perfetto import PerfettoTrace
from argosy.sim.report import simulation_report
from argosy.sim.run import SimulationRun
from argosy.sim.run_log import RecordLog, RunLog, config_hash
from argosy.sim.summary import summary

SUMMARY, REPORT, TRACE, RECORDS = "summary.json", "report.html", "trace.json", "records.ndjson"
_OURS = (SUMMARY, REPORT, TRACE, RECORDS, "requests.parquet", "steps.parquet")


class OutputFolder:
    """A folder of results. What an earlier run left there is never replaced unasked."""

    def __init__(self, path: Path, loaded: LoadedSimulation, *, overwrite: bool = False) -> None:
        """Make the folder. With `overwrite`, delete what an earlier run left in it.

        Raises:
            ConfigError: it holds results already, or cannot be made.
        """
        self.path = path
        self._loaded = loaded
        found = [name for name in _OURS if (path / name).exists()]
        if found and not overwrite:
            raise ConfigError(f"{path} holds results already ({', '.join(found)}): name another folder, or give --overwrite")
        try:
            path.mkdir(parents=True, exist_ok=True)
            for name in found:
                (path / name).unlink()
        except OSError as error:
            raise ConfigError(f"{path} cannot be used for results: {error.strerror or error}") from error

    @contextmanager
    def sinks(self) -> Iterator[Sinks]:
        """Open files for what is written while the simulation runs; they are complete when the block ends.

        Raises:
            ConfigError: Parquet is asked for and pyarrow is not installed.
        """
        outputs = self._loaded.config.outputs
        with ExitStack() as stack:
            log: RecordLog | None = None
            if outputs.records == "parquet":
                parquet = ParquetLog(self.path, self._about())
                stack.callback(parquet.close)
                log = parquet
            elif outputs.records == "ndjson":
                stream = stack.enter_context((self.path / RECORDS).open("wb"))
                log = RunLog(stream, seed=self._loaded.config.seed, config=self._loaded.file.values)
            trace = None
            if outputs.trace_events:
                trace = PerfettoTrace(stack.enter_context((self.path / TRACE).open("wb")), max_events=outputs.trace_events)
                stack.callback(trace.close)
            yield Sinks(log, outputs.steps, trace)

    def finish(self, run: SimulationRun, blueprints: Mapping[str, Blueprint]) -> list[Path]:
        """Write summary and report; returns every file of the run, the report first."""
        config, text = self._loaded.config, self._loaded.file.text
        (self.path / SUMMARY).write_bytes(orjson.dumps(summary(run), option=orjson.OPT_INDENT_2))
        (self.path / REPORT).write_text(simulation_report(run, config, blueprints, text), encoding="utf-8")
        return sorted(
            (self.path / name for name in _OURS if (self.path / name).exists()), key=lambda one: one.name != REPORT
        )

    def _about(self) -> dict[str, str]:
        return {
            "argosy": __version__,
            "seed": str(self._loaded.config.seed),
            "config_hash": config_hash(self._loaded.file.values),
        }
