"""What is the same for every kind of weight: rows, tokens, bias, accumulation."""

from __future__ import annotations

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize

from argosy.errors import UnsupportedModel
from argosy.kernels.features import Isa, Target
from argosy.kernels.gemm import registry
from argosy.kernels.gemm.op import TOKEN_BLOCK_BYTES
from argosy.kernels.gemm.registry import TILES, gemm_module
from argosy.kernels.jit import compile_assembly
from argosy.kernels.pack_ggml import dequantize, pack
from argosy.kernels.packed import PackedMatrix, WeightKind

ICE_LAKE = Target("x86_64-unknown-linux-gnu", "icelake-server", "")
FLOAT_KINDS = (WeightKind.F32, WeightKind.F16, WeightKind.BF16)
OLD_X86 = Target("x86_64-unknown-linux-gnu", "x86-64", "")
ARM = Target("aarch64-unknown-linux-gnu", "neoverse-n1", "")


def matrix_of(rng: np.random.Generator, rows: int, columns: int) -> PackedMatrix:
    weights = rng.standard_normal((rows, columns)).astype(np.float32)
    return pack(GGMLQuantizationType.Q4_1, quantize(weights, GGMLQuantizationType.Q4_1))


@pytest.mark.parametrize("rows", [1, 7, 8, 15, 16, 17, 40])
def test_a_partial_panel_writes_its_rows_and_no_more(gemm, random_activations, rng, rows):
    whole = matrix_of(rng, 48, 64)
    bias = rng.standard_normal(48).astype(np.float32)
    activations = random_activations(rng, 6, 64)
    expected = gemm(whole.with_bias(bias), activations)
    # Under the rows that count lie others: what the kernel computes for padding must stay unwritten, whatever it is.
    part = PackedMatrix(whole.kind, rows, 64, whole.data[: -(-rows // 16)], bias[:rows].copy())
    out = np.full((6, rows + 3), 77, np.float32)
    gemm(part, activations, out=out)
    assert np.array_equal(out[:, :rows], expected[:, :rows])
    assert np.all(out[:, rows:] == 77)


@pytest.mark.parametrize("rows", [32, 21])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("accumulate", [False, True])
def test_bias_and_accumulation(gemm, random_activations, rng, rows, has_bias, accumulate):
    matrix = matrix_of(rng, rows, 64)
    bias = rng.standard_normal(rows).astype(np.float32)
    activations = random_activations(rng, 5, 64)
    product = gemm(matrix, activations)
    before = rng.standard_normal((5, rows)).astype(np.float32)
    out = gemm(matrix.with_bias(bias if has_bias else None), activations, out=before.copy(), accumulate=accumulate)
    with_bias = product + bias if has_bias else product
    assert np.array_equal(out, with_bias + before if accumulate else with_bias)


def test_more_tokens_than_one_block(gemm, random_activations, rng):
    columns, tokens = 16384, 40
    assert columns * tokens > 2 * TOKEN_BLOCK_BYTES
    matrix = matrix_of(rng, 32, columns)
    activations = random_activations(rng, tokens, columns)
    together = gemm(matrix, activations)
    expected = activations.values() @ dequantize(matrix).astype(np.float64).T
    assert np.allclose(together, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert np.array_equal(gemm(matrix, activations, out=together.copy(), accumulate=True), together + together)
    for token in (0, 15, 16, 31, 39):
        assert np.array_equal(gemm(matrix, activations.only(token))[0], together[token])


def test_no_tokens_and_no_items_write_nothing(gemm, random_activations, rng):
    matrix = matrix_of(rng, 16, 32)
    out = np.full((1, 16), 5, np.float32)
    gemm(matrix, random_activations(rng, 0, 32), out=out)
    assert np.all(out == 5)
    empty = PackedMatrix(matrix.kind, 16, 32, matrix.data[:0])
    gemm(empty, random_activations(rng, 1, 32), out=out)
    assert np.all(out == 5)


def test_a_scale_that_is_not_finite_shows_in_every_row(gemm, make_activations, rng):
    scales = np.ones((3, 4), np.float32)
    scales[1, 2] = np.inf
    with np.errstate(invalid="ignore"):
        activations = make_activations(rng.integers(1, 127, (3, 128), dtype=np.int8), scales)
    out = gemm(matrix_of(rng, 32, 128), activations)
    assert not np.isfinite(out[1]).any()
    assert np.isfinite(out[[0, 2]]).all()


QUANTISED = [kind for kind in WeightKind if kind not in FLOAT_KINDS]


@pytest.mark.parametrize("kind", [k for k in QUANTISED if (k, Isa.AVX512_VNNI) in TILES], ids=lambda k: k.value)
def test_vnni_uses_its_instruction(kind):
    assembly = compile_assembly(gemm_module(kind, Isa.AVX512_VNNI)[0], ICE_LAKE)
    assert "vpdpbusd" in assembly
    assert "zmm" in assembly
    assert "vpmaddubsw" not in assembly


@pytest.mark.parametrize("kind", [WeightKind.Q4_0, WeightKind.Q4_1, WeightKind.Q4_K], ids=lambda k: k.value)
def test_tiles_that_wait_for_memory_ask_ahead(kind):
    module, name = gemm_module(kind, Isa.AVX512_VNNI)
    assembly = compile_assembly(module, ICE_LAKE)
    bodies = {n: assembly.split(f"\n{name}_tile{n}:")[1].split("retq")[0] for n in (1, 2, 4, 8)}
    assert {n: "prefetcht0" in body for n, body in bodies.items()} == {1: True, 2: True, 4: False, 8: False}


@pytest.mark.parametrize("kind", [k for k in WeightKind if (k, Isa.GENERIC) in TILES], ids=lambda k: k.value)
@pytest.mark.parametrize("target", [OLD_X86, ARM], ids=["x86-64", "aarch64"])
def test_generic_code_compiles_for_any_processor_and_calls_no_library(kind, target):
    module, name = gemm_module(kind, Isa.GENERIC)
    assembly = compile_assembly(module, target)
    assert f"{name}_tile1" in assembly
    for library_function in ("fmaf", "extendhfsf", "memcpy", "memset", "roundeven"):
        assert library_function not in assembly


def test_a_kind_without_a_kernel_is_refused(monkeypatch):
    monkeypatch.setattr(registry, "TILES", {})
    with pytest.raises(UnsupportedModel, match="no avx2 kernel multiplies weights of kind q4_0"):
        gemm_module(WeightKind.Q4_0, Isa.AVX2)
