"""Layout of 2-bit weights with a scale and a minimum per 16 columns, and the way there from ggml's blocks and back.

    Q2_K super-group of 256 columns (1344 bytes, 2.625 bits per weight): f16 d[16], f16 m[16], then sixteen sub-groups of

    u8 s | t << 4 [16]
    | row 0: columns 0-3, bits 01 23 45 67 for columns + 0, + 4, + 8, + 12 | row 1 | … | row 15 |      w = d * s * q - m * t

Lossless, at the size of the stored blocks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from argosy.kernels.gemm.q4_layout import pad_rows
from argosy.kernels.packed import PANEL_ROWS, aligned_empty, num_panels

SUPER_GROUP = 256
SUB_GROUP = 16
SUBS = SUPER_GROUP // SUB_GROUP
HALVES_BYTES = 2 * PANEL_ROWS
FACTOR_BYTES = 2 * HALVES_BYTES
"""d and m of a super-group."""
SCALE_BYTES = PANEL_ROWS
"""s and t of a sub-group."""
SUB_BYTES = SCALE_BYTES + 4 * PANEL_ROWS
SUPER_BYTES = FACTOR_BYTES + SUBS * SUB_BYTES

_SHIFTS = np.array([0, 2, 4, 6], np.uint8)


def pack_q2_k(blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """ggml Q2_K blocks, uint8 [rows, supers, 84], to panels, uint8 [panels, supers * 1344].

    A block is 16 bytes s | t << 4, 64 with the quants, d, m. Of each half (128 columns), byte l of 32 quant bytes has the
    columns l, 32 + l, 64 + l and 96 + l.
    """
    rows, supers, _ = blocks.shape
    panels = num_panels(rows)
    data = aligned_empty((panels, supers * SUPER_BYTES), np.uint8)
    into = data.reshape(panels, supers, SUPER_BYTES)
    tiles = pad_rows(blocks).reshape(panels, PANEL_ROWS, supers, -1)
    factors = tiles[..., 80:].reshape(panels, PANEL_ROWS, supers, 2, 2)
    into[..., :FACTOR_BYTES].reshape(panels, supers, 2, PANEL_ROWS, 2)[...] = factors.transpose(0, 2, 3, 1, 4)
    subs = into[..., FACTOR_BYTES:].reshape(panels, supers, SUBS, SUB_BYTES)
    subs[..., :SCALE_BYTES] = tiles[..., :SUBS].transpose(0, 2, 3, 1)
    quants = tiles[..., SUBS:80].reshape(panels, PANEL_ROWS, supers, 2, 1, 32) >> _SHIFTS[:, None] & np.uint8(3)
    # columns 16 sub + 4 run + c as [panel, super, sub, run, row, c]
    runs = quants.reshape(panels, PANEL_ROWS, supers, SUBS, 4, 4).transpose(0, 2, 3, 4, 1, 5)
    merged = np.bitwise_or.reduce(runs << _SHIFTS[:, None, None], axis=3)
    subs[..., SCALE_BYTES:] = merged.reshape(panels, supers, SUBS, 4 * PANEL_ROWS)
    return data


def unpack_q2_k(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Panels to f32 [panels * 16, columns]."""
    panels = len(data)
    supers = data.reshape(panels, -1, SUPER_BYTES)
    factors = np.ascontiguousarray(supers[..., :FACTOR_BYTES]).view(np.float16).astype(np.float32)
    subs = supers[..., FACTOR_BYTES:].reshape(panels, -1, SUBS, SUB_BYTES)
    d = factors[:, :, None, :PANEL_ROWS] * (subs[..., :SCALE_BYTES] & 15).astype(np.float32)
    m = factors[:, :, None, PANEL_ROWS:] * (subs[..., :SCALE_BYTES] >> 4).astype(np.float32)
    stored = subs[..., SCALE_BYTES:].reshape(*subs.shape[:3], 1, PANEL_ROWS, 4)
    runs = (stored >> _SHIFTS[:, None, None] & np.uint8(3)).astype(np.float32)
    values = d[:, :, :, None, :, None] * runs - m[:, :, :, None, :, None]
    return values.transpose(0, 4, 1, 2, 3, 5).reshape(panels * PANEL_ROWS, -1)
