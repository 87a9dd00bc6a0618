"""Layouts of 5-bit weights, and the way there from ggml's blocks and back to floats.

A group is that of the 4-bit kinds (`q4_layout.py`) with 64 bytes behind its nibbles that hold the highest bits: byte i has
bit 2j from the low nibble and bit 2j+1 from the high nibble of byte i of run j.

    Q5_0 group (352 bytes): f16 d[16], nibbles, highest bits;             w = d * (q - 16)
    Q5_1 group (384 bytes): f16 d[16], f16 m[16], nibbles, highest bits;  w = d * q + m
    Q5_K super-group of 256 columns (2880 bytes): f16 d[16], f16 m[16], then 8 x (u8 s[16], u8 t[16], nibbles, highest bits)

All are lossless, at the size of the stored blocks (Q5_K: 5.625 bits per weight instead of 5.5).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from argosy.kernels.gemm.q4_layout import (
    FACTOR_BYTES,
    GROUP,
    GROUPS_PER_SUPER,
    HALVES_BYTES,
    NUM_RUNS,
    QUANT_BYTES,
    RUN_BYTES,
    SUB_SCALE_BYTES,
    by_row,
    load_quants,
    pad_rows,
    pair_within_groups,
    six_bit_scales,
    store_quants,
)
from argosy.kernels.packed import PANEL_ROWS, aligned_empty, num_panels

FIVE_BIT_BYTES = QUANT_BYTES + RUN_BYTES
"""Quants of a group."""
_SUPER_BYTES = FACTOR_BYTES + GROUPS_PER_SUPER * (SUB_SCALE_BYTES + FIVE_BIT_BYTES)


def pack_q5_0(blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """ggml Q5_0 blocks, uint8 [rows, groups, 22], to panels, uint8 [panels, groups * 352]."""
    return _pack_plain(blocks, num_scales=1)


def pack_q5_1(blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """ggml Q5_1 blocks, uint8 [rows, groups, 24], to panels, uint8 [panels, groups * 384]."""
    return _pack_plain(blocks, num_scales=2)


def pack_q5_k(blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """ggml Q5_K blocks, uint8 [rows, supers, 176], to panels, uint8 [panels, supers * 2880].

    A block is d, m, 12 bytes with the 6-bit scales and minima, 32 with the highest bits (bit g of byte l for column l of
    group g), 128 with the nibbles as in Q4_K.
    """
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
    highest = tiles[..., None, 16:48] >> np.arange(GROUPS_PER_SUPER, dtype=np.uint8)[:, None] & np.uint8(1)
    flat = aligned_empty((panels, supers * GROUPS_PER_SUPER, FIVE_BIT_BYTES), np.uint8)
    nibbles = pair_within_groups(tiles[..., 48:]).reshape(panels, PANEL_ROWS, -1, GROUP // 2)
    _store(flat, nibbles, highest.reshape(panels, PANEL_ROWS, -1, GROUP))
    groups[..., SUB_SCALE_BYTES:] = flat.reshape(panels, supers, GROUPS_PER_SUPER, FIVE_BIT_BYTES)
    return data


def unpack_q5_0(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Panels to f32 [panels * 16, columns]."""
    (d,), quants = _unpack_plain(data, num_scales=1)
    return by_row(d[..., None] * (quants.astype(np.float32) - np.float32(16)))


