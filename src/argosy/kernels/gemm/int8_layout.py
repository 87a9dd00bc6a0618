"""Layout of 8-bit weights with one scale per output row, made from floating-point weights.

A panel is f32 d[16], then its columns in runs of four, each 64 bytes as in `q8_layout.py`; columns are padded with zeros to
whole groups of 32. w ≈ d * q with d = max |w| / 127 of the row, an error of at most d / 2.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from argosy.kernels.packed import PANEL_ROWS, PackedMatrix, WeightKind, aligned_empty, num_panels

FACTOR_BYTES = 4 * PANEL_ROWS
"""d of a panel."""
RUN_BYTES = 4 * PANEL_ROWS
RUNS_PER_GROUP = 8
_GROUP = 4 * RUNS_PER_GROUP


def quantize_rows(weights: NDArray[np.float32], bias: NDArray[np.float32] | None = None) -> PackedMatrix:
    """Round `weights`, f32 [rows, columns], to bytes; `bias`, f32 [rows], is kept. A row of zeros stays zero."""
    rows, columns = weights.shape
    d = np.abs(weights).max(axis=1) / np.float32(127)
    with np.errstate(invalid="ignore", divide="ignore"):  # a weight that is not finite shows in the logits
        quants = np.where(d[:, None] > 0, np.rint(weights / d[:, None]), np.float32(0)).astype(np.int8)
    padded = -(-columns // _GROUP) * _GROUP
    panels = num_panels(rows)
    data = aligned_empty((panels, FACTOR_BYTES + padded * PANEL_ROWS), np.uint8)
    factors = np.zeros(panels * PANEL_ROWS, np.float32)
    factors[:rows] = d
    data[:, :FACTOR_BYTES].view(np.float32)[...] = factors.reshape(panels, PANEL_ROWS)
    tiles = np.zeros((panels * PANEL_ROWS, padded), np.int8)
    tiles[:rows, :columns] = quants
    runs = tiles.reshape(panels, PANEL_ROWS, padded // 4, 4).transpose(0, 2, 1, 3)
    data[:, FACTOR_BYTES:].view(np.int8).reshape(panels, padded // 4, PANEL_ROWS, 4)[...] = runs
    return PackedMatrix(WeightKind.INT8, rows, columns, data, bias)


def unpack_int8(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Panels to f32 [panels * 16, columns padded to a group]."""
    panels = len(data)
    d = data[:, :FACTOR_BYTES].view(np.float32)
    runs = data[:, FACTOR_BYTES:].view(np.int8).reshape(panels, -1, PANEL_ROWS, 4)
    values = runs.transpose(0, 2, 1, 3).reshape(panels, PANEL_ROWS, -1).astype(np.float32)
    return (values * d[..., None]).reshape(panels * PANEL_ROWS, -1)
