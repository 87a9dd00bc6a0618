import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from argosy.planner.pareto import pareto_indices

POINTS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=40)


@given(POINTS)
def test_nothing_on_the_front_is_beaten_and_everything_else_is(points):
    first, second = (np.array(values, float) for values in zip(*points, strict=True))
    front = set(pareto_indices(first, second).tolist())
    for index, (a, b) in enumerate(points):
        beaten = any(x <= a and y <= b and (x, y) != (a, b) for x, y in points)
        if index in front:
            assert not beaten
        else:
            assert beaten or any(points[other] == (a, b) for other in front)
