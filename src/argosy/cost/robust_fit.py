"""Bounded robust least squares: Levenberg-Marquardt with Huber weights, steps projected onto the box.

Minimises the sum of ρ(r_i(x)), ρ quadratic up to `outlier` and linear beyond (Huber 1964), by reweighted Gauss-Newton steps
damped after Marquardt (1963). A variable at a bound whose gradient points outwards is held there for the step. Derivatives
are forward differences; residuals are expected to be smooth to about 1e-8 and to have been scaled so that variables are of
order one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from argosy.errors import ConfigError

Array = NDArray[np.float64]
Residuals = Callable[[Array], Array]

_DIFFERENCE = 1e-5
_DAMPING_FIRST, _DAMPING_UP, _DAMPING_DOWN = 1e-2, 5.0, 0.2
_TRIES = 10
_CONVERGED = 1e-6


@dataclass(frozen=True, slots=True)
class Fit:
    """A minimum.

    Attributes:
        x: the variables; cost: sum of ρ; iterations: accepted steps.
        sensitivity: [variables], root mean square of the derivatives of the residuals; 0 where nothing depends on one.
    """

    x: Array
    cost: float
    iterations: int
    sensitivity: Array


def robust_fit(residuals: Residuals, start: Array, low: Array, high: Array, *, outlier: float, iterations: int = 50) -> Fit:
    """Minimise from `start` within `low` and `high`.

    Raises:
        ConfigError: bounds that exclude each other, an outlier threshold that is not above 0, residuals that are not finite.
    """
    if not (np.isfinite(start).all() and (low <= high).all()):
        raise ConfigError("a fit needs a finite start and lower bounds that do not exceed upper ones")
    if not outlier > 0:
        raise ConfigError(f"the outlier threshold must be above 0, got {outlier}")
    x = np.clip(start, low, high)
    values = residuals(x)
    if not np.isfinite(values).all():
        raise ConfigError("residuals at the start of a fit are not finite; is a measurement zero?")
    cost, damping, accepted = _huber(values, outlier), _DAMPING_FIRST, 0
    jacobian = _jacobian(residuals, x, values, high)
    while accepted < iterations:
        step = _descend(residuals, x, values, jacobian, (low, high), outlier, damping)
        if step is None:
            break
        accepted += 1
        x, values, lower, damping = step
        converged = cost - lower <= _CONVERGED * cost
        cost = lower
        jacobian = _jacobian(residuals, x, values, high)
        if converged:
            break
    return Fit(x, cost, accepted, np.sqrt((jacobian**2).mean(axis=0)))


def _huber(values: Array, outlier: float) -> float:
    size = np.abs(values)
    return float(np.where(size <= outlier, 0.5 * values**2, outlier * (size - 0.5 * outlier)).sum())


def _jacobian(residuals: Residuals, x: Array, values: Array, high: Array) -> Array:
    """[residuals, variables] forward differences, backward at an upper bound."""
    columns = []
    for index in range(len(x)):
        change = _DIFFERENCE if x[index] + _DIFFERENCE <= high[index] else -_DIFFERENCE
        moved = x.copy()
        moved[index] += change
        columns.append((residuals(moved) - values) / change)
    return np.stack(columns, axis=1)


def _descend(
    residuals: Residuals,
    x: Array,
    values: Array,
    jacobian: Array,
    bounds: tuple[Array, Array],
    outlier: float,
    damping: float,
) -> tuple[Array, Array, float, float] | None:
    """(x, residuals, cost, damping) after one step that lowers the cost; None where none does."""
    low, high = bounds
    weights = outlier / np.maximum(np.abs(values), outlier)
    normal = jacobian.T @ (jacobian * weights[:, None])
    gradient = jacobian.T @ (weights * values)
    free = np.flatnonzero(~(((x <= low) & (gradient > 0)) | ((x >= high) & (gradient < 0))))
    cost = _huber(values, outlier)
    if not free.size:
        return None
    block, scale = normal[np.ix_(free, free)], np.diag(normal)[free]
    scale = np.maximum(scale, 1e-12 * max(scale.max(), np.finfo(np.float64).tiny))
    for _ in range(_TRIES):
        moved = x.copy()
        moved[free] -= np.linalg.solve(block + damping * np.diag(scale), gradient[free])
        moved = np.clip(moved, low, high)
        after = residuals(moved)
        lower = _huber(after, outlier) if np.isfinite(after).all() else np.inf
        if lower < cost:
            return moved, after, lower, damping * _DAMPING_DOWN
        damping *= _DAMPING_UP
    return None
