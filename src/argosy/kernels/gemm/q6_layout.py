"""Layouts of weights with a signed scale per 16 columns, and the way there from ggml's blocks and back to floats.

A super-group is 256 columns of a panel's 16 rows: f16 d[16], then sixteen sub-groups of 16 columns, each four runs of four
columns. Two runs share the bytes of a stored run, the even one in the low nibbles and the odd one in the high ones; bits
2r and 2r+1 of a byte behind them complete run r:

    sub-group      s8 s[16]
    stored run 0   | row 0: columns 0-3 low, 4-7 high   | row 1 | … | row 15 |
    stored run 1   | row 0: columns 8-11 low, 12-15 high| row 1 | … | row 15 |
    high bits      | row 0: columns 0-3, bits 01 23 45 67 for runs 0 1 2 3   | row 1 | … | row 15 |      Q6_K only

    Q6_K (3360 bytes, 6.56 bits per weight): w = d * s * (q - 32), q in 0..63
    Q3_K (2336 bytes, 4.56 bits; stored files take 3.44): w = d * s * (q - 4), q in 0..7, as nibbles

Both are lossless.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from argosy.kernels.gemm.q4_layout import pad_rows
from argosy.kernels.packed import PANEL_ROWS, aligned_empty, num_panels

SUPER_GROUP = 256
SUB_GROUP = 16
SUBS = SUPER_GROUP // SUB_GROUP
FACTOR_BYTES = 2 * PANEL_ROWS
"""d of a super-group."""
SCALE_BYTES = PANEL_ROWS
"""s of a sub-group."""
RUN_BYTES = 4 * PANEL_ROWS
NIBBLE_BYTES = 2 * RUN_BYTES
HIGH_BYTES = RUN_BYTES


def sub_group_bytes(*, high_bits: bool) -> int:
    """Bytes of a sub-group."""
    return SCALE_BYTES + NIBBLE_BYTES + (HIGH_BYTES if high_bits else 0)


def pack_q6_k(blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """ggml Q6_K blocks, uint8 [rows, supers, 210], to panels, uint8 [panels, supers * 3360].

    A block is 128 bytes with the low nibbles, 64 with the high bits, 16 scales, d. Of each half (128 columns), byte l of 64
    nibble bytes has columns l and 64 + l, byte l of 32 high-bit bytes has columns l, 32 + l, 64 + l and 96 + l.
    """
    low = blocks[..., :128].reshape(*blocks.shape[:2], 2, 1, 64) >> np.array([[0], [4]], np.uint8) & 15
    high = blocks[..., 128:192].reshape(*blocks.shape[:2], 2, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8) & 3
    shape = (*blocks.shape[:2], SUPER_GROUP)
    return _pack(blocks[..., 208:], blocks[..., 192:208], low.reshape(shape) | high.reshape(shape) << 4, high_bits=True)


def pack_q3_k(blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """ggml Q3_K blocks, uint8 [rows, supers, 110], to panels, uint8 [panels, supers * 2336].

    A block is 32 bytes with the highest bits, 64 with the two low ones, 12 with sixteen 6-bit scales + 32, d. Byte l of the
    highest bits has columns l, 32 + l, …, 224 + l; byte l of each half's low ones has columns l, 32 + l, 64 + l and 96 + l.
    """
    highest = blocks[..., None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    low = blocks[..., 32:96].reshape(*blocks.shape[:2], 2, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8) & 3
    shape = (*blocks.shape[:2], SUPER_GROUP)
    stored = blocks[..., 96:108]
    nibbles = np.concatenate([stored[..., :8] & 15, stored[..., :8] >> 4], axis=-1)
    upper = stored[..., None, 8:] >> np.array([[0], [2], [4], [6]], np.uint8) & 3
    scales = (nibbles | upper.reshape(nibbles.shape) << 4) - np.uint8(32)
    return _pack(blocks[..., 108:], scales, low.reshape(shape) | highest.reshape(shape) << 2, high_bits=False)


def unpack_q6_k(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Panels to f32 [panels * 16, columns]."""
    return _unpack(data, high_bits=True, offset=32)