def unpack_q5_1(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Panels to f32 [panels * 16, columns]."""
    (d, m), quants = _unpack_plain(data, num_scales=2)
    return by_row(d[..., None] * quants.astype(np.float32) + m[..., None])


def unpack_q5_k(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Panels to f32 [panels * 16, columns]."""
    panels = len(data)
    supers = data.reshape(panels, -1, _SUPER_BYTES)
    factors = np.ascontiguousarray(supers[..., :FACTOR_BYTES]).view(np.float16).astype(np.float32)
    groups = supers[..., FACTOR_BYTES:].reshape(panels, -1, GROUPS_PER_SUPER, SUB_SCALE_BYTES + FIVE_BIT_BYTES)
    d = factors[:, :, None, :PANEL_ROWS] * groups[..., :PANEL_ROWS].astype(np.float32)
    m = factors[:, :, None, PANEL_ROWS:] * groups[..., PANEL_ROWS:SUB_SCALE_BYTES].astype(np.float32)
    d, m = (x.reshape(panels, -1, PANEL_ROWS, 1) for x in (d, m))
    quants = _load(groups[..., SUB_SCALE_BYTES:].reshape(panels, -1, FIVE_BIT_BYTES))
    return by_row(d * quants.astype(np.float32) - m)


def _pack_plain(blocks: NDArray[np.uint8], num_scales: int) -> NDArray[np.uint8]:
    """Blocks are the scales, an u32 whose bit c is the highest bit of column c, and the nibbles."""
    rows, groups, _ = blocks.shape
    panels, scale_bytes = num_panels(rows), HALVES_BYTES * num_scales
    data = aligned_empty((panels, groups * (scale_bytes + FIVE_BIT_BYTES)), np.uint8)
    by_group = data.reshape(panels, groups, -1)
    tiles = pad_rows(blocks).reshape(panels, PANEL_ROWS, groups, -1)
    scales = tiles[..., : 2 * num_scales].reshape(panels, PANEL_ROWS, groups, num_scales, 2)
    by_group[..., :scale_bytes].reshape(panels, groups, num_scales, PANEL_ROWS, 2)[...] = scales.transpose(0, 2, 3, 1, 4)
    bits, nibbles = tiles[..., 2 * num_scales : 2 * num_scales + 4], tiles[..., 2 * num_scales + 4 :]
    _store(by_group[..., scale_bytes:], nibbles, np.unpackbits(bits, axis=-1, bitorder="little"))
    return data


def _unpack_plain(data: NDArray[np.uint8], num_scales: int) -> tuple[tuple[NDArray[np.float32], ...], NDArray[np.uint8]]:
    """Scales as f32 [panels, groups, 16] each, quants as uint8 [panels, groups, 16, 32]."""
    scale_bytes = HALVES_BYTES * num_scales
    by_group = data.reshape(len(data), -1, scale_bytes + FIVE_BIT_BYTES)
    scales = np.ascontiguousarray(by_group[..., :scale_bytes]).view(np.float16).astype(np.float32)
    return tuple(np.split(scales, num_scales, axis=-1)), _load(by_group[..., scale_bytes:])


def _store(into: NDArray[np.uint8], nibbles: NDArray[np.uint8], highest: NDArray[np.uint8]) -> None:
    """Write nibbles [panels, 16, groups, 16] and highest bits [panels, 16, groups, 32] to `into` [panels, groups, 320]."""
    panels, rows, groups, _ = nibbles.shape
    store_quants(into[..., :QUANT_BYTES], nibbles)
    # Columns 16 h + 4 j + c as words of four c: [panel, row, group, h, run j].
    bits = np.ascontiguousarray(highest).view(np.uint32).reshape(panels, rows, groups, 2, NUM_RUNS)
    joined = np.zeros((panels, groups, rows), np.uint32)
    for place in range(2 * NUM_RUNS):
        joined |= bits[..., place % 2, place // 2].transpose(0, 2, 1) << np.uint32(place)
    into[..., QUANT_BYTES:] = joined.view(np.uint8).reshape(panels, groups, RUN_BYTES)


def _load(quants: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Quants [panels, groups, 320] to their values, uint8 [panels, groups, 16, 32]."""
    panels, groups, _ = quants.shape
    bits = quants[..., QUANT_BYTES:].reshape(panels, groups, 1, 1, PANEL_ROWS, 4)
    places = np.arange(2 * NUM_RUNS, dtype=np.uint8).reshape(NUM_RUNS, 2, 1, 1)
    highest = (bits >> places & np.uint8(1)).transpose(0, 1, 4, 3, 2, 5).reshape(panels, groups, PANEL_ROWS, GROUP)
    return load_quants(quants[..., :QUANT_BYTES]) | highest << np.uint8(4)
