import math

import pytest

from argosy.cost.efficiency import Constants, Efficiency, FittedRange
from argosy.cost.op import OpKind
from argosy.errors import ConfigError


def test_efficiency_rises_to_its_maximum_with_rows():
    efficiency = Efficiency(compute=0.8, memory=0.9, half_rows=100)
    values = [efficiency.compute_at(rows) for rows in (1, 100, 10_000)]
    assert values == sorted(values)
    assert efficiency.compute_at(100) == pytest.approx(0.4)
    assert efficiency.compute_at(1e12) == pytest.approx(0.8)


def test_rows_without_meaning_get_the_maximum():
    assert Efficiency(compute=0.8, memory=0.9, half_rows=100).compute_at(0) == 0.8


@pytest.mark.parametrize("bad", [0.0, 1.01, -1.0, math.nan])
@pytest.mark.parametrize("name", ["compute", "memory"])
def test_no_efficiency_beats_physics(name, bad):
    with pytest.raises(ConfigError, match=f"{name} efficiency"):
        Efficiency(**({"compute": 1.0, "memory": 1.0} | {name: bad}))


@pytest.mark.parametrize("name", ["launch_s", "collective_s", "point_to_point_s", "layer_s", "step_s", "sequence_s"])
@pytest.mark.parametrize("bad", [-1e-9, math.nan, math.inf])
def test_no_overhead_is_negative(name, bad):
    with pytest.raises(ConfigError, match=name):
        Constants(**{name: bad})


@pytest.mark.parametrize("changes", [{"link_efficiency": 1.2}, {"link_efficiency": 0.0}, {"overlap_fraction": 1.5}])
def test_shares_out_of_range(changes):
    with pytest.raises(ConfigError, match=next(iter(changes))):
        Constants().replace(**changes)


def test_every_kind_of_op_needs_an_efficiency():
    with pytest.raises(ConfigError, match="gemm"):
        Constants(efficiencies={kind: Efficiency(1.0, 1.0) for kind in OpKind if kind is not OpKind.GEMM})


def test_extrapolation_is_named():
    constants = Constants(fitted={"tokens": FittedRange(1, 512), "context": FittedRange(128, 8192)})
    assert constants.extrapolates(tokens=64, context=100_000, never_fitted=1) == ("context",)
