from __future__ import annotations

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from argosy.kernels.gemm.int8_layout import quantize_rows
from argosy.kernels.ops_embed import EMBED_KINDS, EmbedArgs, embed_op
from argosy.kernels.pack_ggml import PACKINGS, dequantize, pack
from argosy.kernels.packed import PackedMatrix, WeightKind

ROWS = 35
"""Two panels and a part of a third."""


def random_blocks(rng: np.random.Generator, ggml_type: GGMLQuantizationType, columns: int) -> np.ndarray:
    """Blocks of random bytes whose halves, wherever they lie, are finite."""
    block_columns, block_bytes = GGML_QUANT_SIZES[ggml_type]
    raw = rng.integers(0, 256, (ROWS, columns // block_columns * block_bytes), dtype=np.uint8)
    raw[:, 1::2] &= 0b1011_1111
    return raw


def test_every_kind_can_be_read():
    assert set(WeightKind) == set(EMBED_KINDS)


@pytest.mark.parametrize("ggml_type", list(PACKINGS), ids=lambda t: t.name)
@pytest.mark.parametrize("scale", [1.0, 25.298221588134766])
def test_rows_are_those_of_the_dequantised_matrix_bit_for_bit(run_op, rng, ggml_type, scale):
    matrix = pack(ggml_type, random_blocks(rng, ggml_type, 512))
    check_rows(run_op, matrix, scale)


@pytest.mark.parametrize("columns", [96, 61])
def test_rows_of_bytes_with_a_scale_per_row(run_op, rng, columns):
    check_rows(run_op, quantize_rows(rng.standard_normal((ROWS, columns), dtype=np.float32)), 3.0)


def check_rows(run_op, matrix: PackedMatrix, scale: float) -> None:
    token_ids = np.array([0, 34, 15, 16, 7, 0, *range(ROWS)], dtype=np.int64)
    out = np.full((len(token_ids), matrix.columns), np.nan, np.float32)
    args = EmbedArgs(
        token_ids.ctypes.data,
        matrix.data.ctypes.data,
        matrix.panel_bytes,
        matrix.columns,
        EMBED_KINDS[matrix.kind],
        scale,
        out.ctypes.data,
    )
    run_op(embed_op, args, len(token_ids), chunk=4)
    expected = dequantize(matrix)[token_ids] * np.float32(scale)
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(out, expected)
