"""Reading tables of measured serving latencies, strictly: one row is one configuration at one load.

Columns are those of `COLUMNS`; TTFT and TPOT are means in milliseconds at a fixed number of clients. A blank quantisation
means bf16, a blank attention-DP degree 1. Whatever else is not as described is an error that names line and column.
"""

from __future__ import annotations

import csv
import datetime
import difflib
import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from argosy.errors import ConfigError

_AGGREGATED = ("tp", "pp", "attention_dp", "moe_tp", "moe_ep")
_PREFILL = ("prefill_batch", "prefill_workers", "prefill_tp", "prefill_attention_dp", "prefill_moe_ep")
_DECODE = ("decode_batch", "decode_workers", "decode_tp", "decode_attention_dp", "decode_moe_ep")
COLUMNS = (
    *("backend", "backend_version", "model", "system", "precision", "mode", "isl", "osl"),
    *("gemm_quant", "moe_quant", "concurrency"),
    *_AGGREGATED,
    *_PREFILL,
    *_DECODE,
    *("measured_date", "ttft_ms", "tpot_ms"),
)


class Quantisation(enum.StrEnum):
    """Types of matrices and of the arithmetic on them."""

    NONE = ""
    FP8 = "fp8"
    FP8_BLOCK = "fp8_block"
    NVFP4 = "nvfp4"
    INT4_WEIGHTS = "int4_wo"


@dataclass(frozen=True, slots=True)
class AggregatedLayout:
    """Degrees of one replica that does prefill and decode, as recorded."""

    tensor: int
    pipeline: int
    attention_data: int
    expert_tensor: int
    expert: int


@dataclass(frozen=True, slots=True)
class PoolLayout:
    """Degrees of one worker of a prefill or decode pool, as recorded; None where not recorded."""

    batch: int | None
    workers: int | None
    tensor: int
    attention_data: int
    expert: int | None


@dataclass(frozen=True, slots=True)
class DisaggregatedLayout:
    """A prefill and a decode pool."""

    prefill: PoolLayout
    decode: PoolLayout


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One row of a table.

    Attributes:
        line: in the file, the header being line 1.
        concurrency: requests in flight, or None where a disaggregated row does not say.
        measured_on: ISO date or "".
    """

    line: int
    backend: str
    backend_version: str
    model: str
    system: str
    gemm: Quantisation
    experts: Quantisation
    input_tokens: int
    output_tokens: int
    concurrency: int | None
    layout: AggregatedLayout | DisaggregatedLayout
    measured_on: str
    ttft_s: float
    tpot_s: float

    @property
    def request_s(self) -> float:
        """Mean time of a request."""
        return self.ttft_s + (self.output_tokens - 1) * self.tpot_s


def read_rows(path: Path) -> list[MeasuredRow]:
    """All rows of a CSV file.

    Raises:
        ConfigError: the file cannot be read, or names line and column of what is wrong.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return parse_rows(file)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"measured rows {path} cannot be read: {error}") from None


def parse_rows(lines: Iterable[str]) -> list[MeasuredRow]:
    """`read_rows` of the lines of a file."""
    reader = csv.reader(lines)
    header = next(reader, None)
    _check_header(header)
    rows = []
    for record in reader:
        if len(record) != len(COLUMNS):
            raise ConfigError(f"line {reader.line_num}: {len(record)} fields, expected {len(COLUMNS)}")
        rows.append(_row(_Record(reader.line_num, dict(zip(header or COLUMNS, record, strict=True)))))
    if not rows:
        raise ConfigError("measured rows: the table is empty")
    return rows


