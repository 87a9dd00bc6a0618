"""Layout of 8-bit weights in groups of 32 columns, and the way there from ggml's blocks and back to floats.

    Q8_0 group (544 bytes): f16 d[16], then eight runs of 64 bytes

    run j     | row 0       | row 1       | … | row 15      |     s8, w = d * q
              | 4j  …  4j+3 | 4j  …  4j+3 |   | 4j  …  4j+3 |

IQ4_NL has a f16 scale per 32 columns and one of 16 fixed bytes per weight; it is kept exactly, as Q8_0.
"""

from __future__ import annotations

import numpy as np
from gguf.quants import IQ4_NL
from numpy.typing import NDArray

from argosy.kernels.gemm.q4_layout import pad_rows
from argosy.kernels.packed import PANEL_ROWS, aligned_empty, num_panels

GROUP = 32
QUANTS = 2 * PANEL_ROWS
"""Where a group's quants begin, in bytes."""
GROUP_BYTES = QUANTS + GROUP * PANEL_ROWS
NUM_RUNS = GROUP // 4
RUN_BYTES = 4 * PANEL_ROWS


def pack_q8_0(blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """ggml Q8_0 blocks, uint8 [rows, groups, 34], to panels, uint8 [panels, groups * 544]."""
    return _pack(blocks[..., :2], blocks[..., 2:])


def pack_iq4_nl(blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """ggml IQ4_NL blocks, uint8 [rows, groups, 18], to panels of Q8_0."""
    nibbles = np.concatenate([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], axis=-1)
    values = np.array(IQ4_NL.kvalues, np.int8).view(np.uint8)
    return _pack(blocks[..., :2], values[nibbles])


def unpack_q8_0(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Panels to f32 [panels * 16, columns]."""
    panels = len(data)
    by_group = data.reshape(panels, -1, GROUP_BYTES)
    scales = np.ascontiguousarray(by_group[..., :QUANTS]).view(np.float16).astype(np.float32)
    runs = by_group[..., QUANTS:].view(np.int8).reshape(panels, -1, NUM_RUNS, PANEL_ROWS, 4)
    values = runs.transpose(0, 3, 1, 2, 4).reshape(panels, PANEL_ROWS, -1, GROUP).astype(np.float32)
    return (values * scales.transpose(0, 2, 1)[..., None]).reshape(panels * PANEL_ROWS, -1)


def _pack(scales: NDArray[np.uint8], quants: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Bytes of the scales [rows, groups, 2] and quants [rows, groups, 32]."""
    rows, groups, _ = quants.shape
    panels = num_panels(rows)
    data = aligned_empty((panels, groups * GROUP_BYTES), np.uint8)
    by_group = data.reshape(panels, groups, GROUP_BYTES)
    tiles = pad_rows(scales).reshape(panels, PANEL_ROWS, groups, 2)
    by_group[..., :QUANTS].reshape(panels, groups, PANEL_ROWS, 2)[...] = tiles.transpose(0, 2, 1, 3)
    runs = pad_rows(quants).reshape(panels, PANEL_ROWS, groups, NUM_RUNS, 4).transpose(0, 2, 3, 1, 4)
    by_group[..., QUANTS:].reshape(panels, groups, NUM_RUNS, PANEL_ROWS, 4)[...] = runs
    return data
