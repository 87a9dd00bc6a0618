from __future__ import annotations

import json
from dataclasses import replace

import pytest

from argosy.cost.calibration import SHARED_PARAMETERS
from argosy.cost.calibration_file import Calibration, constants_for, packaged_calibrations
from argosy.cost.catalogue import find_device, find_model
from argosy.cost.device import Device, Precision
from argosy.cost.efficiency import FittedRange
from argosy.cost.machine_calibration import (
    ENGINE,
    MachineCalibration,
    MeasuredModel,
    known_calibrations,
    load_machine,
    machine_text,
    parse_machine,
    save_machine,
    shape_of,
)
from argosy.cost.measured_steps import MeasuredSteps, StepErrors
from argosy.cost.quantity import Dimension, Grade, Quantity
from argosy.errors import ConfigError

SPEC = find_model("Llama-3.1-8B")
STEPS = MeasuredSteps(
    (1, 64), (0.01, 0.1), 1e-4, 1e-5, 1e-7, 1e-8, 5e-4, 4e-5, 3e-6, 900, StepErrors(0.01, 0.02), StepErrors(0.03, 0.05)
)


def measured(value: float, dimension: Dimension) -> Quantity:
    return Quantity(value, dimension, "here", Grade.MEASURED, "2025-06-01")


DEVICE = Device(
    "Some processor",
    (),
    "cpu",
    {Precision.FP32: measured(1e11, Dimension.FLOP_PER_S)},
    measured(1e10, Dimension.BYTES),
    measured(2e10, Dimension.BYTES_PER_S),
    None,
    None,
    None,
    None,
    1,
)
VALUES = {name: parameter.start for name, parameter in SHARED_PARAMETERS.items()} | {f"step_s:{ENGINE}": 1e-3}
CALIBRATION = Calibration(
    "own",
    "steps",
    "2025-06-01",
    9,
    3,
    ("Some processor",),
    (ENGINE,),
    VALUES,
    (),
    0.1,
    0.2,
    {"tokens": FittedRange(1.0, 64.0)},
)
MODEL = MeasuredModel(
    "m", shape_of(SPEC), "kernels", "int4 weight-only", "float16", "2", "0.1", "2025-06-01", STEPS, CALIBRATION
)
MACHINE = MachineCalibration(DEVICE, (MODEL,))


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ARGOSY_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_what_is_saved_is_found_as_this_machine(home):
    assert load_machine() is None
    path = save_machine(MACHINE)
    assert path == home / "calibration.json"
    found = load_machine()
    assert found.models == MACHINE.models
    assert replace(found.device, aliases=()) == DEVICE
    for name in ("this-machine", "This Machine", "this_machine"):
        assert find_device(name) == found.device


def test_without_a_calibration_the_remedy_is_named():
    with pytest.raises(ConfigError, match="run 'argosy calibrate MODEL'"):
        find_device("this-machine")


def test_its_constants_are_those_of_its_own_device_only():
    save_machine(MACHINE)
    assert constants_for("Some processor", ENGINE, calibrations=known_calibrations("Some processor")).step_s == 1e-3
    assert known_calibrations("H100 SXM") == packaged_calibrations()


def test_step_times_are_told_by_shape_and_weights_and_the_latest_counts():
    other = replace(MODEL, threads="1", steps=replace(STEPS, steps=1000))
    machine = MACHINE.with_model(DEVICE, other)
    assert len(machine.models) == 2
    assert machine.steps_of(SPEC, "int4 weight-only").steps == 1000
    assert machine.steps_of(SPEC, "16-bit") is None
    assert machine.steps_of(find_model("Llama-3.1-70B"), "int4 weight-only") is None


def test_measuring_again_replaces():
    again = replace(MODEL, as_of="2025-07-01")
    assert MACHINE.with_model(DEVICE, again).models == (again,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: value.update(version=99), "99 is not"),
        (lambda value: value.pop("device"), "is not a calibration"),
        (lambda value: value["models"][0].pop("shape"), "is not a calibration"),
        (lambda value: value["models"][0].update(more=1), "is not a calibration"),
        (lambda value: value["models"][0]["steps"].update(pair_s=-1.0), "not negative"),
    ],
)
def test_a_file_that_says_something_else_is_refused(change, message):
    value = json.loads(machine_text(MACHINE))
    change(value)
    with pytest.raises(ConfigError, match=message):
        parse_machine(json.dumps(value), "there.json")


def test_a_file_that_is_not_json_is_named(home):
    home.mkdir()
    (home / "calibration.json").write_text("{")
    with pytest.raises(ConfigError, match=r"calibration\.json is not a calibration"):
        load_machine()
