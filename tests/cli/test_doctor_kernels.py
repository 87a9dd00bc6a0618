"""What `argosy doctor` says of the kernels, with measuring replaced by known figures."""

from __future__ import annotations

import json

import pytest
from gguf.constants import GGMLQuantizationType

from argosy.cli import doctor_kernels
from argosy.cli.doctor_command import _print_kernels
from argosy.kernels.features import choose_isa
from argosy.kernels.measure import ProductRate, kind_of
from argosy.models.checkpoint import Checkpoint
from argosy.models.config import ModelConfig, RopeConfig
from argosy.models.gguf_header import GgufTensor


class FakeFile:
    def __init__(self, *tensors: GgufTensor) -> None:
        self.tensors = {t.name: t for t in tensors}


def tensor(name: str, kind: str, num_bytes: int, *shape: int) -> GgufTensor:
    return GgufTensor(name, GGMLQuantizationType[kind], shape, 0, num_bytes)


def checkpoint(*, tied: bool) -> Checkpoint:
    tensors = (
        tensor("token_embd.weight", "Q8_0", 6_800, 100, 64),
        tensor("blk.0.attn_q.weight", "Q4_0", 2_304, 64, 64),
        tensor("blk.0.ffn_down.weight", "Q4_0", 6_912, 64, 192),
        tensor("blk.0.ffn_up.weight", "TQ1_0", 1_000, 64, 256),
        tensor("output_norm.weight", "F32", 256, 64),
    )
    config = ModelConfig("llama", 100, 64, 192, 1, 4, 2, 16, 128, 1e-5, tied, RopeConfig(), (None,), attention_scale=0.25)
    total = sum(t.num_bytes for t in tensors)
    return Checkpoint("m", None, FakeFile(*tensors), config, 0, total, frozenset(), {})


@pytest.fixture
def known_figures(monkeypatch):
    asked = []

    def product(stored_type, columns, tokens, **_):
        asked.append((stored_type.name, columns, tokens))
        return ProductRate(kind_of(stored_type), tokens, 0.5, 1_000, 4_000)

    monkeypatch.setattr("argosy.kernels.measure.measure_product", product)
    monkeypatch.setattr("argosy.kernels.measure.measure_reading", lambda team: 8_000.0)
    monkeypatch.setattr("argosy.engine.executors.cpu_support.GgufFile", FakeFile)
    return asked


@pytest.mark.parametrize("tied", [True, False])
def test_of_a_model(known_figures, tied):
    report = doctor_kernels.report_kernels(checkpoint(tied=tied), 1)
    isa = choose_isa().value
    assert [(t.type, t.stored_bytes, t.kernel) for t in report.types] == [
        ("Q4_0", 2_304 + 6_912, f"q4_0, {isa}"),
        ("Q8_0", 6_800, f"q8_0, {isa}"),
        ("TQ1_0", 64 * 54, ""),
    ]
    assert known_figures == [("Q4_0", 192, 1), ("Q4_0", 192, 64), ("Q8_0", 64, 1), ("Q8_0", 64, 64)]
    assert report.types[0].alone_share == 2_000 / 8_000
    assert report.types[0].many_multiply_adds_per_s == 8_000
    everything = 6_800 + 2_304 + 6_912 + 1_000 + 256
    assert report.read_bytes_per_token == everything - (0 if tied else 6_800)
    assert report.limit_tokens_per_s == 8_000 / report.read_bytes_per_token
    json.dumps(report.as_json())


def test_the_table_tells_what_has_no_kernel(known_figures, capsys):
    _print_kernels(doctor_kernels.report_kernels(checkpoint(tied=True), 1))
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("Q8_0") and line.endswith("8 kMAC/s") and "25%" in line for line in lines)
    assert any(line.startswith("TQ1_0") and line.endswith("none: the model runs on torch") for line in lines)


def test_without_a_model_common_types_are_measured(known_figures):
    report = doctor_kernels.report_kernels(None, 1)
    assert {t.type for t in report.types} >= {"Q4_0", "Q4_K", "Q8_0", "F32"}
    assert (report.read_bytes_per_token, report.limit_tokens_per_s) == (0, 0.0)


def test_compiling_twice_has_nothing_to_say():
    doctor_kernels.compile_everything()
    assert doctor_kernels.compile_everything() == []
