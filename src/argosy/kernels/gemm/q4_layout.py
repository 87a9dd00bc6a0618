"""Layouts of 4-bit weights, and the way there from ggml's blocks and back to floats.

A group is 32 columns of a panel's 16 rows. Its quants are four runs of 64 bytes; run j holds, row after row, columns 4j to
4j+3 in the low nibbles and 16+4j to 19+4j in the high ones, which are the pairs ggml's bytes hold already:

    run j     | row 0          | row 1          | … | row 15         |
    low       | 4j  …     4j+3 | 4j  …     4j+3 |   | 4j  …     4j+3 |
    high      | 16+4j … 19+4j  | 16+4j … 19+4j  |   | 16+4j … 19+4j  |

    Q4_0 group (288 bytes): f16 d[16], quants
    Q4_1 group (320 bytes): f16 d[16], f16 m[16], quants
    Q4_K super-group of 256 columns (2368 bytes): f16 d[16], f16 m[16], then 8 x (u8 s[16], u8 t[16], quants)

All are lossless: every scale is kept as stored.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from argosy.kernels.packed import PANEL_ROWS, aligned_empty, num_panels

GROUP = 32
SUPER_GROUP = 256
GROUPS_PER_SUPER = SUPER_GROUP // GROUP

HALVES_BYTES = 2 * PANEL_ROWS
"""One f16 per row."""
FACTOR_BYTES = 2 * HALVES_BYTES
"""d and m of a super-group."""
SUB_SCALE_BYTES = 2 * PANEL_ROWS
"""s and t of a group."""
QUANT_BYTES = PANEL_ROWS * GROUP // 2
"""Quants of a group."""
NUM_RUNS = 4
RUN_BYTES = QUANT_BYTES // NUM_RUNS

_SUPER_BYTES = FACTOR_BYTES + GROUPS_PER_SUPER * (SUB_SCALE_BYTES + QUANT_BYTES)


def pack_q4_0(blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """ggml Q4_0 blocks, uint8 [rows, groups, 18], to panels, uint8 [panels, groups * 288]."""
    return _pack_plain(blocks, num_scales=1)


def pack_q4_1(blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """ggml Q4_1 blocks, uint8 [rows, groups, 20], to panels, uint8 [panels, groups * 320]."""
    return _pack_plain(blocks, num_scales=2)


def unpack_q4_0(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Panels to f32 [panels * 16, columns]."""
    (d,), quants = _unpack_plain(data, num_scales=1)
    return by_row(d[..., None] * (quants.astype(np.float32) - np.float32(8)))


