"""The folder of results: what is in it, and that nothing is replaced unasked."""

import dataclasses
import sys
from html.parser import HTMLParser

import orjson
import pyarrow.parquet as parquet
import pytest

from argosy.errors import ConfigError
from argosy.settings.yaml_file import parse_yaml
from argosy.sim.assembly import assemble, make_blueprints
from argosy.sim.config.simulation import parse_simulation
from argosy.sim.output_folder import OutputFolder
from argosy.sim.report import simulation_report
from argosy.sim.run import run
from argosy.sim.summary import summary


def written(text: str, folder, *, overwrite: bool = False):
    loaded = parse_simulation(parse_yaml(text, "fleet.yaml"), folder)
    blueprints = make_blueprints(loaded.config)
    outputs = OutputFolder(folder / "out", loaded, overwrite=overwrite)
    with outputs.sinks() as sinks:
        outcome = run(assemble(loaded.config, blueprints, loaded.folder, sinks=sinks))
    return outputs.finish(outcome, blueprints), outcome


def records(path, kind):
    rows = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    return [{key: value for key, value in row.items() if key != "kind"} for row in rows if row["kind"] == kind]


def test_parquet_and_ndjson_hold_the_same(fleet_text, tmp_path):
    crash = "faults: [{kind: crash, at_s: 8, replica: a-0}]\noutputs: {steps: true, records: FORM}\n"
    plain, columns = tmp_path / "plain", tmp_path / "columns"
    plain.mkdir()
    columns.mkdir()
    written(fleet_text() + crash.replace("FORM", "ndjson"), plain)
    written(fleet_text() + crash.replace("FORM", "parquet"), columns)
    for kind in ("request", "step"):
        table = parquet.read_table(columns / "out" / f"{kind}s.parquet")
        assert table.to_pylist() == records(plain / "out" / "records.ndjson", kind)
    assert table.schema.metadata[b"seed"] == b"0"
    assert not (columns / "out" / "records.ndjson").exists()


def test_parquet_without_pyarrow_is_one_clear_line(fleet_text, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match="parquet needs the package pyarrow: pip install 'argosy") as caught:
        written(fleet_text() + "outputs: {records: parquet}\n", tmp_path)
    assert caught.value.param == "outputs.records"


def test_which_files_there_are(fleet_text, tmp_path):
    files, _ = written(fleet_text() + "outputs: {records: none, trace_events: 0}\n", tmp_path)
    assert [path.name for path in files] == ["report.html", "summary.json"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.html", "summary.json"]


def test_results_are_not_replaced_unasked(fleet_text, tmp_path):
    written(fleet_text(), tmp_path)
    before = (tmp_path / "out" / "records.ndjson").read_bytes()
    with pytest.raises(ConfigError, match=r"out holds results already \(summary.json, .*give --overwrite"):
        written(fleet_text() + "seed: 1\n", tmp_path)
    assert (tmp_path / "out" / "records.ndjson").read_bytes() == before
    (tmp_path / "out" / "notes.txt").write_text("mine")
    written(fleet_text() + "seed: 1\noutputs: {trace_events: 0}\n", tmp_path, overwrite=True)
    assert (tmp_path / "out" / "records.ndjson").read_bytes() != before
    assert not (tmp_path / "out" / "trace.json").exists(), "nothing of the earlier run stays"
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "out").write_text("a file")
    with pytest.raises(ConfigError, match="cannot be used for results"):
        written(fleet_text(), tmp_path / "file")


def test_the_summary_says_what_the_results_say(simulated):
    ran = simulated("slo: {ttft_s: 1}\n")
    told = orjson.loads(orjson.dumps(summary(ran.run)))
    results = ran.run.results
    assert told["results"]["ttft"]["p99_s"] == results.ttft.p99_s
    assert told["results"]["submitted"] == results.submitted == sum(told["results"]["outcomes"].values())
    assert told["results"]["stability"]["verdict"] == str(results.stability)
    assert [one["name"] for one in told["results"]["replicas"]] == ["a-0", "a-1"]
    assert told["fleet"]["offered"] == ran.run.counters.offered
    steps = sum(window["steps"] for window in told["over_time"]["replicas"]["windows"])
    assert steps == sum(replica.steps for replica in results.replicas)
    answered = sum(window["answered"] for window in told["over_time"]["fleet"]["windows"])
    assert answered == results.e2e.count
    again = summary(simulated("slo: {ttft_s: 1}\n").run)
    del told["simulator"], again["simulator"]
    assert told == orjson.loads(orjson.dumps(again)), "only the simulator's own speed differs"


class Page(HTMLParser):
    """Checks that elements close in order, and collects what is there."""

    VOID = frozenset({"meta", "br", "line", "path", "rect", "circle"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in self.VOID or (tag == "path"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open, tag
        assert self.open.pop() == tag, tag

    def handle_data(self, data):
        self.words.append(data)


def report(ran, config_text: str = "") -> tuple[str, Page]:
    html = simulation_report(ran.run, ran.loaded.config, ran.assembly.blueprints, config_text)
    page = Page()
    page.feed(html)
    assert not [tag for tag in page.open if tag not in Page.VOID]
    return html, page


def test_the_report_stands_on_its_own(simulated):
    html, page = report(simulated("slo: {ttft_s: 1}\n"), "model: <script>alert(1)</script>\n")
    assert {"script", "link", "img", "iframe"}.isdisjoint(page.tags)
    assert not [value for _, value in page.attributes if value and "://" in value]
    assert "<script>" not in html
    words = " ".join(page.words)
    assert "<script>alert(1)</script>" in words
    for title in (
        "Time to first token and to the end",
        "TTFT of requests that end at that time",
        "TPOT of requests that end at that time",
        "Composition of a mean step",
        "KV of busy replicas, and hits of their prefix caches",
        "Time in which a replica computes",
        "Power, board power while busy",
        "stable: arriving requests found",
        "kept TTFT within 1 s",
        "1 x L4",
    ):
        assert title in words, title
    assert page.tags.count("svg") == 9


def test_an_unstable_run_is_called_that_first(simulated):
    html, _ = report(simulated(count=1, duration_s=25, rate=40, steps=False))
    assert html.index("Not a steady state: unstable") < html.index("Latency")


def test_a_fleet_that_changes_shows_its_size_and_price(simulated):
    scaled = """
    autoscaler:
      cold_start_s: 5
      every_s: 1
      rules: [{kind: queue, target: 2, running_per_replica: 8}]
      limits: {min_replicas: 1, max_replicas: 4, down_window_s: 10}
    """
    words = " ".join(report(simulated(scaled, count=1, rate=12))[1].words)
    assert "dollars per hour" in words
    assert "paid for" in words


def test_a_run_without_requests_has_a_report_too(simulated):
    _, page = report(simulated(duration_s=0.001, rate=0.001))
    assert "Replicas" in " ".join(page.words)


def test_hundreds_of_replicas_fold(simulated):
    ran = simulated()
    (replica, *_) = ran.run.results.replicas
    many = dataclasses.replace(ran.run.results, replicas=(replica,) * 50)
    ran.run = dataclasses.replace(ran.run, results=many)
    assert "10 more" in " ".join(report(ran)[1].words)
