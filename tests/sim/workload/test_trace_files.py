import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from argosy.errors import TraceFileError
from argosy.sim.workload import trace_lines
from argosy.sim.workload.recorded_trace import header_line
from argosy.sim.workload.trace_files import read_trace, trace_requests

AZURE = ("TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03,10,5")
MOONCAKE = (json.dumps({"timestamp": 0, "input_length": 5, "output_length": 6}),)
RECORDED = (header_line().rstrip(), '{"id":"a","arrival_s":0.0,"prompt":3,"output":4}')
Write = Callable[..., Path]


@pytest.mark.parametrize(
    ("name", "lines", "prompt_tokens"),
    [
        ("t.csv", AZURE, 10),
        ("T.CSV", AZURE, 10),
        ("t.jsonl", MOONCAKE, 5),
        ("t.ndjson", MOONCAKE, 5),
        ("t.jsonl", RECORDED, 3),
        ("t.ndjson", RECORDED, 3),
    ],
)
def test_each_form_is_known_by_its_first_line(write: Write, name: str, lines: tuple[str, ...], prompt_tokens: int):
    (request,) = read_trace(write(name, *lines))
    assert request.num_prompt_tokens == prompt_tokens
    assert request.request_id.startswith("trace/")


@pytest.mark.parametrize(
    ("name", "words"), [("t.parquet", "has the suffix .parquet; a trace is"), ("trace", "has no suffix; a trace is")]
)
def test_another_suffix_is_refused_at_once(write: Write, name: str, words: str):
    with pytest.raises(TraceFileError, match=words):
        trace_requests(write(name, *MOONCAKE))


def test_files_that_cannot_be_read_are_refused_at_once(tmp_path: Path):
    with pytest.raises(TraceFileError, match=r"absent.csv cannot be read: No such file") as caught:
        trace_requests(tmp_path / "absent.csv")
    assert caught.value.line is None
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(TraceFileError, match="cannot be read"):
        trace_requests(tmp_path / "folder.csv")


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_an_empty_file_is_refused_at_once(tmp_path: Path, name: str):
    (tmp_path / name).touch()
    with pytest.raises(TraceFileError, match=f"{name} is empty"):
        trace_requests(tmp_path / name)


@pytest.mark.parametrize(("name", "lines"), [("t.csv", AZURE[:1]), ("t.ndjson", RECORDED[:1])])
def test_a_header_alone_is_no_trace(write: Write, name: str, lines: tuple[str, ...]):
    with pytest.raises(TraceFileError, match="holds no request"):
        read_trace(write(name, *lines))


def test_bytes_that_are_no_text_are_named_by_their_line(tmp_path: Path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(MOONCAKE[0].encode() + b"\n\xff\xfe\n")
    with pytest.raises(TraceFileError, match="line 2: is not UTF-8"):
        read_trace(path)


def test_a_line_without_end_is_refused_before_it_fills_memory(write: Write, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trace_lines, "_MAX_LINE_BYTES", 1000)
    path = write("t.jsonl", *MOONCAKE, "x" * 999)
    with pytest.raises(TraceFileError, match="line 2: is not JSON"):
        read_trace(path)
    path = write("t.jsonl", *MOONCAKE, "x" * 2000)
    with pytest.raises(TraceFileError, match="line 2: is longer than 1000 bytes"):
        read_trace(path)


def test_memory_does_not_grow_with_the_trace(write: Write):
    def peak_bytes(rows: int) -> int:
        path = write(f"{rows}.jsonl", *(MOONCAKE * rows))
        tracemalloc.start()
        assert sum(1 for _ in trace_requests(path)) == rows
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peak_bytes(10)
    assert peak_bytes(5000) < peak_bytes(200) + 20_000
