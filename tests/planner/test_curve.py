import numpy as np
import pytest

from argosy.cost.catalogue import find_model
from argosy.cost.serving_time import ClosedLoop, closed_loop
from argosy.planner.curve import closed_loop_curve, state_grid
from argosy.planner.engines import Engine, engines
from argosy.planner.offers import resolve


@pytest.fixture
def engine(ask) -> Engine:
    question = ask()
    found = next(iter(engines(question, find_model("Llama-3.1-8B"), None, resolve(question.devices[0]))))
    assert isinstance(found, Engine)
    return found


def test_states_are_whole_ascending_and_hold_what_is_wanted():
    states = state_grid(1000, (7, 300, 2000))
    assert states[0] == 1
    assert states[-1] == 1000
    assert {7.0, 300.0} <= set(states)
    assert (np.diff(states) > 0).all()
    assert (np.diff(states) <= np.sqrt(states[1:])).all()


def test_the_curve_is_the_closed_loop_where_it_is_evaluated(engine: Engine, ask):
    traffic = ask().traffic
    curve = closed_loop_curve(engine, traffic, (512, 2048), (0.0, 0.0), state_grid(16, ()))
    for row, chunk in enumerate((512, 2048)):
        for sequences in (1, 16):
            load = ClosedLoop(traffic.prompt.tokens, traffic.output.tokens, sequences)
            estimate = closed_loop(engine.model, load, step_tokens=chunk)
            at = curve.up_to(sequences)
            assert curve.tpot_s[row, at] == pytest.approx(estimate.tpot_s)
            assert curve.rate[row, at] == pytest.approx(estimate.requests_per_s)
            assert curve.prompt_s[row, at] + curve.residual_s[row, at] == pytest.approx(estimate.ttft_s)


def test_found_prefixes_shorten_prompts(engine: Engine, ask):
    curve = closed_loop_curve(engine, ask().traffic, (2048, 2048), (0.0, 0.8), state_grid(16, ()))
    assert (curve.prompt_s[1] < curve.prompt_s[0]).all()
    assert (curve.occupancy_s[1] < curve.occupancy_s[0]).all()


def test_the_normal_tail_is_that_of_the_error_function():
    import math

    from argosy.planner.curve import _normal_tail

    x = np.linspace(-6, 6, 49)
    exact = np.array([math.erfc(value / math.sqrt(2)) / 2 for value in x])
    assert np.abs(_normal_tail(x) - exact).max() < 1e-7
