from __future__ import annotations

import pytest

from argosy.errors import ConfigError
from argosy.kernels import features
from argosy.kernels.features import REQUIRED_FEATURES, Isa, choose_isa, runnable_isas

AVX2 = frozenset({"avx2", "fma", "f16c"})


def test_the_fastest_comes_first():
    assert runnable_isas(REQUIRED_FEATURES[Isa.AVX512_VNNI]) == (Isa.AVX512_VNNI, Isa.AVX2, Isa.GENERIC)
    assert runnable_isas(AVX2 | {"avx512f"}) == (Isa.AVX2, Isa.GENERIC)


@pytest.mark.parametrize("missing", sorted(AVX2))
def test_every_required_feature_counts(missing):
    assert runnable_isas(AVX2 - {missing}) == (Isa.GENERIC,)
    assert Isa.AVX512_VNNI not in runnable_isas(REQUIRED_FEATURES[Isa.AVX512_VNNI] - {missing})


def test_choice(monkeypatch):
    monkeypatch.setattr(features, "host_features", lambda: AVX2 | {"sse4.2"})
    assert choose_isa() is Isa.AVX2
    assert choose_isa(Isa.GENERIC) is Isa.GENERIC
    with pytest.raises(ConfigError, match=r"cannot run avx512_vnni kernels \(it lacks avx512bw, .*avx512vnni\)"):
        choose_isa(Isa.AVX512_VNNI)


def test_the_host_is_described():
    assert Isa.GENERIC in runnable_isas()
    target = features.host_target()
    assert target.triple
    assert target.cpu
    for name in features.host_features():
        assert f"+{name}" in target.features