def _check_header(header: list[str] | None) -> None:
    if header is None:
        raise ConfigError("measured rows: the table is empty")
    for name in header:
        if name not in COLUMNS:
            near = difflib.get_close_matches(name, COLUMNS, n=1)
            raise ConfigError(f"line 1: unknown column {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    for name in COLUMNS:
        if header.count(name) != 1:
            raise ConfigError(f"line 1: column {name!r} must occur once, it occurs {header.count(name)} times")


class _Record:
    """Fields of one line, read by type."""

    def __init__(self, line: int, fields: Mapping[str, str]) -> None:
        self.line, self._fields = line, fields

    def wrong(self, column: str, expected: str) -> ConfigError:
        return ConfigError(f"line {self.line}, column {column}: expected {expected}, got {self._fields[column]!r}")

    def text(self, column: str) -> str:
        if not self._fields[column]:
            raise self.wrong(column, "a name")
        return self._fields[column]

    def optional_text(self, column: str) -> str:
        return self._fields[column]

    def count(self, column: str, *, blank: int | None = None, low: int = 1) -> int:
        """A whole number from `low`; `blank` is what an empty field means, None if it may not be empty."""
        value = self._fields[column]
        if not value and blank is not None:
            return blank
        if not (value.isascii() and value.isdigit()) or int(value) < low:
            raise self.wrong(column, f"a whole number of at least {low}")
        return int(value)

    def optional_count(self, column: str) -> int | None:
        """A count, or None where the field is empty or 0."""
        return self.count(column, blank=0, low=0) or None

    def milliseconds(self, column: str) -> float:
        try:
            value = float(self._fields[column])
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise self.wrong(column, "milliseconds above 0")
        return value / 1e3

    def quantisation(self, column: str) -> Quantisation:
        try:
            return Quantisation(self._fields[column])
        except ValueError:
            known = ", ".join(repr(str(kind)) for kind in Quantisation)
            raise self.wrong(column, f"one of {known}") from None

    def date(self, column: str) -> str:
        value = self._fields[column]
        try:
            return datetime.date.fromisoformat(value).isoformat() if value else ""
        except ValueError:
            raise self.wrong(column, "an ISO date or nothing") from None

    def must_be_blank(self, columns: Iterable[str]) -> None:
        for column in columns:
            if self._fields[column]:
                raise self.wrong(column, f"nothing in a row of mode {self._fields['mode']!r}")


def _row(record: _Record) -> MeasuredRow:
    mode = record.text("mode")
    if mode not in ("agg", "disagg"):
        raise record.wrong("mode", "'agg' or 'disagg'")
    aggregated = mode == "agg"
    return MeasuredRow(
        line=record.line,
        backend=record.text("backend"),
        backend_version=record.optional_text("backend_version"),
        model=record.text("model"),
        system=record.text("system"),
        gemm=record.quantisation("gemm_quant"),
        experts=record.quantisation("moe_quant"),
        input_tokens=record.count("isl"),
        output_tokens=record.count("osl", low=2),
        concurrency=record.count("concurrency") if aggregated else record.optional_count("concurrency"),
        layout=_aggregated(record) if aggregated else _disaggregated(record),
        measured_on=record.date("measured_date"),
        ttft_s=record.milliseconds("ttft_ms"),
        tpot_s=record.milliseconds("tpot_ms"),
    )


def _aggregated(record: _Record) -> AggregatedLayout:
    record.must_be_blank((*_PREFILL, *_DECODE))
    return AggregatedLayout(
        tensor=record.count("tp"),
        pipeline=record.count("pp"),
        attention_data=record.count("attention_dp", blank=1),
        expert_tensor=record.count("moe_tp"),
        expert=record.count("moe_ep"),
    )


def _disaggregated(record: _Record) -> DisaggregatedLayout:
    record.must_be_blank(_AGGREGATED)
    return DisaggregatedLayout(*(_pool(record, name) for name in ("prefill", "decode")))


def _pool(record: _Record, name: str) -> PoolLayout:
    return PoolLayout(
        batch=record.optional_count(f"{name}_batch"),
        workers=record.optional_count(f"{name}_workers"),
        tensor=record.count(f"{name}_tp"),
        attention_data=record.count(f"{name}_attention_dp"),
        expert=record.optional_count(f"{name}_moe_ep"),
    )
