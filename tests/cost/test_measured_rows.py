from pathlib import Path

import pytest

from argosy.cost.measured_rows import (
    COLUMNS,
    AggregatedLayout,
    DisaggregatedLayout,
    Quantisation,
    parse_rows,
    read_rows,
)
from argosy.errors import ConfigError

SAMPLE = Path(__file__).parent / "data" / "serving_rows_sample.csv"
AGGREGATED = {
    "backend": "vllm",
    "backend_version": "0.19.0",
    "model": "meta-llama/Llama-3.1-70B",
    "system": "b200_sxm",
    "precision": "fp8",
    "mode": "agg",
    "isl": "1024",
    "osl": "512",
    "gemm_quant": "fp8",
    "moe_quant": "fp8",
    "concurrency": "8",
    "tp": "4",
    "pp": "1",
    "attention_dp": "",
    "moe_tp": "4",
    "moe_ep": "1",
    "measured_date": "2026-04-17",
    "ttft_ms": "250.5",
    "tpot_ms": "12.25",
}
POOLS = {
    "mode": "disagg",
    "tp": "",
    "pp": "",
    "moe_tp": "",
    "moe_ep": "",
    "concurrency": "",
    "prefill_tp": "4",
    "prefill_attention_dp": "2",
    "prefill_moe_ep": "0",
    "decode_batch": "16",
    "decode_workers": "3",
    "decode_tp": "8",
    "decode_attention_dp": "1",
    "decode_moe_ep": "8",
}


def table(*rows, columns=COLUMNS):
    return [",".join(columns), *(",".join(row.get(column, "") for column in columns) for row in rows)]


def test_an_aggregated_row():
    (row,) = parse_rows(table(AGGREGATED))
    assert row.layout == AggregatedLayout(4, 1, 1, 4, 1)
    assert (row.line, row.gemm, row.concurrency, row.measured_on) == (2, Quantisation.FP8, 8, "2026-04-17")
    assert (row.ttft_s, row.tpot_s) == (0.2505, 0.01225)
    assert row.request_s == pytest.approx(0.2505 + 511 * 0.01225)


def test_a_disaggregated_row_leaves_open_what_was_not_recorded():
    (row,) = parse_rows(table(AGGREGATED | POOLS))
    assert isinstance(row.layout, DisaggregatedLayout)
    assert row.concurrency is None
    assert (row.layout.prefill.tensor, row.layout.prefill.attention_data, row.layout.prefill.expert) == (4, 2, None)
    assert row.layout.prefill.batch is None
    assert (row.layout.decode.batch, row.layout.decode.workers, row.layout.decode.expert) == (16, 3, 8)


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("isl", "0", "whole number of at least 1"),
        ("isl", "1e3", "whole number"),
        ("osl", "1", "at least 2"),
        ("concurrency", "-4", "whole number"),
        ("concurrency", "", "whole number"),
        ("tp", "2.0", "whole number"),
        ("ttft_ms", "nan", "milliseconds above 0"),
        ("tpot_ms", "0", "milliseconds above 0"),
        ("tpot_ms", "fast", "milliseconds above 0"),
        ("gemm_quant", "fp9", "one of"),
        ("mode", "both", "'agg' or 'disagg'"),
        ("model", "", "a name"),
        ("measured_date", "17.4.2026", "ISO date"),
        ("decode_tp", "4", "nothing in a row of mode 'agg'"),
    ],
)
def test_a_wrong_field_is_named_with_its_line(column, value, expected):
    lines = table(AGGREGATED, AGGREGATED | {column: value})
    with pytest.raises(ConfigError, match=f"line 3, column {column}: expected .*{expected}"):
        parse_rows(lines)


def test_columns_are_checked():
    with pytest.raises(ConfigError, match=r"unknown column 'ttft'; did you mean 'ttft_ms'"):
        parse_rows(table(AGGREGATED, columns=(*COLUMNS[:-2], "ttft", "tpot_ms")))
    with pytest.raises(ConfigError, match=r"'tpot_ms' must occur once, it occurs 0 times"):
        parse_rows(table(AGGREGATED, columns=COLUMNS[:-1]))
    with pytest.raises(ConfigError, match="line 2: 3 fields, expected 29"):
        parse_rows([",".join(COLUMNS), "a,b,c"])


@pytest.mark.parametrize("lines", [[], [",".join(COLUMNS)]])
def test_an_empty_table_is_refused(lines):
    with pytest.raises(ConfigError, match="empty"):
        parse_rows(lines)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_rows(tmp_path / "none.csv")


def test_the_sample_is_read_whole():
    rows = read_rows(SAMPLE)
    assert len(rows) == len(SAMPLE.read_text().splitlines()) - 1
    assert sum(isinstance(row.layout, DisaggregatedLayout) for row in rows) == 5
