"""From the tensors of a GGUF file to packed matrices, and back to floats for reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from argosy.errors import UnsupportedModel
from argosy.kernels.gemm import float_layout, int8_layout, q2_layout, q4_layout, q5_layout, q6_layout, q8_layout
from argosy.kernels.packed import PackedMatrix, WeightKind


@dataclass(frozen=True, slots=True)
class Packing:
    """How one ggml type becomes a `PackedMatrix`.

    Attributes:
        kind: of the result.
        pack: ggml blocks, uint8 [rows, blocks per row, block bytes], to panels, uint8 [panels, panel bytes].
    """

    kind: WeightKind
    pack: Callable[[NDArray[np.uint8]], NDArray[np.uint8]]


PACKINGS: Mapping[GGMLQuantizationType, Packing] = MappingProxyType(
    {
        GGMLQuantizationType.F32: Packing(WeightKind.F32, float_layout.pack_floats),
        GGMLQuantizationType.F16: Packing(WeightKind.F16, float_layout.pack_floats),
        GGMLQuantizationType.BF16: Packing(WeightKind.BF16, float_layout.pack_floats),
        GGMLQuantizationType.Q4_0: Packing(WeightKind.Q4_0, q4_layout.pack_q4_0),
        GGMLQuantizationType.Q4_1: Packing(WeightKind.Q4_1, q4_layout.pack_q4_1),
        GGMLQuantizationType.Q4_K: Packing(WeightKind.Q4_K, q4_layout.pack_q4_k),
        GGMLQuantizationType.Q5_0: Packing(WeightKind.Q5_0, q5_layout.pack_q5_0),
        GGMLQuantizationType.Q5_1: Packing(WeightKind.Q5_1, q5_layout.pack_q5_1),
        GGMLQuantizationType.Q5_K: Packing(WeightKind.Q5_K, q5_layout.pack_q5_k),
        GGMLQuantizationType.Q2_K: Packing(WeightKind.Q2_K, q2_layout.pack_q2_k),
        GGMLQuantizationType.Q3_K: Packing(WeightKind.Q3_K, q6_layout.pack_q3_k),
        GGMLQuantizationType.Q6_K: Packing(WeightKind.Q6_K, q6_layout.pack_q6_k),
        GGMLQuantizationType.Q8_0: Packing(WeightKind.Q8_0, q8_layout.pack_q8_0),
        GGMLQuantizationType.IQ4_NL: Packing(WeightKind.Q8_0, q8_layout.pack_iq4_nl),
    }
)
"""The ggml types that can be packed."""

_UNPACK: Mapping[WeightKind, Callable[[NDArray[np.uint8]], NDArray[np.float32]]] = MappingProxyType(
    {
        WeightKind.INT8: int8_layout.unpack_int8,
        WeightKind.F32: float_layout.unpack_f32,
        WeightKind.F16: float_layout.unpack_f16,
        WeightKind.BF16: float_layout.unpack_bf16,
        WeightKind.Q4_0: q4_layout.unpack_q4_0,
        WeightKind.Q4_1: q4_layout.unpack_q4_1,
        WeightKind.Q4_K: q4_layout.unpack_q4_k,
        WeightKind.Q5_0: q5_layout.unpack_q5_0,
        WeightKind.Q5_1: q5_layout.unpack_q5_1,
        WeightKind.Q5_K: q5_layout.unpack_q5_k,
        WeightKind.Q2_K: q2_layout.unpack_q2_k,
        WeightKind.Q3_K: q6_layout.unpack_q3_k,
        WeightKind.Q6_K: q6_layout.unpack_q6_k,
        WeightKind.Q8_0: q8_layout.unpack_q8_0,
    }
)
"""Panels, uint8 [panels, panel bytes], to f32 [panels * 16, columns padded to a group]."""


def pack(ggml_type: GGMLQuantizationType, raw: NDArray[np.uint8]) -> PackedMatrix:
    """The matrix stored as `raw`, uint8 [rows, bytes per row], as `GgufFile.raw` gives it. Copies; keeps every bit.

    Raises:
        UnsupportedModel: no kernel multiplies weights of this type.
    """
    packing = PACKINGS.get(ggml_type)
    if packing is None:
        known = ", ".join(sorted(t.name for t in PACKINGS))
        raise UnsupportedModel(f"weights of type {ggml_type.name} have no CPU kernel; there are kernels for {known}")
    block_columns, block_bytes = GGML_QUANT_SIZES[ggml_type]
    rows, row_bytes = raw.shape
    assert row_bytes % block_bytes == 0, "a row is a whole number of blocks"
    blocks = raw.reshape(rows, -1, block_bytes)
    return PackedMatrix(packing.kind, rows, blocks.shape[1] * block_columns, packing.pack(blocks))


def dequantize(matrix: PackedMatrix) -> NDArray[np.float32]:
    """The weights of `matrix` as f32 [rows, columns]; what the kernels are held to."""
    return _UNPACK[matrix.kind](matrix.data)[: matrix.rows, : matrix.columns]
