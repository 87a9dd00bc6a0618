import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.cost.robust_fit import robust_fit
from argosy.errors import ConfigError

WIDE = np.full(2, 50.0)


def exponential(times, values):
    return lambda x: x[0] * np.exp(-x[1] * times) - values


def test_recovers_a_curve_without_noise():
    times = np.linspace(0, 3, 40)
    fit = robust_fit(exponential(times, 2.5 * np.exp(-0.7 * times)), np.array([1.0, 0.1]), -WIDE, WIDE, outlier=0.1)
    assert fit.x == pytest.approx([2.5, 0.7], rel=1e-4)
    assert fit.cost < 1e-8


def test_outliers_hardly_move_a_robust_fit_and_spoil_a_quadratic_one():
    rng = np.random.default_rng(3)
    inputs = rng.uniform(0, 1, 200)
    values = 1.0 + 2.0 * inputs + rng.normal(0, 0.01, 200)
    values[:20] += 5.0

    def line(x):
        return x[0] + x[1] * inputs - values

    robust = robust_fit(line, np.zeros(2), -WIDE, WIDE, outlier=0.05)
    quadratic = robust_fit(line, np.zeros(2), -WIDE, WIDE, outlier=100.0)
    assert robust.x == pytest.approx([1.0, 2.0], abs=0.03)
    assert abs(quadratic.x - [1.0, 2.0]).max() > 0.3


def test_a_bound_holds_and_the_rest_is_still_fitted():
    target = np.array([3.0, -1.0])
    fit = robust_fit(lambda x: x - target, np.zeros(2), -WIDE, np.array([2.0, 50.0]), outlier=10.0)
    assert fit.x == pytest.approx([2.0, -1.0], abs=1e-5)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(-10, 10), min_size=3, max_size=3),
    st.lists(st.floats(-5, 5), min_size=3, max_size=3),
    st.integers(0, 1000),
)
def test_never_leaves_the_box_nor_ends_worse_than_it_began(target, start, seed):
    low, high = np.full(3, -4.0), np.full(3, 4.0)
    matrix = np.random.default_rng(seed).normal(size=(8, 3))
    start = np.clip(np.array(start), low, high)

    def residuals(x):
        return matrix @ (x - np.array(target))

    fit = robust_fit(residuals, start, low, high, outlier=1e6)
    assert (fit.x >= low).all()
    assert (fit.x <= high).all()
    assert fit.cost <= 0.5 * (residuals(start) ** 2).sum() + 1e-12


def test_a_variable_that_nothing_depends_on_stays_and_says_so():
    fit = robust_fit(lambda x: np.array([x[0] - 1.0, 2 * x[0] - 2.0]), np.array([0.0, 7.0]), -WIDE, WIDE, outlier=1.0)
    assert fit.x == pytest.approx([1.0, 7.0], abs=1e-4)
    assert fit.sensitivity[0] > 0
    assert fit.sensitivity[1] == 0


@pytest.mark.parametrize(
    ("residuals", "low", "outlier", "message"),
    [
        (lambda x: x, -WIDE, 0.0, "outlier"),
        (lambda x: x, WIDE + 1, 1.0, "bounds"),
        (lambda x: x * np.nan, -WIDE, 1.0, "not finite"),
    ],
)
def test_nonsense_is_refused(residuals, low, outlier, message):
    with pytest.raises(ConfigError, match=message):
        robust_fit(residuals, np.ones(2), low, WIDE, outlier=outlier)
