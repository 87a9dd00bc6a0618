import json
from pathlib import Path

import pytest

from argosy.errors import ConfigError
from argosy.planner.trace_files import TraceRequest, read_trace, trace_traffic

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def azure(folder: Path, *lines: str, header: str = AZURE) -> Path:
    path = folder / "trace.csv"
    path.write_text(header + "".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def mooncake(folder: Path, *lines: object) -> Path:
    path = folder / "trace.jsonl"
    path.write_text(
        "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), encoding="utf-8"
    )
    return path


def entry(timestamp: float, prompt: int, output: int, *blocks: int) -> dict[str, object]:
    return {"timestamp": timestamp, "input_length": prompt, "output_length": output, "hash_ids": list(blocks)}


def test_azure_lines_become_requests(tmp_path: Path):
    path = azure(tmp_path, "2023-11-16 18:17:03.9799600,4808,10", "2023-11-16 18:17:04.4799600,110,27")
    first, second = read_trace(path)
    assert (first.prompt_tokens, first.output_tokens) == (4808, 10)
    assert second.arrival_s - first.arrival_s == pytest.approx(0.5, abs=1e-6)


def test_mooncake_timestamps_are_milliseconds(tmp_path: Path):
    path = mooncake(tmp_path, entry(0, 600, 5, 0, 1), entry(1500, 700, 6, 0, 2))
    assert read_trace(path) == (TraceRequest(0, 600, 5, (0, 1)), TraceRequest(1.5, 700, 6, (0, 2)))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (("2023-11-16 18:17:03,10",), "line 2: has 2 fields"),
        (("2023-11-16 18:17:03,10,5", "2023-11-16 18:17:04,0,5"), "line 3: ContextTokens"),
        (("2023-11-16 18:17:03,10,x",), "line 2: GeneratedTokens"),
        (("2023-11-16 18:17:03,10,-1",), "line 2: GeneratedTokens"),
        (("2023-11-16 18:17:03,1.5,1",), "line 2: ContextTokens"),
        (("2023-13-16 18:17:03,10,5",), "line 2: TIMESTAMP"),
        (("yesterday,10,5",), "line 2: TIMESTAMP"),
        (("2023-11-16 18:17:05,10,5", "2023-11-16 18:17:04,10,5"), "line 3: arrives before"),
        ((), "holds no request"),
    ],
)
def test_a_wrong_azure_line_is_named(tmp_path: Path, lines: tuple[str, ...], words: str):
    with pytest.raises(ConfigError, match=words):
        read_trace(azure(tmp_path, *lines))


def test_other_columns_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="line 1: the columns must be"):
        read_trace(azure(tmp_path, header="time,in,out\n"))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (("{",), "line 1: is not JSON"),
        (("[1]",), "line 1: is not a JSON object"),
        ((entry(0, 1, 1), {"timestamp": 1, "input_length": 5}), "line 2: output_length"),
        ((entry(-1, 5, 5),), "line 1: timestamp"),
        ((entry(0, 0, 5),), "line 1: input_length"),
        ((entry(0, 5, 5) | {"input_length": True},), "line 1: input_length"),
        ((entry(0, 5, 5) | {"hash_ids": "abc"},), "line 1: hash_ids"),
        (('{"timestamp": NaN, "input_length": 5, "output_length": 5}',), "line 1: timestamp"),
        ((entry(5, 5, 5), entry(4, 5, 5)), "line 2: arrives before"),
    ],
)
def test_a_wrong_mooncake_line_is_named(tmp_path: Path, lines: tuple[object, ...], words: str):
    with pytest.raises(ConfigError, match=words):
        read_trace(mooncake(tmp_path, *lines))


def test_a_file_of_another_kind_or_missing_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="a trace is"):
        read_trace(tmp_path / "trace.parquet")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path / "absent.csv")
    binary = tmp_path / "binary.jsonl"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_trace(binary)


def test_traffic_has_the_rate_lengths_and_reuse_of_the_trace():
    requests = [TraceRequest(float(i), 1024, 10 + i, (0, 1 + i)) for i in range(101)]
    traffic = trace_traffic(requests)
    assert traffic.requests_per_s == pytest.approx(1)
    assert traffic.prompt.mean == 1024
    assert traffic.output.mean == pytest.approx(60)
    # All but the first request find block 0, which is half of the prompt.
    assert traffic.prefix.share == pytest.approx(100 / 101 / 2)
    assert traffic.prefix.resident_tokens == 512
    assert traffic.burstiness == pytest.approx(0, abs=1e-9)
    assert trace_traffic(requests, scale=3).requests_per_s == pytest.approx(3)


def test_bursts_show_and_the_busiest_minute_can_be_planned_for():
    quiet = [TraceRequest(float(i * 10), 100, 10) for i in range(60)]
    burst = [TraceRequest(600 + i * 0.1, 100, 10) for i in range(600)]
    quiet_after = [TraceRequest(660 + i * 10.0, 100, 10) for i in range(60)]
    requests = [*quiet, *burst, *quiet_after]
    mean, peak = trace_traffic(requests), trace_traffic(requests, at_peak=True)
    assert mean.burstiness > 10
    assert peak.requests_per_s == pytest.approx(10, rel=0.02)
    assert mean.requests_per_s == pytest.approx(719 / 1250, rel=0.01)


@pytest.mark.parametrize("requests", [[TraceRequest(0, 5, 5)], [TraceRequest(3, 5, 5), TraceRequest(3, 5, 5)]])
def test_a_trace_without_time_has_no_rate(requests: list[TraceRequest]):
    with pytest.raises(ConfigError, match="different times"):
        trace_traffic(requests)
