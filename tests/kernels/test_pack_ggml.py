"""Packed matrices hold what the files hold: dequantised they equal the gguf library's values bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize as ggml_dequantize

from argosy.errors import UnsupportedModel
from argosy.kernels.gemm.q4_layout import load_quants
from argosy.kernels.pack_ggml import dequantize, pack

TYPES = [GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q4_K]
BITS = {GGMLQuantizationType.Q4_0: 4.5, GGMLQuantizationType.Q4_1: 5, GGMLQuantizationType.Q4_K: 4.625}


def random_rows(rng: np.random.Generator, ggml_type: GGMLQuantizationType, rows: int, columns: int) -> np.ndarray:
    """Every bit random, except that factors (the leading halves of a block) are finite."""
    block_columns, block_bytes = GGML_QUANT_SIZES[ggml_type]
    blocks = rng.integers(0, 256, (rows, columns // block_columns, block_bytes), dtype=np.uint8)
    num_factors = 1 if ggml_type is GGMLQuantizationType.Q4_0 else 2
    factors = blocks[..., : 2 * num_factors].copy().view(np.uint16)
    factors[factors & 0x7C00 == 0x7C00] ^= 0x4000
    blocks[..., : 2 * num_factors] = factors.view(np.uint8)
    return blocks.reshape(rows, -1)


@pytest.mark.parametrize("ggml_type", TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize("rows", [1, 16, 17, 50])
def test_every_value_is_kept(rng, ggml_type, rows):
    raw = random_rows(rng, ggml_type, rows, 768)
    matrix = pack(ggml_type, raw)
    assert (matrix.rows, matrix.columns) == (rows, 768)
    assert np.array_equal(dequantize(matrix), ggml_dequantize(raw, ggml_type))


@pytest.mark.parametrize("ggml_type", TYPES, ids=lambda t: t.name)
def test_bits_per_weight_and_padding(rng, ggml_type):
    whole = pack(ggml_type, random_rows(rng, ggml_type, 32, 512))
    assert whole.num_bytes * 8 == 32 * 512 * BITS[ggml_type]
    partial = pack(ggml_type, random_rows(rng, ggml_type, 3, 512))
    assert partial.num_panels == 1
    assert partial.data.ctypes.data % 64 == 0


@pytest.mark.parametrize("ggml_type", TYPES, ids=lambda t: t.name)
def test_rows_are_independent(rng, ggml_type):
    raw = random_rows(rng, ggml_type, 20, 256)
    order = rng.permutation(20)
    assert np.array_equal(dequantize(pack(ggml_type, raw[order])), dequantize(pack(ggml_type, raw))[order])


def test_the_drawing_of_a_group():
    """Run j of row r: columns 4j … 4j+3 low, 16+4j … 16+4j+3 high."""
    quants = np.zeros((1, 1, 256), np.uint8)
    quants[0, 0, 64 * 2 + 4 * 5 + 1] = 0xA3
    values = load_quants(quants)
    assert values[0, 0, 5, 4 * 2 + 1] == 3
    assert values[0, 0, 5, 16 + 4 * 2 + 1] == 10
    assert values.sum() == 13


def test_types_without_a_kernel_are_named():
    with pytest.raises(UnsupportedModel, match=r"type TQ1_0 have no CPU kernel.*Q4_0"):
        pack(GGMLQuantizationType.TQ1_0, np.zeros((1, 54), np.uint8))
