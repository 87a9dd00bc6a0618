"""Fitting the few constants between physics and measured time, and saying how far they may be trusted.

Measurements are pairs (mean of some steps, seconds): an end-to-end row is the mean step of a steady state, a timed step is
its own mean. Residuals are ln(predicted / measured), outliers are weighed down (Huber), every constant lies between bounds
that physics and public microbenchmarks allow, and a weak prior keeps a constant that the data do not show at its start.
Held-out errors are by configuration: rows of one configuration are never on both sides of a split.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from argosy.cost.efficiency import Constants, Efficiency
from argosy.cost.op import OpKind, StepComposition
from argosy.cost.op_list import check_step
from argosy.cost.robust_fit import robust_fit
from argosy.cost.serving_time import SteadySteps
from argosy.cost.step_time_model import StepTimeModel
from argosy.cost.step_time_work import Array
from argosy.errors import ConfigError

# Relative error beyond which a measurement counts as an outlier.
OUTLIER = 0.1
# A prior weighs as one measurement that is off by `OUTLIER` when a constant is off by this factor (e^0.5 = 1.65).
_PRIOR_LOG_SPREAD = 0.5


@dataclass(frozen=True, slots=True)
class Parameter:
    """One constant to be fitted, in logarithm: where it starts and between what it may lie."""

    start: float
    low: float
    high: float


# Upper bounds of efficiencies are what vendors' and public microbenchmarks reach: 0.9 of dense peak, 0.95 of HBM bandwidth.
SHARED_PARAMETERS: Mapping[str, Parameter] = {
    "gemm_compute": Parameter(0.7, 0.1, 0.9),
    "gemm_memory": Parameter(0.8, 0.3, 0.95),
    "half_rows": Parameter(64.0, 1.0, 1000.0),
    "grouped_compute": Parameter(0.6, 0.05, 0.9),
    "grouped_memory": Parameter(0.7, 0.1, 0.95),
    "attention_compute": Parameter(0.4, 0.05, 0.9),
    "attention_memory": Parameter(0.7, 0.1, 0.95),
    "link_efficiency": Parameter(0.7, 0.1, 0.95),
    "launch_s": Parameter(4e-6, 1e-7, 2e-4),
    "collective_s": Parameter(5e-6, 1e-7, 5e-5),
    "sequence_s": Parameter(1e-5, 1e-9, 1e-3),
}
STEP_PARAMETER = Parameter(5e-4, 1e-6, 5e-2)


def constants_of(values: Mapping[str, float], engine: str) -> Constants:
    """Constants of `engine` from fitted values; ops without matrices move bytes as fast as public models assume.

    Raises:
        ConfigError: a value is missing, or `engine` was not fitted.
    """
    missing = [name for name in (*SHARED_PARAMETERS, f"step_s:{engine}") if name not in values]
    if missing:
        raise ConfigError(f"the calibration has no {missing[0]}")
    matrix = Efficiency(values["gemm_compute"], values["gemm_memory"], values["half_rows"])
    defaults = Constants()
    return defaults.replace(
        efficiencies={
            **defaults.efficiencies,
            OpKind.GEMM: matrix,
            OpKind.ROUTER: matrix,
            OpKind.GROUPED_GEMM: Efficiency(values["grouped_compute"], values["grouped_memory"], values["half_rows"]),
            OpKind.ATTENTION: Efficiency(values["attention_compute"], values["attention_memory"]),
        },
        link_efficiency=values["link_efficiency"],
        launch_s=values["launch_s"],
        collective_s=values["collective_s"],
        sequence_s=values["sequence_s"],
        step_s=values[f"step_s:{engine}"],
    )


@dataclass(frozen=True, slots=True)
class Measurements:
    """Measured seconds of one configuration under one engine.

    Attributes:
        configuration: what is held out together.
        steps: what was computed; seconds: [rows].
    """

    configuration: Hashable
    engine: str
    steps: SteadySteps
    seconds: Array

    def __post_init__(self) -> None:
        """Raise `ConfigError` for seconds that nothing takes, or that do not match the steps."""
        if self.seconds.shape != self.steps.shares.shape[1:]:
            raise ConfigError(f"{len(self.seconds)} measurements of {self.steps.shares.shape[1]} means of steps")
        if not (np.isfinite(self.seconds).all() and (self.seconds > 0).all()):
            raise ConfigError(f"measured seconds of {self.configuration} must be finite and above 0")

    def log_errors(self, values: Mapping[str, float]) -> Array:
        """[rows] ln(predicted / measured)."""
        return np.log(self.steps.tpot_s(constants_of(values, self.engine)) / self.seconds)


@dataclass(frozen=True, slots=True)
class TimedStep:
    """One step of `model`'s deployment that took `seconds`."""

    model: StepTimeModel
    step: StepComposition
    seconds: float


