from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.cost.catalogue import find_model
from argosy.cost.deployment import Deployment
from argosy.cost.measured_steps import (
    MeasuredSteps,
    StepErrors,
    StepFeatures,
    StepSample,
    attention_shares,
    fit_measured_steps,
)
from argosy.cost.parallel import ParallelPlan
from argosy.errors import ConfigError

NONE = StepErrors(0.0, 0.0)
TRUTH = MeasuredSteps((1, 8, 64, 256), (0.01, 0.02, 0.09, 0.4), 3e-4, 1e-5, 2e-7, 1e-8, 5e-4, 4e-5, 3e-6, 100, NONE, NONE)


def host_s_of(features: StepFeatures) -> float:
    return TRUTH.host_step_s + TRUTH.host_sequence_s * features.sequences + TRUTH.host_token_s * features.tokens


def executor_s(features: StepFeatures) -> float:
    host_s = host_s_of(features)
    return TRUTH.step_s(features) - host_s


def samples(noise: Random | None = None) -> list[StepSample]:
    """Decoding of several batches and contexts, single chunks, and both together; three steps of each."""
    made = []
    shapes = [(batch, batch, batch, batch * context, 0.0) for batch in (1, 2, 4, 8, 16, 32) for context in (10, 300, 2000)]
    shapes += [(new, 1, 1, 0.0, new * (past + new / 2)) for new in (2, 8, 32, 64, 128, 200, 256) for past in (0, 400, 3000)]
    shapes += [(new + 8, 9, 9, 8 * 100.0, new * new / 2) for new in (8, 56, 100, 240)]
    for number, shape in enumerate(shapes):
        features = StepFeatures(*shape)
        for _ in range(5):
            seconds = executor_s(features)
            if noise is not None and noise.random() < 0.25:
                seconds *= 1.0 + 4.0 * noise.random()
            made.append(StepSample(features, number, seconds, host_s_of(features)))
    return made


def worst_error(found: MeasuredSteps) -> float:
    return max(abs(found.step_s(one.features) / TRUTH.step_s(one.features) - 1.0) for one in samples())


def test_the_constants_of_exact_steps_are_found():
    found = fit_measured_steps(samples())
    assert worst_error(found) < 0.02
    assert found.seen_s == pytest.approx(TRUTH.seen_s, rel=0.05)
    assert found.pair_s == pytest.approx(TRUTH.pair_s, rel=0.05)
    assert found.host_step_s == pytest.approx(TRUTH.host_step_s, rel=1e-6)
    assert found.host_sequence_s == pytest.approx(TRUTH.host_sequence_s, rel=1e-6)
    assert found.host_token_s == pytest.approx(TRUTH.host_token_s, rel=1e-6)
    assert found.steps == len(samples())
    assert found.fitted.median < 0.01
    assert found.held_out.median < 0.05


def test_a_quarter_of_steps_several_times_as_slow_changes_little():
    assert worst_error(fit_measured_steps(samples(Random(1)))) < 0.1


def test_what_a_curve_misses_shows_on_configurations_left_out():
    """One configuration takes twice as long for a reason of its own: the others say nothing of it."""
    odd = [replace(one, executor_s=3.0 * one.executor_s) if one.configuration == 4 else one for one in samples()]
    found = fit_measured_steps(odd, folds=len({one.configuration for one in odd}))
    assert found.held_out.p90 >= found.fitted.p90
    assert found.held_out.median < 0.1


def test_times_around_the_executor_are_never_below_nothing():
    """Falling with the number of tokens, which no host does: the slope is 0 and not negative."""
    odd = [replace(one, host_s=1e-3 / one.features.tokens) for one in samples()]
    found = fit_measured_steps(odd)
    assert min(found.host_step_s, found.host_sequence_s, found.host_token_s) == 0.0
    assert found.host_step_s > 0.0


def test_a_rare_wait_around_the_executor_does_not_count():
    slow = samples()
    slow[0] = replace(slow[0], host_s=5.0)
    many = slow + [replace(one) for one in samples() for _ in range(8)]
    assert fit_measured_steps(many).host_step_s == pytest.approx(TRUTH.host_step_s, rel=0.05)


def test_time_around_the_executor_is_not_guessed():
    alone = [replace(one, host_s=None) for one in samples()]
    with pytest.raises(ConfigError, match="around the executor"):
        fit_measured_steps(alone)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda made: made[:20], "too few"),
        (lambda made: [replace(one, configuration=0) for one in made], "too few"),
        (lambda made: [replace(one, executor_s=0.0) for one in made], "above 0"),
        (lambda made: [replace(one, executor_s=math.nan) for one in made], "above 0"),
    ],
)
def test_steps_that_nothing_can_be_fitted_to_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        fit_measured_steps(change(samples()))


@pytest.mark.parametrize(
    "change", [{"knots": (1,)}, {"knots": (2, 8, 64, 256)}, {"knots": (1, 64, 8, 256)}, {"rows_s": (1.0,)}, {"pair_s": -1.0}]
)
def test_a_curve_that_cannot_be_is_refused(change):
    with pytest.raises(ConfigError):
        replace(TRUTH, **change)


@given(st.integers(1, 2000))
def test_rows_are_linear_between_knots_and_beyond(tokens):
    first = next((i for i in range(3) if tokens <= TRUTH.knots[i + 1]), 2)
    (low, high), (a, b) = TRUTH.knots[first : first + 2], TRUTH.rows_s[first : first + 2]
    assert TRUTH.rows_at(tokens) == pytest.approx(a + (b - a) * (tokens - low) / (high - low), rel=1e-12)
    assert TRUTH.rows_at(tokens + 1) > TRUTH.rows_at(tokens)


def test_layers_count_by_their_windows():
    def shares(name: str) -> dict[int | None, float]:
        return attention_shares(Deployment(find_model(name), ParallelPlan.for_serving()))

    assert shares("Llama-3.1-8B") == {None: 1.0}
    gemma = shares("Gemma-3-27B")
    assert gemma[None] == pytest.approx(10 / 62)
    assert gemma[1024] == pytest.approx(52 / 62)
