import numpy as np
import pytest

from argosy.cost.calibration import (
    SHARED_PARAMETERS,
    Measurements,
    TimedStep,
    constants_of,
    cross_validate,
    fit_constants,
    fit_steps,
    hold_out,
    measurements_of_steps,
)
from argosy.cost.catalogue import find_device, find_model
from argosy.cost.collectives import Topology
from argosy.cost.deployment import Deployment
from argosy.cost.efficiency import Constants
from argosy.cost.op import OpKind, StepComposition
from argosy.cost.parallel import ParallelPlan
from argosy.cost.step_time_model import StepTimeModel
from argosy.errors import ConfigError

H100 = find_device("H100 SXM")
TRUE = {
    "gemm_compute": 0.62,
    "gemm_memory": 0.85,
    "half_rows": 90.0,
    "grouped_compute": 0.5,
    "grouped_memory": 0.6,
    "attention_compute": 0.3,
    "attention_memory": 0.55,
    "link_efficiency": 0.6,
    "launch_s": 6e-6,
    "collective_s": 9e-6,
    "sequence_s": 2e-5,
    "step_s:own": 2e-3,
}
DEPLOYMENTS = [
    Deployment(find_model(name), ParallelPlan(tensor=tensor))
    for name, tensor in (
        ("Llama-3.1-8B", 1),
        ("Llama-3.1-8B", 4),
        ("Llama-3.1-70B", 4),
        ("Qwen3-30B-A3B", 1),
        ("Llama-3.2-1B", 1),
    )
]
STEPS = [
    *(StepComposition(((count, 1, past),), count) for count in (1, 4, 16, 64, 256) for past in (100, 1000, 8000)),
    *(StepComposition(((1, new, past),), 1) for new in (64, 512, 2048, 8192) for past in (0, 16000)),
    *(StepComposition(((32, 1, 500), (1, new, 0)), 33) for new in (128, 1024)),
]


def models(constants):
    return [StepTimeModel(deployment, H100, Topology.of(H100), constants) for deployment in DEPLOYMENTS]


@pytest.fixture(scope="module")
def exact():
    """Timed steps of five deployments as the true constants have them."""
    return [TimedStep(model, step, model.step_s(step)) for model in models(constants_of(TRUE, "own")) for step in STEPS]


def disturbed(timed, noise, outliers, seed=0):
    rng = np.random.default_rng(seed)
    factors = np.exp(rng.normal(0, noise, len(timed)))
    factors[rng.permutation(len(timed))[: round(outliers * len(timed))]] *= 4.0
    return [TimedStep(one.model, one.step, one.seconds * factor) for one, factor in zip(timed, factors, strict=True)]


def test_measurements_predict_what_walking_the_op_list_gives(exact):
    for one in measurements_of_steps(exact, "own"):
        assert abs(one.log_errors(TRUE)).max() < 1e-9


def test_recovers_the_constants_of_exact_steps(exact):
    values = fit_steps(exact, "own").values
    for name in ("gemm_compute", "gemm_memory", "grouped_memory", "attention_compute", "attention_memory"):
        assert values[name] == pytest.approx(TRUE[name], rel=0.03), name
    for name in ("launch_s", "step_s:own"):
        assert values[name] == pytest.approx(TRUE[name], rel=0.1), name


def test_recovers_them_under_noise_and_outliers(exact):
    values = fit_steps(disturbed(exact, noise=0.03, outliers=0.1), "own").values
    for name in ("gemm_compute", "gemm_memory", "attention_memory", "launch_s"):
        assert values[name] == pytest.approx(TRUE[name], rel=0.12), name
    errors = np.concatenate([one.log_errors(values) for one in measurements_of_steps(exact, "own")])
    assert np.median(abs(errors)) < 0.02
    assert abs(errors).max() < 0.12


def test_what_no_measurement_shows_keeps_its_prior_and_is_named(exact):
    one_device = [one for one in exact if one.model.deployment == DEPLOYMENTS[0]]
    fitted = fit_steps(one_device, "own")
    assert set(fitted.unseen) == {"grouped_compute", "grouped_memory", "link_efficiency", "collective_s"}
    for name in fitted.unseen:
        assert fitted.values[name] == pytest.approx(SHARED_PARAMETERS[name].start, rel=1e-6)


def test_a_constant_beyond_its_bound_ends_there_and_is_named(exact):
    fast = [TimedStep(one.model, one.step, one.seconds / 3) for one in exact]
    fitted = fit_steps(fast, "own")
    assert "gemm_memory" in fitted.at_bound
    assert fitted.values["gemm_memory"] == pytest.approx(SHARED_PARAMETERS["gemm_memory"].high)


def test_no_fit_beats_physics(exact):
    fast = [TimedStep(one.model, one.step, one.seconds / 10) for one in exact]
    constants = constants_of(fit_steps(fast, "own").values, "own")
    assert all(0 < constants.efficiencies[kind].memory <= 1 for kind in OpKind)
    assert min(constants.launch_s, constants.collective_s, constants.step_s) > 0


def test_held_out_errors_cover_every_row_once_and_come_from_other_configurations(exact):
    measurements = measurements_of_steps(disturbed(exact, 0.02, 0.0), "own")
    folds = cross_validate(measurements, folds=3)
    assert set(folds.errors) == set(DEPLOYMENTS)
    assert folds.of().size == len(exact)
    assert np.median(folds.of()) < 0.1
    spoiled = measurements[0]
    wrong = Measurements(spoiled.configuration, "own", spoiled.steps, spoiled.seconds * 10)
    by_model = hold_out([wrong, *measurements[1:]], lambda deployment: deployment)
    assert np.median(by_model.of(lambda c: c == spoiled.configuration)) == pytest.approx(0.9, abs=0.03)


def test_an_engine_that_was_held_out_keeps_its_prior(exact):
    fitted = fit_constants(measurements_of_steps(exact, "own"), ["other"])
    assert fitted.values["step_s:other"] == pytest.approx(5e-4)
    assert "step_s:other" in fitted.unseen


def test_nonsense_is_refused(exact):
    measurements = measurements_of_steps(exact[:2], "own")
    with pytest.raises(ConfigError, match="needs measurements"):
        fit_constants([])
    with pytest.raises(ConfigError, match="finite and above 0"):
        measurements_of_steps([TimedStep(exact[0].model, exact[0].step, 0.0)], "own")
    with pytest.raises(ConfigError, match="at least one new token"):
        measurements_of_steps([TimedStep(exact[0].model, StepComposition((), 0), 1.0)], "own")
    with pytest.raises(ConfigError, match="5 folds of 1 configurations"):
        cross_validate(measurements)
    with pytest.raises(ConfigError, match="no step_s:other"):
        constants_of(TRUE, "other")
    with pytest.raises(ConfigError, match="3 measurements of 2 means"):
        Measurements("x", "own", measurements[0].steps, np.ones(3))


def test_other_ops_keep_the_common_efficiencies():
    assert constants_of(TRUE, "own").efficiencies[OpKind.NORM] == Constants().efficiencies[OpKind.NORM]
