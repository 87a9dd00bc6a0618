"""Records as Parquet files, if pyarrow is installed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from argosy.errors import ConfigError
from argosy.sim.outcome import RequestOutcome, StepSpan
from argosy.sim.run_log import request_record, step_records

_ROWS_PER_GROUP = 20_000
_FLOATS = frozenset({"arrival_s", "submitted_s", "first_scheduled_s", "first_token_s", "finished_s", "start_s", "end_s"})
_TEXTS = frozenset({"request_id", "replica", "outcome", "tenant", "session_id"})
_FLAGS = frozenset({"corrupted"})


class ParquetLog:
    """A `RecordLog` that writes `requests.parquet` and, with steps, `steps.parquet` into a folder.

    Rows are kept until a row group is full. `close` must be called for the files to be complete.
    """

    def __init__(self, folder: Path, about: Mapping[str, str]) -> None:
        """`about` becomes metadata of both files.

        Raises:
            ConfigError: pyarrow is not installed.
        """
        self._arrow, self._parquet = _pyarrow()
        self._folder = folder
        self._about = dict(about)
        self._rows: dict[str, list[dict[str, Any]]] = {"requests": [], "steps": []}
        self._writers: dict[str, Any] = {}

    def request(self, outcome: RequestOutcome) -> None:
        """A request has ended."""
        self._add("requests", request_record(outcome))

    def steps(self, replica: str, span: StepSpan) -> None:
        """Steps are over."""
        for record in step_records(replica, span):
            self._add("steps", record)

    def close(self) -> None:
        """Write what is left and end the files. Idempotent."""
        for name, rows in self._rows.items():
            if rows:
                self._write(name)
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _add(self, name: str, record: dict[str, Any]) -> None:
        self._rows[name].append(record)
        if len(self._rows[name]) >= _ROWS_PER_GROUP:
            self._write(name)

    def _write(self, name: str) -> None:
        rows, self._rows[name] = self._rows[name], []
        schema = self._arrow.schema([(column, self._type(column)) for column in rows[0]], metadata=self._about)
        if name not in self._writers:
            self._writers[name] = self._parquet.ParquetWriter(self._folder / f"{name}.parquet", schema, compression="zstd")
        self._writers[name].write_table(self._arrow.Table.from_pylist(rows, schema=schema))

    def _type(self, column: str) -> Any:
        if column in _FLOATS:
            return self._arrow.float64()
        if column in _TEXTS:
            return self._arrow.string()
        return self._arrow.bool_() if column in _FLAGS else self._arrow.int64()


def _pyarrow() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ConfigError(
            "outputs.records: parquet needs the package pyarrow: pip install 'argosy[parquet]', or write records: ndjson",
            param="outputs.records",
        ) from None
