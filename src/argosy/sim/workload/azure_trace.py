"""Azure's LLM inference traces (Patel et al., "Splitwise", ISCA 2024): `TIMESTAMP,ContextTokens,GeneratedTokens` rows.

Lengths alone are known, so every prompt is a text of its own.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from pathlib import Path

from argosy.errors import TraceFileError
from argosy.sim.workload.trace_lines import Line, checked, lines_of, shown
from argosy.sim.workload.trace_request import Segment, TraceRequest, content_id

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_WHOLE = re.compile(r"[0-9]{1,18}")
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def azure_requests(path: Path, name: str, contents: str) -> Iterator[TraceRequest]:
    """The rows of an Azure trace, the first one at 0 s; ids are `name/0`, `name/1`, …

    Times without a zone are UTC. They are read as whole nanoseconds, so that differences are exact.

    Raises:
        TraceFileError: other columns, or a row that is wrong or earlier than the one above; the line is named.
    """
    lines = lines_of(path)
    header = next(lines, None)
    if header is None or tuple(column.strip() for column in header.text.split(",")) != AZURE_COLUMNS:
        raise TraceFileError(str(path), f"the columns must be {','.join(AZURE_COLUMNS)}", 1)
    start_ns: int | None = None
    last_s = 0.0
    for number, line in enumerate(lines):
        fields = [field.strip() for field in line.text.split(",")]
        if len(fields) != len(AZURE_COLUMNS):
            line.wrong(f"has {len(fields)} fields instead of {len(AZURE_COLUMNS)}" if line.text.strip() else "is empty")
        moment_ns = _nanoseconds(line, fields[0])
        start_ns = moment_ns if start_ns is None else start_ns
        last_s = checked(line, last_s, (moment_ns - start_ns) / 1e9)
        prompt, output = (_tokens(line, column, text) for column, text in zip(AZURE_COLUMNS[1:], fields[1:], strict=True))
        line.seconds("TIMESTAMP", last_s)
        yield TraceRequest(f"{name}/{number}", last_s, (Segment(content_id(contents, number), prompt),), output)


def _tokens(line: Line, column: str, text: str) -> int:
    return line.tokens(column, int(text) if _WHOLE.fullmatch(text) else text)


def _nanoseconds(line: Line, text: str) -> int:
    """Since 1970, UTC."""
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        line.wrong(f"TIMESTAMP must be like 2023-11-16 18:15:46.68, got {shown(text)}")
    try:
        moment = datetime.datetime.fromisoformat(match[1] + (match[3] or "Z"))
    except ValueError:
        line.wrong(f"TIMESTAMP {shown(text)} is no date")
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 10**9 + int((match[2] or "0").ljust(9, "0"))
