"""Layouts of floating-point weights, and the way there from stored matrices and back.

A panel is its columns one after another, each 16 rows; no column is added.

    F32:  | c 0: row 0 … row 15 | c 1: row 0 … row 15 | …      4 bytes a weight
    BF16, F16: likewise                                        2 bytes a weight
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from argosy.kernels.gemm.q4_layout import pad_rows
from argosy.kernels.packed import PANEL_ROWS, aligned_empty, num_panels


def pack_floats(elements: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Bytes of the elements, uint8 [rows, columns, size], to panels, uint8 [panels, columns * 16 * size]."""
    rows, columns, size = elements.shape
    panels = num_panels(rows)
    data = aligned_empty((panels, columns * PANEL_ROWS * size), np.uint8)
    words = np.dtype(f"u{size}")
    tiles = pad_rows(elements).reshape(panels, PANEL_ROWS, columns * size).view(words)
    data.view(words).reshape(panels, columns, PANEL_ROWS)[...] = tiles.transpose(0, 2, 1)
    return data


def unpack_f32(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Panels to f32 [panels * 16, columns]."""
    return _by_row(data.view(np.float32))


def unpack_f16(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Panels to f32 [panels * 16, columns]."""
    return _by_row(data.view(np.float16).astype(np.float32))


def unpack_bf16(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Panels to f32 [panels * 16, columns]: a bf16 is the upper half of an f32."""
    return _by_row((data.view(np.uint16).astype(np.uint32) << 16).view(np.float32))


def _by_row(values: NDArray[np.float32]) -> NDArray[np.float32]:
    panels = len(values)
    return values.reshape(panels, -1, PANEL_ROWS).transpose(0, 2, 1).reshape(panels * PANEL_ROWS, -1)
