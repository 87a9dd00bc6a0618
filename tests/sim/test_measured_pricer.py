from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.cost.calibration import SHARED_PARAMETERS
from argosy.cost.calibration_file import Calibration
from argosy.cost.catalogue import find_device, find_model
from argosy.cost.collectives import Topology
from argosy.cost.deployment import Deployment
from argosy.cost.machine_calibration import ENGINE, MachineCalibration, MeasuredModel, save_machine, shape_of
from argosy.cost.measured_steps import MeasuredSteps, StepErrors, StepFeatures
from argosy.cost.parallel import ParallelPlan
from argosy.cost.step_time_model import StepTimeModel
from argosy.errors import ConfigError
from argosy.sim.blueprint import blueprint_of
from argosy.sim.config.replicas import ReplicaGroup
from argosy.sim.measured_pricer import MeasuredPricer
from argosy.sim.step_pricer import Chunk, StepPricer, StepShape

NONE = StepErrors(0.0, 0.0)
STEPS = MeasuredSteps((1, 64), (0.01, 0.1), 1e-4, 1e-5, 1e-7, 1e-8, 5e-4, 4e-5, 3e-6, 900, NONE, NONE)
SMALL = find_model("SmolLM2-135M")
VALUES = {name: one.start for name, one in SHARED_PARAMETERS.items()} | {f"step_s:{ENGINE}": 1e-3}


def pricer(name: str, **plan: int) -> MeasuredPricer:
    device = find_device("H100 SXM")
    deployment = Deployment(find_model(name), ParallelPlan.for_serving(**plan))
    constants = Calibration("c", "s", "2025-06-01", 1, 1, (), (ENGINE,), VALUES, (), 0.0, 0.0, {}).constants(ENGINE)
    return MeasuredPricer(StepTimeModel(deployment, device, Topology.of(device), constants), STEPS)


PRICERS = {name: pricer(name) for name in ("Llama-3.1-8B", "Gemma-3-27B")}


@pytest.fixture
def this_machine(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ARGOSY_HOME", str(tmp_path))
    device = replace(find_device("H100 SXM"), name="Some processor", aliases=())
    calibration = Calibration("c", "s", "2025-06-01", 1, 1, (device.name,), (ENGINE,), VALUES, (), 0.0, 0.0, {})
    measured = MeasuredModel(
        "m", shape_of(SMALL), "kernels", "16-bit", "float16", "2", "0.1", "2025-06-01", STEPS, calibration
    )
    save_machine(MachineCalibration(device, (measured,)))


def test_a_step_is_priced_by_the_curve():
    chunks = (Chunk(30, 100, True), Chunk(10, 0, False))
    shape = StepShape(4, 1, (4004,), (4004,), chunks)
    pairs = 30 * 100 + 30 * 31 / 2 + 10 * 11 / 2
    expected = STEPS.step_s(StepFeatures(44, 5, 6, 4004, pairs))
    assert PRICERS["Llama-3.1-8B"].step_s(shape) == pytest.approx(expected, rel=1e-12)


def test_windows_count_by_their_layers():
    windowed = PRICERS["Gemma-3-27B"]
    seen = tuple(5000 if limit is None else 1024 for limit in windowed.limits)
    mean = (10 * 5000 + 52 * 1024) / 62
    pairs = (10 * (20 * 5000 + 210) + 52 * (20 * 1024)) / 62
    expected = STEPS.step_s(StepFeatures(21, 2, 2, mean, pairs))
    assert windowed.step_s(StepShape(1, 1, seen, seen, (Chunk(20, 5000, True),))) == pytest.approx(expected, rel=1e-12)


@given(st.sampled_from(sorted(PRICERS)), st.integers(1, 80), st.lists(st.integers(1, 10**6), min_size=1, max_size=20))
def test_a_run_of_decoding_is_priced_as_its_steps_bit_for_bit(name, batch, seen):
    priced = PRICERS[name]
    rows = [[tokens + index for tokens in seen] for index in range(len(priced.limits))]
    run = priced.decode_run_s(batch, [np.array(row, np.float64) for row in rows])
    single = [priced.step_s(StepShape(batch, 1, tuple(step), tuple(step))) for step in zip(*rows, strict=True)]
    assert run.tolist() == single


def test_several_devices_were_not_measured():
    with pytest.raises(ConfigError, match="one device"):
        pricer("Llama-3.1-8B", tensor=2)


def test_a_replica_on_this_machine_takes_the_curve_of_its_model_and_weights(this_machine):
    def made(**changes: str) -> StepPricer:
        model = find_model(changes.pop("model", "SmolLM2-135M"))
        return blueprint_of(ReplicaGroup(device="this-machine", step_times=ENGINE, **changes), model).pricer

    measured = made()
    assert isinstance(measured, MeasuredPricer)
    assert measured.measured == STEPS
    for other in (made(weights="int8"), made(model="Llama-3.1-8B")):
        assert type(other) is StepPricer
        assert other.model.constants.step_s == 1e-3


def test_step_times_of_other_engines_are_refused_on_this_machine(this_machine):
    with pytest.raises(ConfigError, match="set step_times: argosy"):
        blueprint_of(ReplicaGroup(device="this-machine", step_times="vllm"), SMALL)
