from collections.abc import Callable
from pathlib import Path

import pytest

from argosy.errors import ConfigError, TraceFileError
from argosy.sim.workload.azure_trace import azure_requests
from argosy.sim.workload.trace_request import TraceRequest

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
Write = Callable[..., Path]


def read(path: Path) -> list[TraceRequest]:
    return list(azure_requests(path, "conv", "conv"))


def test_rows_become_requests(write: Write):
    rows = ("2023-11-16 18:17:03.9799600,4808,10", "2023-11-16 18:17:04.4799600,110,27", "2023-11-17 18:17:03.97996,1,1")
    first, second, third = read(write("t.csv", HEADER, *rows))
    assert (first.request_id, first.arrival_s, first.num_prompt_tokens, first.output_tokens) == ("conv/0", 0.0, 4808, 10)
    assert (second.request_id, second.arrival_s, second.num_prompt_tokens, second.output_tokens) == ("conv/1", 0.5, 110, 27)
    assert third.arrival_s == 86_400.0
    assert len({request.segments[0].content_id for request in (first, second, third)}) == 3


def test_differences_are_exact_to_the_nanosecond(write: Write):
    rows = ("2023-11-16 18:17:03.999999999,1,1", "2023-11-16 18:17:04.000000001,1,1")
    assert read(write("t.csv", HEADER, *rows))[1].arrival_s == 2e-9


def test_zones_are_understood(write: Write):
    rows = ("2024-05-10 00:00:00.5,1,1", "2024-05-10T02:00:01.5+02:00,1,1", "2024-05-10 00:00:02.5Z,1,1")
    assert [request.arrival_s for request in read(write("t.csv", HEADER, *rows))] == [0.0, 1.0, 2.0]


def test_a_byte_order_mark_windows_line_ends_and_no_last_line_end_do_not_matter(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbf" + HEADER.encode() + b"\r\n2023-11-16 18:17:03,4,5\r\n2023-11-16 18:17:04, 6 ,7")
    assert [(r.num_prompt_tokens, r.output_tokens) for r in read(path)] == [(4, 5), (6, 7)]


@pytest.mark.parametrize(
    ("rows", "line", "words"),
    [
        (("2023-11-16 18:17:03,10",), 2, "has 2 fields instead of 3"),
        (("2023-11-16 18:17:03,10,5,6",), 2, "has 4 fields"),
        (("2023-11-16 18:17:03,10,5", "", "2023-11-16 18:17:04,10,5"), 3, "is empty"),
        (("2023-11-16 18:17:03,10,5", "2023-11-16 18:17:04,0,5"), 3, "ContextTokens must be"),
        (("2023-11-16 18:17:03,,5",), 2, "ContextTokens must be a whole number of at least 1, got ''"),
        (("2023-11-16 18:17:03,10,x",), 2, "GeneratedTokens must be"),
        (("2023-11-16 18:17:03,10,-1",), 2, "GeneratedTokens must be"),
        (("2023-11-16 18:17:03,1.5,1",), 2, "ContextTokens must be"),
        (("2023-11-16 18:17:03,nan,1",), 2, "ContextTokens must be"),
        (("2023-11-16 18:17:03,١,1",), 2, "ContextTokens must be"),
        (("2023-11-16 18:17:03,99999999999,1",), 2, "above the 16777216 tokens"),
        ((f"2023-11-16 18:17:03,{'9' * 5000},1",), 2, "ContextTokens must be"),
        (("2023-13-16 18:17:03,10,5",), 2, "is no date"),
        (("2023-11-16 18:61:03,10,5",), 2, "is no date"),
        (("yesterday,10,5",), 2, "TIMESTAMP must be like"),
        ((",10,5",), 2, "TIMESTAMP must be like"),
        (("2023-11-16 18:17:05,10,5", "2023-11-16 18:17:04.9,10,5"), 3, "arrives before the line above"),
        (("2023-11-16 18:17:05,10,5", "2053-11-16 18:17:04.9,10,5"), 3, "more than ten years"),
    ],
)
def test_a_wrong_row_is_named(write: Write, rows: tuple[str, ...], line: int, words: str):
    path = write("t.csv", HEADER, *rows)
    with pytest.raises(TraceFileError) as caught:
        read(path)
    assert caught.value.line == line
    assert str(caught.value).startswith(f"trace {path} line {line}: ")
    assert words in str(caught.value)
    assert isinstance(caught.value, ConfigError)


@pytest.mark.parametrize("header", ["time,in,out", "TIMESTAMP,GeneratedTokens,ContextTokens", ""])
def test_other_columns_are_refused(write: Write, header: str):
    with pytest.raises(TraceFileError, match="line 1: the columns must be TIMESTAMP,ContextTokens,GeneratedTokens"):
        read(write("t.csv", header, "2023-11-16 18:17:03,10,5"))


def test_rows_before_a_wrong_one_are_given(write: Write):
    requests = azure_requests(write("t.csv", HEADER, "2023-11-16 18:17:03,10,5", "x"), "conv", "conv")
    assert next(requests).num_prompt_tokens == 10
    with pytest.raises(TraceFileError, match="line 3"):
        next(requests)
