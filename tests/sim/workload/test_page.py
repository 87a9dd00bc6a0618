"""The page on workloads says what is so."""

import re
from pathlib import Path

import pytest
import yaml

from argosy.sim.workload.config import SourceConfig, WorkloadConfig
from argosy.sim.workload.recorded_trace import recorded_requests

PAGE = Path(__file__).parents[3] / "docs" / "workloads.md"


@pytest.fixture(scope="module")
def blocks() -> list[tuple[str, str]]:
    """(language, text) of each fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_example_prints_what_the_page_shows(
    blocks: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (_, settings), (language, program), (_, output) = blocks[:3]
    assert language == "python"
    (tmp_path / "workload.yaml").write_text(settings)
    monkeypatch.chdir(tmp_path)
    exec(compile(program, str(PAGE), "exec"), {})
    assert capsys.readouterr().out == output


def test_the_seasons_are_accepted(blocks: list[tuple[str, str]]):
    seasons = next(yaml.safe_load(text) for language, text in blocks if language == "yaml" and text.startswith("arrivals:"))
    source = {"name": "x", "requests": {"user_tokens": 1, "output_tokens": 1}, **seasons}
    WorkloadConfig.from_mapping({"sources": [source], "duration_s": 1})


def test_the_recorded_lines_are_read(blocks: list[tuple[str, str]], tmp_path: Path):
    lines = next(text for _, text in blocks if text.startswith('{"format"'))
    (tmp_path / "t.ndjson").write_text(lines)
    assert [request.request_id for request in recorded_requests(tmp_path / "t.ndjson")] == ["7", "8"]


def test_every_key_of_a_source_is_on_the_page():
    text = PAGE.read_text(encoding="utf-8")
    for name in (*WorkloadConfig.__dataclass_fields__, *SourceConfig.__dataclass_fields__):
        assert f"`{name}`" in text, name