def unpack_q4_1(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Panels to f32 [panels * 16, columns]."""
    (d, m), quants = _unpack_plain(data, num_scales=2)
    return by_row(d[..., None] * quants.astype(np.float32) + m[..., None])


def pack_q4_k(blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """ggml Q4_K blocks, uint8 [rows, super-groups, 144], to panels, uint8 [panels, super-groups * 2368]."""
    rows, supers, _ = blocks.shape
    panels = num_panels(rows)
    data = aligned_empty((panels, supers * _SUPER_BYTES), np.uint8)
    into = data.reshape(panels, supers, _SUPER_BYTES)
    tiles = pad_rows(blocks).reshape(panels, PANEL_ROWS, supers, -1)
    factors = tiles[..., :4].reshape(panels, PANEL_ROWS, supers, 2, 2)
    into[..., :FACTOR_BYTES].reshape(panels, supers, 2, PANEL_ROWS, 2)[...] = factors.transpose(0, 2, 3, 1, 4)
    groups = into[..., FACTOR_BYTES:].reshape(panels, supers, GROUPS_PER_SUPER, -1)
    s, t = six_bit_scales(tiles[..., 4:16])
    groups[..., :PANEL_ROWS] = s.transpose(0, 2, 3, 1)
    groups[..., PANEL_ROWS:SUB_SCALE_BYTES] = t.transpose(0, 2, 3, 1)
    nibbles = pair_within_groups(tiles[..., 16:])
    flat = aligned_empty((panels, supers * GROUPS_PER_SUPER, QUANT_BYTES), np.uint8)
    store_quants(flat, nibbles.reshape(panels, PANEL_ROWS, -1, GROUP // 2))
    groups[..., SUB_SCALE_BYTES:] = flat.reshape(panels, supers, GROUPS_PER_SUPER, QUANT_BYTES)
    return data


def unpack_q4_k(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Panels to f32 [panels * 16, columns]."""
    panels = len(data)
    supers = data.reshape(panels, -1, _SUPER_BYTES)
    factors = np.ascontiguousarray(supers[..., :FACTOR_BYTES]).view(np.float16).astype(np.float32)
    groups = supers[..., FACTOR_BYTES:].reshape(panels, -1, GROUPS_PER_SUPER, SUB_SCALE_BYTES + QUANT_BYTES)
    d = factors[:, :, None, :PANEL_ROWS] * groups[..., :PANEL_ROWS].astype(np.float32)
    m = factors[:, :, None, PANEL_ROWS:] * groups[..., PANEL_ROWS:SUB_SCALE_BYTES].astype(np.float32)
    d, m = (x.reshape(panels, -1, PANEL_ROWS, 1) for x in (d, m))
    quants = load_quants(groups[..., SUB_SCALE_BYTES:].reshape(panels, -1, QUANT_BYTES))
    return by_row(d * quants.astype(np.float32) - m)


def six_bit_scales(stored: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """ggml's 12 bytes [..., 12] with eight 6-bit scales and eight 6-bit minima, as uint8 [..., 8] each.

    Bytes 0-3 hold the first four scales and 4-7 the first four minima in their low six bits; their two high bits complete
    the second four, whose low nibbles share bytes 8-11 (scale low, minimum high).
    """
    scales, minima, rest = stored[..., 0:4], stored[..., 4:8], stored[..., 8:12]
    s = np.concatenate([scales & 63, (rest & 15) | (scales >> 6 << 4)], axis=-1)
    t = np.concatenate([minima & 63, (rest >> 4) | (minima >> 6 << 4)], axis=-1)
    return s, t


def pair_within_groups(stored: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """ggml's quants [..., 128] to [..., 8, 16].

    A stored byte pairs column i of one group (low) with column i of the next (high); a result byte pairs columns i and
    16 + i of one group.
    """
    pairs = stored.reshape(*stored.shape[:-1], GROUPS_PER_SUPER // 2, 1, 2, GROUP // 2)
    low, high = pairs & 15, pairs >> 4
    groups = np.concatenate([low, high], axis=-3)
    merged: NDArray[np.uint8] = groups[..., 0, :] | (groups[..., 1, :] << 4)
    return merged.reshape(*stored.shape[:-1], GROUPS_PER_SUPER, GROUP // 2)


def _pack_plain(blocks: NDArray[np.uint8], num_scales: int) -> NDArray[np.uint8]:
    rows, groups, _ = blocks.shape
    panels, scale_bytes = num_panels(rows), HALVES_BYTES * num_scales
    data = aligned_empty((panels, groups * (scale_bytes + QUANT_BYTES)), np.uint8)
    by_group = data.reshape(panels, groups, -1)
    tiles = pad_rows(blocks).reshape(panels, PANEL_ROWS, groups, -1)
    scales = tiles[..., : 2 * num_scales].reshape(panels, PANEL_ROWS, groups, num_scales, 2)
    by_group[..., :scale_bytes].reshape(panels, groups, num_scales, PANEL_ROWS, 2)[...] = scales.transpose(0, 2, 3, 1, 4)
    store_quants(by_group[..., scale_bytes:], tiles[..., 2 * num_scales :])
    return data


def _unpack_plain(data: NDArray[np.uint8], num_scales: int) -> tuple[tuple[NDArray[np.float32], ...], NDArray[np.uint8]]:
    """Scales as f32 [panels, groups, 16] each, quants as uint8 [panels, groups, 16, 32]."""
    scale_bytes = HALVES_BYTES * num_scales
    by_group = data.reshape(len(data), -1, scale_bytes + QUANT_BYTES)
    scales = np.ascontiguousarray(by_group[..., :scale_bytes]).view(np.float16).astype(np.float32)
    return tuple(np.split(scales, num_scales, axis=-1)), load_quants(by_group[..., scale_bytes:])


def store_quants(into: NDArray[np.uint8], nibbles: NDArray[np.uint8]) -> None:
    """Write bytes [panels, 16, groups, 16], each with columns i and 16 + i, to `into` [panels, groups, 256]."""
    panels, _, groups, _ = nibbles.shape
    runs = np.ascontiguousarray(nibbles).view(np.uint32).transpose(0, 2, 3, 1)  # four bytes move as one word
    into[...] = np.ascontiguousarray(runs).view(np.uint8).reshape(panels, groups, QUANT_BYTES)


def load_quants(quants: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Quants [panels, groups, 256] to their values, uint8 [panels, groups, 16, 32]."""
    panels, groups, _ = quants.shape
    runs = quants.reshape(panels, groups, NUM_RUNS, PANEL_ROWS, 4).transpose(0, 1, 3, 2, 4)
    nibbles = runs.reshape(panels, groups, PANEL_ROWS, GROUP // 2)
    return np.concatenate([nibbles & 15, nibbles >> 4], axis=-1)


def pad_rows(blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """`blocks` [rows, ...] with zero rows up to a whole panel; `blocks` itself if there are none to add."""
    missing = -len(blocks) % PANEL_ROWS
    if missing == 0:
        return blocks
    return np.concatenate([blocks, np.zeros((missing, *blocks.shape[1:]), np.uint8)])


def by_row(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """[panels, groups, 16, 32] to [panels * 16, groups * 32]."""
    panels, groups, rows, width = values.shape
    return values.transpose(0, 2, 1, 3).reshape(panels * rows, groups * width)