def measurements_of_steps(timed: Sequence[TimedStep], engine: str) -> list[Measurements]:
    """Timed steps by the model that was run, each model a configuration.

    Raises:
        ConfigError: a composition that no step can have, or seconds that nothing takes.
    """
    by_model: dict[int, list[TimedStep]] = {}
    for one in timed:
        check_step(one.step)
        by_model.setdefault(id(one.model), []).append(one)
    found = []
    for of_model in by_model.values():
        groups = max(len(one.step.groups) for one in of_model)
        table = np.zeros((3, groups, len(of_model)))
        for column, one in enumerate(of_model):
            table[:, : len(one.step.groups), column] = np.array(one.step.groups).T
        model = of_model[0].model
        logit_rows = np.array([one.step.logit_rows for one in of_model])
        work = model.work(table[0], table[1], table[2], logit_rows)
        steps = SteadySteps(work, np.ones((1, len(of_model))), np.ones(len(of_model)))
        found.append(Measurements(model.deployment, engine, steps, np.array([one.seconds for one in of_model])))
    return found


@dataclass(frozen=True, slots=True)
class FittedConstants:
    """What a fit found.

    Attributes:
        values: by name; those in `at_bound` lie at one of their bounds, those in `unseen` do not influence any measurement
            and are priors.
    """

    values: Mapping[str, float]
    at_bound: tuple[str, ...]
    unseen: tuple[str, ...]


def fit_constants(measurements: Sequence[Measurements], engines: Sequence[str] = ()) -> FittedConstants:
    """Fit all constants to all `measurements`.

    Args:
        engines: that constants are wanted for; those that were not measured keep the prior of their step overhead.

    Raises:
        ConfigError: there are no measurements.
    """
    if not measurements:
        raise ConfigError("a calibration needs measurements")
    names = sorted({*engines, *(one.engine for one in measurements)})
    parameters = {**SHARED_PARAMETERS, **{f"step_s:{name}": STEP_PARAMETER for name in names}}
    start, low, high = (np.log([getattr(p, which) for p in parameters.values()]) for which in ("start", "low", "high"))

    def values_of(x: Array) -> dict[str, float]:
        return dict(zip(parameters, np.exp(x).tolist(), strict=True))

    def residuals(x: Array) -> Array:
        values = values_of(x)
        prior = OUTLIER * (x - start) / _PRIOR_LOG_SPREAD
        return np.concatenate([*(one.log_errors(values) for one in measurements), prior])

    fit = robust_fit(residuals, start, low, high, outlier=OUTLIER)
    prior_alone = OUTLIER / _PRIOR_LOG_SPREAD / np.sqrt(len(residuals(fit.x)))
    names_of = list(parameters)
    at_bound = tuple(names_of[i] for i in np.flatnonzero(np.isclose(fit.x, low) | np.isclose(fit.x, high)))
    unseen = tuple(names_of[i] for i in np.flatnonzero(fit.sensitivity <= prior_alone * (1 + 1e-6)))
    return FittedConstants(values_of(fit.x), at_bound, unseen)


def fit_steps(timed: Sequence[TimedStep], engine: str) -> FittedConstants:
    """Fit to timed steps of one engine; see `fit_constants`."""
    return fit_constants(measurements_of_steps(timed, engine))


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Relative errors |predicted / measured - 1| of rows that were not fitted to, by configuration."""

    errors: Mapping[Hashable, Array]

    def of(self, chosen: Callable[[Hashable], bool] = lambda _: True) -> Array:
        """[rows] errors of the configurations `chosen`."""
        parts = [errors for configuration, errors in self.errors.items() if chosen(configuration)]
        return np.concatenate(parts) if parts else np.empty(0)


def cross_validate(measurements: Sequence[Measurements], *, folds: int = 5, seed: int = 0) -> HeldOut:
    """Errors of every configuration, predicted by a fit to the other folds; folds are drawn over configurations.

    Raises:
        ConfigError: fewer configurations than folds, or fewer than two folds.
    """
    configurations = list(dict.fromkeys(one.configuration for one in measurements))
    if not 2 <= folds <= len(configurations):
        raise ConfigError(
            f"{folds} folds of {len(configurations)} configurations; there must be 2 folds or more, none empty"
        )
    order: NDArray[np.intp] = np.random.default_rng(seed).permutation(len(configurations))
    fold_of = {configurations[which]: place % folds for place, which in enumerate(order.tolist())}
    return hold_out(measurements, lambda configuration: fold_of[configuration])


def hold_out(measurements: Sequence[Measurements], group_of: Callable[[Hashable], Hashable]) -> HeldOut:
    """Errors of every configuration, predicted by a fit to those of other groups (a device, a model, a fold)."""
    engines = [one.engine for one in measurements]
    errors: dict[Hashable, list[Array]] = {}
    for group in dict.fromkeys(group_of(one.configuration) for one in measurements):
        kept = [one for one in measurements if group_of(one.configuration) != group]
        values = fit_constants(kept, engines).values
        for one in measurements:
            if group_of(one.configuration) == group:
                errors.setdefault(one.configuration, []).append(np.abs(np.expm1(one.log_errors(values))))
    return HeldOut({configuration: np.concatenate(parts) for configuration, parts in errors.items()})
