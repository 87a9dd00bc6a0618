from __future__ import annotations

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from argosy.errors import UnsupportedModel
from argosy.kernels import measure
from argosy.kernels.features import choose_isa
from argosy.kernels.jit import JitCompiler
from argosy.kernels.measure import kind_of, measure_product, measure_reading
from argosy.kernels.packed import WeightKind
from argosy.kernels.team import Team


@pytest.fixture
def team():
    team = Team(2)
    yield team
    team.close()


def test_reading_counts_the_whole_working_set(team, monkeypatch):
    monkeypatch.setattr(measure, "_best_s", lambda team, tape: (team.run(tape), 0.25)[1])
    assert measure_reading(team, 2**20) == 4 * 2**20


@pytest.mark.parametrize(("stored", "kind"), [("Q4_0", "q4_0"), ("Q6_K", "q6_k"), ("BF16", "bf16")])
def test_a_product_counts_its_weights_and_its_multiply_adds(team, stored, kind):
    stored_type = GGMLQuantizationType[stored]
    rate = measure_product(stored_type, 300, 3, team=team, isa=choose_isa(), jit=JitCompiler(), working_set_bytes=100_000)
    assert rate.kind == WeightKind(kind) == kind_of(stored_type)
    assert 50_000 < rate.weight_bytes <= 100_000
    columns = {"Q4_0": 320, "Q6_K": 512, "BF16": 300}[stored]
    assert rate.multiply_adds % (3 * 16 * columns) == 0
    assert rate.bytes_per_s == rate.weight_bytes / rate.seconds
    assert rate.multiply_adds_per_s == rate.multiply_adds / rate.seconds


def test_a_type_without_a_kernel_is_refused(team):
    assert kind_of(GGMLQuantizationType.TQ1_0) is None
    with pytest.raises(UnsupportedModel, match="TQ1_0"):
        measure_product(GGMLQuantizationType.TQ1_0, 256, 1, team=team, isa=choose_isa(), jit=JitCompiler())


def test_the_sum_of_a_block():
    data, out = np.arange(128, dtype=np.float32), np.zeros(8, np.float32)
    measure._sum_block(data.ctypes.data, 128, out.ctypes.data)
    assert out.sum() == sum(range(128))
