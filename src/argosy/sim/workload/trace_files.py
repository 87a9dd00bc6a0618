"""Trace files of every form, told apart by their first line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from argosy.errors import TraceFileError
from argosy.sim.workload.azure_trace import azure_requests
from argosy.sim.workload.mooncake_trace import mooncake_requests
from argosy.sim.workload.recorded_trace import is_header, recorded_requests
from argosy.sim.workload.trace_lines import lines_of, not_empty
from argosy.sim.workload.trace_request import TraceRequest


def trace_requests(path: Path, name: str = "trace", contents: str | None = None) -> Iterator[TraceRequest]:
    """The requests of a trace file, read as they are taken; times are at least 0 and never fall.

    A `.csv` file is Azure's form. In a `.jsonl` or `.ndjson` file the first line says whether it is a recorded trace of
    this package; any other is Mooncake's.

    Args:
        name: goes before each request's id, with a slash.
        contents: texts of traces read under different names of contents have nothing in common; None takes `name`.

    Raises:
        TraceFileError: at once, if the file cannot be read, is empty or has another suffix; while iterating, if a line is
            wrong, which it names, or if there is no request at all.
    """
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".jsonl", ".ndjson"):
        raise TraceFileError(
            str(path),
            f"has {'the suffix ' + suffix if suffix else 'no suffix'}; "
            "a trace is .csv (Azure), .jsonl (Mooncake) or .ndjson (recorded)",
        )
    lines = lines_of(path)
    first = next(lines, None)
    lines.close()
    if first is None:
        raise TraceFileError(str(path), "is empty")
    contents = name if contents is None else contents
    if suffix == ".csv":
        return not_empty(path, azure_requests(path, name, contents))
    if is_header(first):
        return not_empty(path, recorded_requests(path, name, contents))
    return not_empty(path, mooncake_requests(path, name, contents))


def read_trace(path: Path) -> tuple[TraceRequest, ...]:
    """All requests of a trace file; memory grows with it.

    Raises:
        TraceFileError: as `trace_requests`.
    """
    return tuple(trace_requests(path))
