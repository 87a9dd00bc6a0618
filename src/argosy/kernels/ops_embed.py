"""Op of a tape: token embeddings, read as f32 from the rows of a packed matrix.

A row is a lane of its panel; the layouts of the kinds are drawn in `gemm/*_layout.py`. Values are those of `dequantize`,
bit for bit, times a scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numba import cfunc, njit

from argosy.kernels.gemm import int8_layout, q2_layout, q4_layout, q5_layout, q6_layout, q8_layout
from argosy.kernels.packed import PANEL_ROWS, WeightKind
from argosy.kernels.pointers import (
    OP_SIGNATURE,
    bits_float,
    load_bf16,
    load_f16,
    load_f32,
    load_i64,
    load_s8,
    load_u8,
    store_f32,
)

EMBED_KINDS: Mapping[WeightKind, int] = MappingProxyType(
    {
        kind: code
        for code, kind in enumerate(
            (
                WeightKind.Q4_0,
                WeightKind.Q4_1,
                WeightKind.Q5_0,
                WeightKind.Q5_1,
                WeightKind.Q8_0,
                WeightKind.Q4_K,
                WeightKind.Q5_K,
                WeightKind.Q3_K,
                WeightKind.Q6_K,
                WeightKind.Q2_K,
                WeightKind.INT8,
                WeightKind.F32,
                WeightKind.F16,
                WeightKind.BF16,
            )
        )
    }
)
"""The kinds that the op can read, and what it calls them."""

_Q4_0, _Q4_1, _Q5_0, _Q5_1, _Q8_0, _Q4_K, _Q5_K, _Q3_K, _Q6_K, _Q2_K, _INT8, _F32, _F16, _BF16 = range(len(EMBED_KINDS))

_GROUP = 32
_GROUPS_PER_SUPER = q4_layout.GROUPS_PER_SUPER
_NIBBLE_BYTES, _RUN_BYTES = q4_layout.QUANT_BYTES, q4_layout.RUN_BYTES
_FIVE_BIT_BYTES = q5_layout.FIVE_BIT_BYTES
_HALVES_BYTES, _FACTOR_BYTES, _SUB_SCALE_BYTES = q4_layout.HALVES_BYTES, q4_layout.FACTOR_BYTES, q4_layout.SUB_SCALE_BYTES
_Q8_QUANTS, _Q8_GROUP_BYTES = q8_layout.QUANTS, q8_layout.GROUP_BYTES
_SUBS, _SUB_GROUP, _SUB_SCALES = q6_layout.SUBS, q6_layout.SUB_GROUP, q6_layout.SCALE_BYTES
_SUB_NIBBLE_BYTES, _SUPER_D_BYTES = q6_layout.NIBBLE_BYTES, q6_layout.FACTOR_BYTES
_Q2_SUB_BYTES, _Q2_SUPER_BYTES, _Q2_SCALES = q2_layout.SUB_BYTES, q2_layout.SUPER_BYTES, q2_layout.SCALE_BYTES
_INT8_QUANTS, _INT8_RUN_BYTES = int8_layout.FACTOR_BYTES, int8_layout.RUN_BYTES
_Q6_SUB_BYTES, _Q3_SUB_BYTES = q6_layout.sub_group_bytes(high_bits=True), q6_layout.sub_group_bytes(high_bits=False)


class EmbedArgs(NamedTuple):
    """Args of the op. Items are tokens.

    Attributes:
        token_ids: address of i64[T], each below the matrix's rows.
        data: address of the matrix's panels.
        panel_bytes, columns: of the matrix; columns is a multiple of 32 for quantised kinds.
        kind: `EMBED_KINDS` of the matrix.
        scale: multiplies every value.
        out: address of f32[T, columns].
    """

    token_ids: int
    data: int
    panel_bytes: int
    columns: int
    kind: int
    scale: float
    out: int


@njit(nogil=True, cache=True)
def _low_bits(quants: int, lane: int, column: int, five_bits: bool) -> Any:
    """The unsigned quant of a column of a group of 32, in 4 or 5 bits."""
    run, half = column % 16 // 4, column // 16
    place = 4 * lane + column % 4
    value = (load_u8(quants + _RUN_BYTES * run + place) >> (4 * half)) & 15
    if five_bits:
        value |= ((load_u8(quants + _NIBBLE_BYTES + place) >> (2 * run + half)) & 1) << 4
    return np.float32(value)


@njit(nogil=True, cache=True)
def _plain_row(panel: int, lane: int, columns: int, kind: int, scale: Any, out: int) -> None:
    """Q4_0, Q4_1, Q5_0 and Q5_1: f16 scales per group, before its quants."""
    five_bits, has_minimum = kind in (_Q5_0, _Q5_1), kind in (_Q4_1, _Q5_1)
    scale_bytes = 2 * _HALVES_BYTES if has_minimum else _HALVES_BYTES
    group_bytes = scale_bytes + (_FIVE_BIT_BYTES if five_bits else _NIBBLE_BYTES)
    zero = np.float32(16.0) if five_bits else np.float32(8.0)
    for group in range(columns // _GROUP):
        at = panel + group * group_bytes
        d = load_f16(at + 2 * lane)
        for column in range(_GROUP):
            q = _low_bits(at + scale_bytes, lane, column, five_bits)
            value = d * q + load_f16(at + _HALVES_BYTES + 2 * lane) if has_minimum else d * (q - zero)
            store_f32(out + 4 * (_GROUP * group + column), value * scale)


@njit(nogil=True, cache=True)
def _byte_row(panel: int, lane: int, columns: int, scale: Any, out: int) -> None:
    """Q8_0."""
    for group in range(columns // _GROUP):
        at = panel + group * _Q8_GROUP_BYTES
        d = load_f16(at + 2 * lane)
        for column in range(_GROUP):
            q = load_s8(at + _Q8_QUANTS + _RUN_BYTES * (column // 4) + 4 * lane + column % 4)
            store_f32(out + 4 * (_GROUP * group + column), np.float32(q) * d * scale)


@njit(nogil=True, cache=True)
def _super_row(panel: int, lane: int, columns: int, five_bits: bool, scale: Any, out: int) -> None:
    """Q4_K and Q5_K: f16 d and m per 256 columns, u8 s and t per group."""
    group_bytes = _SUB_SCALE_BYTES + (_FIVE_BIT_BYTES if five_bits else _NIBBLE_BYTES)
    super_bytes = _FACTOR_BYTES + _GROUPS_PER_SUPER * group_bytes
    for group in range(columns // _GROUP):
        head = panel + group // _GROUPS_PER_SUPER * super_bytes
        at = head + _FACTOR_BYTES + group % _GROUPS_PER_SUPER * group_bytes
        d = load_f16(head + 2 * lane) * np.float32(load_u8(at + lane))
        m = load_f16(head + _HALVES_BYTES + 2 * lane) * np.float32(load_u8(at + PANEL_ROWS + lane))
        for column in range(_GROUP):
            value = d * _low_bits(at + _SUB_SCALE_BYTES, lane, column, five_bits) - m
            store_f32(out + 4 * (_GROUP * group + column), value * scale)


@njit(nogil=True, cache=True)
def _sub_row(panel: int, lane: int, columns: int, six_bits: bool, scale: Any, out: int) -> None:
    """Q3_K and Q6_K: f16 d per 256 columns, s8 s per 16."""
    sub_bytes = _Q6_SUB_BYTES if six_bits else _Q3_SUB_BYTES
    super_bytes = _SUPER_D_BYTES + _SUBS * sub_bytes
    zero = np.float32(32.0) if six_bits else np.float32(4.0)
    for sub in range(columns // _SUB_GROUP):
        head = panel + sub // _SUBS * super_bytes
        at = head + _SUPER_D_BYTES + sub % _SUBS * sub_bytes
        d = load_f16(head + 2 * lane) * np.float32(load_s8(at + lane))
        quants = at + _SUB_SCALES
        for column in range(_SUB_GROUP):
            run, place = column // 4, 4 * lane + column % 4
            q = (load_u8(quants + _RUN_BYTES * (run // 2) + place) >> (4 * (run % 2))) & 15
            if six_bits:
                q |= ((load_u8(quants + _SUB_NIBBLE_BYTES + place) >> (2 * run)) & 3) << 4
            store_f32(out + 4 * (_SUB_GROUP * sub + column), d * (np.float32(q) - zero) * scale)


@njit(nogil=True, cache=True)
def _two_bit_row(panel: int, lane: int, columns: int, scale: Any, out: int) -> None:
    """Q2_K: f16 d and m per 256 columns, u4 s and t per 16."""
    for sub in range(columns // _SUB_GROUP):
        head = panel + sub // _SUBS * _Q2_SUPER_BYTES
        at = head + _FACTOR_BYTES + sub % _SUBS * _Q2_SUB_BYTES
        factors = load_u8(at + lane)
        d = load_f16(head + 2 * lane) * np.float32(factors & 15)
        m = load_f16(head + _HALVES_BYTES + 2 * lane) * np.float32(factors >> 4)
        for column in range(_SUB_GROUP):
            q = (load_u8(at + _Q2_SCALES + 4 * lane + column % 4) >> (2 * (column // 4))) & 3
            store_f32(out + 4 * (_SUB_GROUP * sub + column), (d * np.float32(q) - m) * scale)


@njit(nogil=True, cache=True)
def _int8_row(panel: int, lane: int, columns: int, scale: Any, out: int) -> None:
    """INT8: f32 d per row of the panel."""
    d = load_f32(panel + 4 * lane)
    for column in range(columns):
        q = load_s8(panel + _INT8_QUANTS + _INT8_RUN_BYTES * (column // 4) + 4 * lane + column % 4)
        store_f32(out + 4 * column, np.float32(q) * d * scale)


@njit(nogil=True, cache=True)
def _float_row(panel: int, lane: int, columns: int, kind: int, scale: Any, out: int) -> None:
    """F32, F16 and BF16: columns one after another."""
    for column in range(columns):
        place = PANEL_ROWS * column + lane
        if kind == _F32:
            value = load_f32(panel + 4 * place)
        elif kind == _F16:
            value = load_f16(panel + 2 * place)
        else:
            value = load_bf16(panel + 2 * place)
        store_f32(out + 4 * column, value * scale)


@cfunc(OP_SIGNATURE, cache=True)
def embed_op(args: Any, begin: int, end: int, thread: int) -> None:  # noqa: ARG001
    """Tokens begin..end; args: `EmbedArgs`."""
    columns, kind, scale = args[3], args[4], bits_float(args[5])
    for token in range(begin, end):
        row = load_i64(args[0] + 8 * token)
        panel, lane = args[1] + row // PANEL_ROWS * args[2], row % PANEL_ROWS
        out = args[6] + 4 * token * columns
        if kind <= _Q5_1:
            _plain_row(panel, lane, columns, kind, scale, out)
        elif kind == _Q8_0:
            _byte_row(panel, lane, columns, scale, out)
        elif kind <= _Q5_K:
            _super_row(panel, lane, columns, kind == _Q5_K, scale, out)
        elif kind <= _Q6_K:
            _sub_row(panel, lane, columns, kind == _Q6_K, scale, out)
        elif kind == _Q2_K:
            _two_bit_row(panel, lane, columns, scale, out)
        elif kind == _INT8:
            _int8_row(panel, lane, columns, scale, out)
        else:
            _float_row(panel, lane, columns, kind, scale, out)