def unpack_q3_k(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Panels to f32 [panels * 16, columns]."""
    return _unpack(data, high_bits=False, offset=4)


def _pack(
    factors: NDArray[np.uint8], scales: NDArray[np.uint8], quants: NDArray[np.uint8], *, high_bits: bool
) -> NDArray[np.uint8]:
    """Bytes of d [rows, supers, 2], s [rows, supers, 16] and q [rows, supers, 256]."""
    rows, supers, _ = factors.shape
    panels, sub_bytes = num_panels(rows), sub_group_bytes(high_bits=high_bits)
    data = aligned_empty((panels, supers * (FACTOR_BYTES + SUBS * sub_bytes)), np.uint8)
    into = data.reshape(panels, supers, -1)
    tiles = pad_rows(factors).reshape(panels, PANEL_ROWS, supers, 2)
    into[..., :FACTOR_BYTES].reshape(panels, supers, PANEL_ROWS, 2)[...] = tiles.transpose(0, 2, 1, 3)
    subs = into[..., FACTOR_BYTES:].reshape(panels, supers, SUBS, sub_bytes)
    subs[..., :SCALE_BYTES] = pad_rows(scales).reshape(panels, PANEL_ROWS, supers, SUBS).transpose(0, 2, 3, 1)
    # q as [panel, super, sub, run, row, column of the run]; four columns move as one word
    words = np.ascontiguousarray(pad_rows(quants)).view(np.uint32).reshape(panels, PANEL_ROWS, supers, SUBS, 4)
    runs = np.ascontiguousarray(words.transpose(0, 2, 3, 4, 1)).view(np.uint8)
    runs = runs.reshape(panels, supers, SUBS, 4, PANEL_ROWS, 4)
    nibbles = (runs[:, :, :, 0::2] & 15) | (runs[:, :, :, 1::2] & 15) << 4
    subs[..., SCALE_BYTES : SCALE_BYTES + NIBBLE_BYTES] = nibbles.reshape(panels, supers, SUBS, NIBBLE_BYTES)
    if high_bits:
        high = runs >> 4
        joined = high[:, :, :, 0] | high[:, :, :, 1] << 2 | high[:, :, :, 2] << 4 | high[:, :, :, 3] << 6
        subs[..., SCALE_BYTES + NIBBLE_BYTES :] = joined.reshape(panels, supers, SUBS, HIGH_BYTES)
    return data


def _unpack(data: NDArray[np.uint8], *, high_bits: bool, offset: int) -> NDArray[np.float32]:
    panels, sub_bytes = len(data), sub_group_bytes(high_bits=high_bits)
    supers = data.reshape(panels, -1, FACTOR_BYTES + SUBS * sub_bytes)
    d = np.ascontiguousarray(supers[..., :FACTOR_BYTES]).view(np.float16).astype(np.float32)
    subs = supers[..., FACTOR_BYTES:].reshape(panels, -1, SUBS, sub_bytes)
    scales = d[:, :, None] * subs[..., :SCALE_BYTES].view(np.int8).astype(np.float32)
    stored = subs[..., SCALE_BYTES : SCALE_BYTES + NIBBLE_BYTES].reshape(*subs.shape[:3], 2, 1, PANEL_ROWS, 4)
    runs = np.concatenate([stored & 15, stored >> 4], axis=4).reshape(*subs.shape[:3], 4, PANEL_ROWS, 4)
    if high_bits:
        bits = subs[..., SCALE_BYTES + NIBBLE_BYTES :].reshape(*subs.shape[:3], 1, PANEL_ROWS, 4)
        runs = runs | (bits >> np.array([0, 2, 4, 6], np.uint8)[:, None, None] & 3) << 4
    values = scales[:, :, :, None, :, None] * (runs.astype(np.float32) - np.float32(offset))
    return values.transpose(0, 4, 1, 2, 3, 5).reshape(panels * PANEL_ROWS, -1)
