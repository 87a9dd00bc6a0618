"""Public request traces as traffic: Azure's CSV and Mooncake's JSON lines.

- Azure LLM inference trace 2023: `TIMESTAMP,ContextTokens,GeneratedTokens`, ISO timestamps.
- Mooncake (FAST 2025): one object a line with `timestamp` in ms, `input_length`, `output_length`, `hash_ids`, one id per 512
  tokens of the prompt; equal ids stand for equal prefixes.
"""

from __future__ import annotations

import csv
import datetime
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from argosy.cost.checks import positive
from argosy.errors import ConfigError
from argosy.planner.lengths import Lengths
from argosy.planner.traffic import PrefixReuse, Traffic

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOONCAKE_BLOCK_TOKENS = 512
_PEAK_WINDOW_S = 60.0
# Arrivals that a window for burstiness must hold on average, and its least length.
_WINDOW_ARRIVALS, _WINDOW_S = 10.0, 10.0
_WHOLE = re.compile(r"[0-9]+")
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d+)?")


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One line: arrival in seconds after some origin, tokens, and ids of prompt blocks where the trace has them."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


def read_trace(path: Path) -> tuple[TraceRequest, ...]:
    """The requests of a trace file, by its suffix: `.csv` is Azure's form, `.jsonl` Mooncake's.

    Raises:
        ConfigError: the file cannot be read, is of another form, is empty, or a line is wrong; the line is named.
    """
    readers: dict[str, Callable[[Path], Iterator[TraceRequest]]] = {".csv": _azure, ".jsonl": _mooncake}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise ConfigError(
            f"trace {path.name}: a trace is .csv (Azure) or .jsonl (Mooncake), not {path.suffix or 'without suffix'}"
        )
    try:
        requests = tuple(reader(path))
    except OSError as error:
        raise ConfigError(f"trace {path.name} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"trace {path.name} is not UTF-8 text") from None
    if not requests:
        raise ConfigError(f"trace {path.name} holds no request")
    last = -math.inf
    for number, request in enumerate(requests, 1):
        if request.arrival_s < last:
            _wrong(
                path, number + (path.suffix.lower() == ".csv"), "arrives before the line above it; sort the trace by time"
            )
        last = request.arrival_s
    return requests


def _wrong(path: Path, line: int, what: str) -> NoReturn:
    raise ConfigError(f"trace {path.name} line {line}: {what}")


def _azure(path: Path) -> Iterator[TraceRequest]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file)
        header = next(rows, None)
        if header is None or tuple(column.strip() for column in header) != AZURE_COLUMNS:
            _wrong(path, 1, f"the columns must be {','.join(AZURE_COLUMNS)}")
        for row in rows:
            line = rows.line_num
            if len(row) != len(AZURE_COLUMNS):
                _wrong(path, line, f"has {len(row)} fields instead of {len(AZURE_COLUMNS)}")
            prompt, output = (_whole(path, line, name, text) for name, text in zip(AZURE_COLUMNS[1:], row[1:], strict=True))
            yield TraceRequest(_seconds(path, line, row[0]), prompt, output)


def _seconds(path: Path, line: int, text: str) -> float:
    match = _TIMESTAMP.fullmatch(text.strip())
    if match is None:
        _wrong(path, line, f"TIMESTAMP must be like 2023-11-16 18:15:46.68, got {text!r}")
    try:
        moment = datetime.datetime.fromisoformat(match[1]).replace(tzinfo=datetime.UTC)
    except ValueError:
        _wrong(path, line, f"TIMESTAMP {text!r} is no date")
    return moment.timestamp() + float(match[2] or 0)


def _whole(path: Path, line: int, name: str, text: str) -> int:
    if _WHOLE.fullmatch(text.strip()) is None or int(text) < 1:
        _wrong(path, line, f"{name} must be a whole number of at least 1, got {text!r}")
    return int(text)


def _mooncake(path: Path) -> Iterator[TraceRequest]:
    with path.open(encoding="utf-8") as file:
        for line, text in enumerate(file, 1):
            try:
                entry = json.loads(text)
            except json.JSONDecodeError as error:
                _wrong(path, line, f"is not JSON: {error.msg}")
            if not isinstance(entry, dict):
                _wrong(path, line, "is not a JSON object")
            arrival = _field(path, line, entry, "timestamp", 0)
            prompt, output = (_field(path, line, entry, name, 1) for name in ("input_length", "output_length"))
            blocks = entry.get("hash_ids", [])
            if not isinstance(blocks, list) or not all(isinstance(block, int) for block in blocks):
                _wrong(path, line, "hash_ids must be a list of whole numbers")
            yield TraceRequest(arrival / 1e3, int(prompt), int(output), tuple(blocks))


def _field(path: Path, line: int, entry: dict[str, Any], name: str, least: int) -> float:
    value = entry.get(name)
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < least or (name != "timestamp" and value != int(value)):  # type: ignore[operator, arg-type]
        _wrong(path, line, f"{name} must be a number of at least {least}, got {value!r}")
    return float(value)  # type: ignore[arg-type]


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
        prompt=Lengths.empirical([request.prompt_tokens for request in requests], source),
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
    """Reuse by a cache that never evicts: leading blocks seen before count as found; what was found must stay resident."""
    seen: set[int] = set()
    reused: set[int] = set()
    found_tokens = 0
    for request in requests:
        hits = 0
        for block in request.blocks:
            if block not in seen:
                break
            hits += 1
        # One token at least is always computed.
        found_tokens += min(hits * MOONCAKE_BLOCK_TOKENS, request.prompt_tokens - 1)
        reused.update(request.blocks[:hits])
        seen.update(request.blocks)
    total = sum(request.prompt_tokens for request in requests)
    return PrefixReuse(found_tokens / total, float(len(reused) * MOONCAKE_BLOCK_TOKENS))
