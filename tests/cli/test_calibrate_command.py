from __future__ import annotations

import json

import pytest

from argosy.bench import calibrate
from argosy.cli import progress
from argosy.cli.main import run
from argosy.cost.calibration import SHARED_PARAMETERS
from argosy.cost.calibration_file import Calibration
from argosy.cost.catalogue import find_device, find_model
from argosy.cost.machine_calibration import ENGINE, MeasuredModel, load_machine, shape_of
from argosy.cost.measured_steps import MeasuredSteps, StepErrors

STEPS = MeasuredSteps(
    (1, 64), (0.01, 0.1), 1e-4, 1e-5, 1e-7, 1e-8, 5e-4, 4e-5, 3e-6, 900, StepErrors(0.01, 0.02), StepErrors(0.03, 0.05)
)
VALUES = {name: one.start for name, one in SHARED_PARAMETERS.items()} | {f"step_s:{ENGINE}": 1e-3}


@pytest.fixture
def asked(monkeypatch, tmp_path) -> list[dict]:
    """Replaces the measurement, and keeps what it was asked for."""
    monkeypatch.setenv("ARGOSY_HOME", str(tmp_path / "home"))
    calls: list[dict] = []

    def measure(args, *, rounds, seed, report):
        calls.append({"args": args, "rounds": rounds, "seed": seed})
        report("round 1 of 1", 1, 1)
        device = find_device("H100 SXM")
        known = Calibration("c", "s", "2025-06-01", 1, 1, (device.name,), (ENGINE,), VALUES, (), 0.1, 0.2, {})
        shape = shape_of(find_model("SmolLM2-135M"))
        return device, MeasuredModel(args.model, shape, "kernels", "int8", "float16", "2", "0.1", "2025-06-01", STEPS, known)

    monkeypatch.setattr(calibrate, "calibrate_machine", measure)
    monkeypatch.setattr(progress, "fetch_model", lambda args: None)
    return calls


def test_it_is_written_where_the_rest_looks_for_it(asked, tmp_path, capsys):
    assert run(["calibrate", "m", "--rounds", "2", "--seed", "5", "--threads", "3", "--max-num-seqs", "9"]) == 0
    (call,) = asked
    assert (call["rounds"], call["seed"], call["args"].threads, call["args"].max_num_seqs) == (2, 5, 3, 9)
    assert load_machine(tmp_path / "home" / "calibration.json").models[0].steps == STEPS
    printed = capsys.readouterr().out
    assert "10.00" in printed
    assert "left out of the fit by 3.0%" in " ".join(printed.split())


def test_another_model_is_added(asked, tmp_path):
    file = tmp_path / "here.json"
    for model in ("a", "b", "a"):
        assert run(["calibrate", model, "--output", str(file)]) == 0
    assert [one.model for one in load_machine(file).models] == ["b", "a"]


def test_json_is_for_scripts(asked, capsys):
    assert run(["calibrate", "m", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["steps"]["rows_s"] == [0.01, 0.1]
    assert value["file"].endswith("calibration.json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--device", "cuda"], "only a cpu can be calibrated"),
        (["--output", "no/such/folder/x.json"], "its folder does not exist"),
    ],
)
def test_mistakes_are_told_before_anything_is_measured(asked, capsys, arguments, message):
    assert run(["calibrate", "m", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert asked == []


def test_a_file_that_is_no_calibration_is_not_overwritten(asked, tmp_path, capsys):
    file = tmp_path / "notes.json"
    file.write_text("my notes")
    assert run(["calibrate", "m", "--output", str(file)]) == 2
    assert "is not a calibration" in capsys.readouterr().err
    assert file.read_text() == "my notes"
