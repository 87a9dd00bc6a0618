"""Weight matrices in the order the kernels read them.

A panel is 16 consecutive output rows; a matrix is its panels one after another, so that a kernel walks memory forwards.
Within a panel the columns come in groups, and within a group each kind has its own layout (`gemm/` documents them). Rows
beyond the last are zeros; so are columns up to a whole group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

PANEL_ROWS = 16
"""Output rows of a panel: two vectors of 8 floats with AVX2, one of 16 with AVX-512."""

ALIGNMENT_BYTES = 64

Scalar = TypeVar("Scalar", bound=np.generic)


class WeightKind(StrEnum):
    """How the weights of a matrix are stored, and thereby which kernel multiplies them."""

    Q2_K = "q2_k"
    """u2 q, u4 s and t per 16, f16 d and m per 256 columns; w = d * s * q - m * t. 2.625 bits."""
    Q3_K = "q3_k"
    """u3 q stored as u4, s8 s per 16, f16 d per 256 columns; w = d * s * (q - 4). 4.5625 bits."""
    Q4_0 = "q4_0"
    """u4 q, f16 d per 32 columns; w = d * (q - 8). 4.5 bits per weight."""
    Q4_1 = "q4_1"
    """u4 q, f16 d and m per 32 columns; w = d * q + m. 5 bits."""
    Q4_K = "q4_k"
    """u4 q, u8 s and t per 32, f16 d and m per 256 columns; w = d * s * q - m * t. 4.625 bits."""
    Q5_0 = "q5_0"
    """u5 q, f16 d per 32 columns; w = d * (q - 16). 5.5 bits."""
    Q5_1 = "q5_1"
    """u5 q, f16 d and m per 32 columns; w = d * q + m. 6 bits."""
    Q5_K = "q5_k"
    """u5 q, otherwise as Q4_K. 5.625 bits."""
    Q6_K = "q6_k"
    """u6 q, s8 s per 16, f16 d per 256 columns; w = d * s * (q - 32). 6.5625 bits."""
    Q8_0 = "q8_0"
    """s8 q, f16 d per 32 columns; w = d * q. 8.5 bits."""
    INT8 = "int8"
    """s8 q, f32 d per row; w = d * q."""
    BF16 = "bf16"
    F16 = "f16"
    F32 = "f32"


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A weight matrix [rows, columns] of a linear layer, y = W x + b.

    Attributes:
        kind: of storage.
        rows, columns: of the matrix, without padding.
        data: uint8 [num_panels, panel_bytes], C-contiguous, starting at a multiple of 64 bytes.
        bias: f32 [rows], or None.
    """

    kind: WeightKind
    rows: int
    columns: int
    data: NDArray[np.uint8]
    bias: NDArray[np.float32] | None = None

    @property
    def num_panels(self) -> int:
        """Panels of `PANEL_ROWS` rows; the last may be partial."""
        return len(self.data)

    @property
    def panel_bytes(self) -> int:
        """Bytes from one panel to the next."""
        return int(self.data.shape[1])

    @property
    def num_bytes(self) -> int:
        """Bytes held by weights and scales, padding included."""
        return self.data.nbytes

    def with_bias(self, bias: NDArray[np.float32] | None) -> PackedMatrix:
        """This matrix with another bias; shares `data`."""
        assert bias is None or bias.shape == (self.rows,)
        return replace(self, bias=bias)


def num_panels(rows: int) -> int:
    """Panels that hold `rows` rows."""
    return -(-rows // PANEL_ROWS)


def aligned_empty(shape: tuple[int, ...], dtype: type[Scalar] | np.dtype[Scalar]) -> NDArray[Scalar]:
    """An uninitialised C-contiguous array that starts at a multiple of 64 bytes."""
    num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    buffer = np.empty(num_bytes + ALIGNMENT_BYTES, np.uint8)
    start = -buffer.ctypes.data % ALIGNMENT_BYTES
    return buffer[start : start + num_bytes].view(dtype).reshape(shape)


def aligned(array: NDArray[Scalar]) -> NDArray[Scalar]:
    """`array`, copied if it is not C-contiguous or does not start at a multiple of 64 bytes."""
    if array.flags.c_contiguous and array.ctypes.data % ALIGNMENT_BYTES == 0:
        return array
    copy = aligned_empty(array.shape, array.dtype.type)
    copy[...] = array
    return copy


def concat_rows(matrices: Sequence[PackedMatrix]) -> PackedMatrix:
    """One matrix with the rows of all, in order (q, k and v in one product). The data are copied.

    All must have one kind and one number of columns, and all but the last whole panels; biases are joined, absent ones as
    zeros if any is present.
    """
    _check_alike(matrices)
    assert all(m.rows % PANEL_ROWS == 0 for m in matrices[:-1]), "only the last matrix may end in a partial panel"
    data = aligned_empty((sum(m.num_panels for m in matrices), matrices[0].panel_bytes), np.uint8)
    np.concatenate([m.data for m in matrices], out=data)
    bias = None
    if any(m.bias is not None for m in matrices):
        bias = np.concatenate([np.zeros(m.rows, np.float32) if m.bias is None else m.bias for m in matrices])
    return PackedMatrix(matrices[0].kind, sum(m.rows for m in matrices), matrices[0].columns, data, bias)


def interleave_panels(first: PackedMatrix, second: PackedMatrix) -> PackedMatrix:
    """Panels of both in turn (gate 0, up 0, gate 1, up 1, …), so that one kernel call has both halves of a gated unit.

    Both must have one kind and shape, whole panels and no bias. The data are copied.
    """
    _check_alike((first, second))
    assert first.rows == second.rows
    assert first.rows % PANEL_ROWS == 0
    assert first.bias is None
    assert second.bias is None
    data = aligned_empty((2 * first.num_panels, first.panel_bytes), np.uint8)
    data[0::2], data[1::2] = first.data, second.data
    return PackedMatrix(first.kind, 2 * first.rows, first.columns, data)


def _check_alike(matrices: Sequence[PackedMatrix]) -> None:
    assert len({(m.kind, m.columns) for m in matrices}) == 1, "matrices of one product must have one kind and width"
