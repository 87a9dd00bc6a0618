import pytest

from argosy.cost.device import Precision
from argosy.cost.parallel import ParallelPlan, Precisions
from argosy.errors import ConfigError


@pytest.mark.parametrize(
    ("billions", "precision", "gigabytes"),
    [
        (70, Precision.FP16, 140),
        (70, Precision.INT8, 70),
        (70, Precision.INT4, 35),
        (7, Precision.FP16, 14),
        (671, Precision.FP8, 671),
    ],
)
def test_weights_by_precision(billions, precision, gigabytes):
    assert Precisions(weights=precision).matrix_bytes(billions * 1e9) == gigabytes * 1e9


def test_scales_are_charged_where_weights_are_quantised_only():
    precisions = Precisions(weights=Precision.BF16, experts=Precision.FP4, scale_bytes_per_element=1 / 32)
    assert precisions.matrix_bytes(3200) == 6400
    assert precisions.matrix_bytes(3200, Precision.FP4) == 1600 + 100


def test_scales_out_of_range():
    with pytest.raises(ConfigError, match="scale_bytes_per_element"):
        Precisions(scale_bytes_per_element=float("nan"))


@pytest.mark.parametrize("axis", ["tensor", "pipeline", "expert", "data", "context", "interleave", "expert_tensor"])
def test_a_degree_below_one_is_refused_by_name(axis):
    with pytest.raises(ConfigError, match=axis):
        ParallelPlan(**{axis: 0})


@pytest.mark.parametrize(
    ("plan", "shards", "group"),
    [
        (ParallelPlan(tensor=8), 8, 8),
        (ParallelPlan(tensor=8, expert=2), 4, 8),
        (ParallelPlan(data=8, expert=8), 1, 8),
        (ParallelPlan.for_serving(tensor=2, data=4, expert=4), 2, 8),
        (ParallelPlan.for_serving(data=8), 8, 8),
    ],
)
def test_devices_that_hold_every_expert_once(plan, shards, group):
    assert (plan.expert_shards, plan.expert_group) == (shards, group)


def test_experts_that_do_not_divide_the_devices():
    with pytest.raises(ConfigError, match="expert parallelism 3"):
        ParallelPlan.for_serving(tensor=8, expert=3)
    with pytest.raises(ConfigError, match="expert_tensor 3"):
        ParallelPlan(tensor=8, expert=1, expert_tensor=3)
