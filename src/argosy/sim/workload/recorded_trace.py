"""This package's own form of trace: NDJSON with a header, prompts and answers as segments or as plain lengths.

    {"format":"argosy-trace","version":1}
    {"id":"7","arrival_s":0.25,"prompt":[["00000000000000a1",16],["9f3c11d2e0b47756",5]],"output":12,"session":"s3"}
    {"id":"8","arrival_s":0.5,"prompt":900,"output":40,"tenant":"acme","priority":1,"timeout_s":30.0}

A segment is [content id as 16 hexadecimal digits, tokens] or [content id, tokens, start]; see `Segment`. A plain length
stands for a text of its own. Defaults are left out. Writing and reading again gives equal requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from argosy.errors import TraceFileError
from argosy.sim.workload.trace_lines import Line, checked, lines_of, shown
from argosy.sim.workload.trace_request import Segment, TraceRequest, content_id

FORMAT, VERSION = "argosy-trace", 1
_HEX = re.compile(r"[0-9a-f]{16}")
_REQUIRED = ("id", "arrival_s", "prompt", "output")
_OPTIONAL = ("session", "tenant", "priority", "timeout_s")
_MAX_NAME = 256


def header_line() -> str:
    """The first line of a recorded trace, with its line end."""
    return _line({"format": FORMAT, "version": VERSION})


def request_line(request: TraceRequest) -> str:
    """`request` as a line of a recorded trace, with its line end."""
    entry: dict[str, Any] = {
        "id": request.request_id,
        "arrival_s": float(request.arrival_s),
        "prompt": [_parts(segment) for segment in request.segments],
        "output": [_parts(segment) for segment in request.output_segments] or request.output_tokens,
    }
    if request.session_id:
        entry["session"] = request.session_id
    if request.tenant:
        entry["tenant"] = request.tenant
    if request.priority:
        entry["priority"] = request.priority
    if request.timeout_s is not None:
        entry["timeout_s"] = float(request.timeout_s)
    return _line(entry)


def recorded_requests(path: Path, prefix: str = "", contents: str = "") -> Iterator[TraceRequest]:
    """The requests of a recorded trace, as they were written.

    Args:
        prefix: if not empty, it goes before each id with a slash.
        contents: if not empty, texts have nothing in common with those read under other names of contents.

    Raises:
        TraceFileError: no header, a version that is not known, or a line that is wrong or earlier than the one above it;
            the line is named.
    """
    lines = lines_of(path)
    header = next(lines, None)
    if header is None:
        raise TraceFileError(str(path), "is empty")
    _check_header(header)
    key = content_id(contents) if contents else 0
    last_s = 0.0
    for line in lines:
        entry = line.json_object(_REQUIRED, _OPTIONAL)
        last_s = checked(line, last_s, line.seconds("arrival_s", entry["arrival_s"]))
        yield _request(line, entry, last_s, prefix, key)


def is_header(line: Line) -> bool:
    """Whether `line` opens a recorded trace, of whatever version."""
    try:
        entry = orjson.loads(line.text)
    except orjson.JSONDecodeError:
        return False
    return isinstance(entry, dict) and entry.get("format") == FORMAT


def _check_header(line: Line) -> None:
    entry = line.json_object(("format", "version"))
    if entry["format"] != FORMAT:
        line.wrong(f"the format must be {FORMAT!r}, got {shown(entry['format'])}")
    if entry["version"] != VERSION or isinstance(entry["version"], bool):
        line.wrong(f"version {shown(entry['version'])} is not known; this release reads version {VERSION}")


def _request(line: Line, entry: dict[str, Any], arrival_s: float, prefix: str, key: int) -> TraceRequest:
    own_id = _name(line, entry, "id")
    if not own_id:
        line.wrong("id must not be empty")
    request_id = f"{prefix}/{own_id}" if prefix else own_id
    prompt = entry["prompt"]
    segments = _segments(line, "prompt", prompt, key) if isinstance(prompt, list) else ()
    if not segments:
        segments = (Segment(content_id("prompt", own_id) ^ key, line.tokens("prompt", prompt)),)
    output = entry["output"]
    output_segments = _segments(line, "output", output, key) if isinstance(output, list) else ()
    output_tokens = sum(part.num_tokens for part in output_segments) or line.tokens("output", output)
    priority = entry.get("priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, int):
        line.wrong(f"priority must be a whole number, got {shown(priority)}")
    timeout_s = entry.get("timeout_s")
    if timeout_s is not None and not line.seconds("timeout_s", timeout_s) > 0:
        line.wrong("timeout_s must be above 0")
    return TraceRequest(
        request_id=request_id,
        arrival_s=arrival_s,
        segments=segments,
        output_tokens=output_tokens,
        session_id=_name(line, entry, "session"),
        tenant=_name(line, entry, "tenant"),
        priority=priority,
        timeout_s=timeout_s,
        output_segments=output_segments,
    )


def _segments(line: Line, name: str, parts: list[Any], key: int) -> tuple[Segment, ...]:
    if not parts:
        line.wrong(f"{name} must have at least one segment")
    segments = []
    for part in parts:
        if (
            not isinstance(part, list)
            or len(part) not in (2, 3)
            or not isinstance(part[0], str)
            or not _HEX.fullmatch(part[0])
        ):
            line.wrong(f"{name} must be segments [16 hexadecimal digits, tokens, start if not 0], got {shown(part)}")
        start = line.tokens(f"the start of a segment of {name}", part[2], 0) if len(part) == 3 else 0
        segments.append(Segment(int(part[0], 16) ^ key, line.tokens(f"a segment of {name}", part[1]), start))
    line.tokens(name, sum(segment.num_tokens for segment in segments))
    return tuple(segments)


def _name(line: Line, entry: dict[str, Any], key: str) -> str:
    value = entry.get(key, "")
    if not isinstance(value, str) or len(value) > _MAX_NAME:
        line.wrong(f"{key} must be a text of at most {_MAX_NAME} characters, got {shown(value)}")
    return value


def _parts(segment: Segment) -> list[Any]:
    parts = [f"{segment.content_id:016x}", segment.num_tokens]
    return [*parts, segment.start] if segment.start else parts


def _line(entry: dict[str, Any]) -> str:
    return orjson.dumps(entry).decode() + "\n"
