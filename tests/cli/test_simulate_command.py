import json
import subprocess
import sys

import pytest

from argosy.cli.main import run
from argosy.cli.simulate_progress import describe, simulation_progress
from argosy.settings.yaml_file import parse_yaml
from argosy.sim.assembly import make_blueprints
from argosy.sim.config.simulation import parse_simulation
from argosy.sim.examples import example_names, example_text
from argosy.sim.run import Progress

FLEET = """\
model: llama-3.1-8b
replicas:
  - name: a
    count: 2
    device: l4
    engine: {num_blocks: 400, max_model_len: 2048, max_num_seqs: 16}
slo: {ttft_s: 2}
workload:
  duration_s: 10
  sources:
    - name: u
      arrivals: {kind: poisson, rate_per_s: 3}
      requests: {user_tokens: 100, output_tokens: 10}
"""


@pytest.fixture
def fleet(tmp_path, monkeypatch):
    """A configuration in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.yaml").write_text(FLEET)
    return tmp_path / "fleet.yaml"


def outcome(capsys, *arguments: str) -> tuple[int, str, str]:
    code = run(["simulate", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_terminal_says_what_came_out(capsys, fleet):
    code, out, err = outcome(capsys, "fleet.yaml")
    assert (code, err) == (0, "")
    assert out.startswith("llama-3.1-8b on 2 x a (1 x l4), seed 0\n")
    for words in ("simulated in", "times real time", "every request has ended", "TTFT", "TPOT", "requests/s", "a-0", "a-1"):
        assert words in out
    assert "service level" in out
    assert list(fleet.parent.iterdir()) == [fleet], "nothing is written unasked"


def test_json_is_all_there_is_on_stdout_and_the_seed_counts(capsys, fleet):
    first, again, other = (
        json.loads(outcome(capsys, "fleet.yaml", "--json", "--seed", seed)[1]) for seed in ("1", "1", "2")
    )
    assert first["seed"] == 1
    assert first["results"] == again["results"]
    assert first["results"]["ttft"] != other["results"]["ttft"]


def test_a_folder_of_results(capsys, fleet):
    code, out, _ = outcome(capsys, "fleet.yaml", "-o", "out")
    assert code == 0
    names = sorted(path.name for path in (fleet.parent / "out").iterdir())
    assert names == ["records.ndjson", "report.html", "summary.json", "trace.json"]
    assert all(f"out/{name}" in out for name in names)
    code, out, err = outcome(capsys, "fleet.yaml", "-o", "out")
    assert (code, out) == (2, "")
    assert err.startswith("argosy: error: out holds results already")
    assert outcome(capsys, "fleet.yaml", "-o", "out", "--overwrite")[0] == 0
    assert outcome(capsys, "fleet.yaml", "--overwrite")[2] == "argosy: error: --overwrite needs -o DIR\n"


def test_an_overload_is_said_in_the_first_lines(capsys, fleet):
    fleet.write_text(FLEET.replace("rate_per_s: 3", "rate_per_s: 100"))
    code, out, _ = outcome(capsys, "fleet.yaml")
    assert code == 0
    assert out.splitlines()[3].startswith("unstable: the queue grows by")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("count: 2", "cuont: 2", "fleet.yaml:4: replicas[0] has an unknown key 'cuont': did you mean count?"),
        ("device: l4", "device: l5", "fleet.yaml:3: replicas[0]: no device is called 'l5'"),
        ("device: l4", "device: l4\n    kv: fp7", "fleet.yaml:6: replicas[0]: kv 'fp7' is unknown"),
        ("llama-3.1-8b", "llama-3.1-9b", "fleet.yaml:1: model: no model is called 'llama-3.1-9b'"),
        ("num_blocks: 400, ", "", ""),
        (
            "max_num_seqs: 16",
            "max_num_seqs: 0",
            "fleet.yaml:6: replicas[0].engine: max_num_seqs must be at least 1, got 0",
        ),
        (
            "max_num_seqs: 16",
            "max_num_seq: 16",
            "fleet.yaml:6: replicas[0].engine has an unknown key 'max_num_seq': did you mean max_num_seqs?",
        ),
        ("rate_per_s: 3", "rate_per_s: -3", "fleet.yaml:12: workload.sources[0].arrivals: rate_per_s must be finite"),
        ("user_tokens: 100, output_tokens: 10", "lengths_from: t.csv", "trace t.csv cannot be read: No such file"),
        ("model: llama-3.1-8b", "model: [", "fleet.yaml:3: is not YAML"),
    ],
)
def test_mistakes_are_one_line_with_their_place(capsys, fleet, old, new, message):
    fleet.write_text(FLEET.replace(old, new))
    code, out, err = outcome(capsys, "fleet.yaml")
    if not message:
        assert code == 0
        return
    assert (code, out) == (2, "")
    assert err.startswith(f"argosy: error: {message}")
    assert err.count("\n") == 1


def test_a_wrong_line_of_a_trace_is_named(capsys, fleet):
    (fleet.parent / "t.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00.0,100,10\n2023-11-16 18:00:01.0,-5,5\n"
    )
    source = "    - name: u\n      trace: {path: t.csv}\n"
    fleet.write_text(FLEET[: FLEET.index("    - name: u")] + source)
    code, out, err = outcome(capsys, "fleet.yaml", "-o", "out")
    assert (code, out) == (2, "")
    assert err.startswith("argosy: error: trace t.csv line 3: ContextTokens must be a whole number")


def test_what_is_missing_is_named(capsys, fleet):
    assert outcome(capsys)[2].startswith("argosy: error: CONFIG is needed; 'argosy simulate --example single-70b'")
    assert "cannot be read: No such file" in outcome(capsys, "nowhere.yaml")[2]
    assert outcome(capsys, "fleet.yaml", "--example", "failures")[0] == 2


def test_examples_are_printed_as_they_are(capsys):
    assert example_names() == ["autoscaling-day", "disaggregated", "failures", "prefix-fleet", "single-70b"]
    for name in example_names():
        code, out, err = outcome(capsys, "--example", name)
        assert (code, out, err) == (0, example_text(name), "")
    assert outcome(capsys, "--example", "single-70")[2] == (
        "argosy: error: there is no example 'single-70': did you mean single-70b?\n"
    )


@pytest.mark.parametrize("name", example_names())
def test_every_example_can_be_built(name, tmp_path):
    loaded = parse_simulation(parse_yaml(example_text(name), name), tmp_path)
    assert all(blueprint.scheduler.num_blocks > 100 for blueprint in make_blueprints(loaded.config).values())


def test_the_help_names_every_example(capsys):
    code, out, _ = outcome(capsys, "--help")
    assert code == 0
    assert all(name in out for name in example_names())


def test_progress_in_words():
    now = Progress(now_s=600.0, until_s=1800.0, num_arrived=3210, num_ended=3200, wall_s=4.0)
    assert describe(now) == "10 min of 30 min simulated, 150 times real time, 3,210 requests"
    late = Progress(now_s=1900.0, until_s=1800.0, num_arrived=3210, num_ended=3200, wall_s=10.0)
    assert describe(late) == "31.7 min (10 requests still in flight) simulated, 190 times real time, 3,210 requests"
    assert describe(Progress(7.0, None, 1, 0, 1.0)) == "7 s simulated, 7 times real time, 1 requests"


def test_without_a_terminal_progress_is_a_line_now_and_then(capsys):
    with simulation_progress() as report:
        for wall_s in (1.0, 14.0, 16.0, 20.0, 32.0):
            report(Progress(wall_s, 100.0, 1, 0, wall_s))
    assert capsys.readouterr().err.count("\n") == 2


def test_it_needs_neither_torch_nor_a_web_framework(fleet):
    code = (
        "import sys; from argosy.cli.main import run; run(['simulate', 'fleet.yaml']); "
        "print([name for name in ('torch', 'transformers', 'fastapi', 'uvicorn') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=fleet.parent)
    assert done.stdout.splitlines()[-1] == "[]"
