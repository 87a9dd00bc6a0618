"""Ops of a tape: the gate of a feed-forward block, activation(gate) · up (Shazeer 2020), as f32 or quantised.

plain rows        | gate 0 … F-1 | up 0 … F-1 |
in panels         | gate 0 … 15 | up 0 … 15 | gate 16 … 31 | up 16 … 31 | …        weights from `interleave_panels`
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from numba import cfunc, njit

from argosy.kernels.pointers import OP_SIGNATURE
from argosy.kernels.quantize_activations import quantize_group
from argosy.kernels.quantize_vectors import GROUP
from argosy.kernels.simd import LANES, VECTOR_BYTES, load_up_to, splat, store, store_up_to
from argosy.kernels.simd_math import gelu_tanh, silu
from argosy.kernels.tape import Arg


class GateFunction(IntEnum):
    """The activation, as ops take it."""

    SILU = 0
    GELU_TANH = 1


_SILU = int(GateFunction.SILU)
_PANEL_ROWS = 16


class GateArgs(NamedTuple):
    """Args of both ops. Items are runs of `groups_per_item` groups of 32 columns, token by token:
    T · ceil(ceil(columns / 32) / groups_per_item) of them.

    Attributes:
        gate_up: address of f32[T, 2 · columns].
        columns: of the result. Interleaved, a multiple of 16.
        interleaved: 1 if rows come in panels, else 0.
        function: `GateFunction`.
        groups_per_item: how finely a row is cut.
        out: address of f32[T, columns]. When quantising: of f32[32], scratch of each thread's own (`PerThread`).
        q, scales, scale_sums: only when quantising: as `quantize_groups_op`.
    """

    gate_up: int
    columns: int
    interleaved: int
    function: int
    groups_per_item: int
    out: Arg
    q: int = 0
    scales: int = 0
    scale_sums: int = 0


@njit(nogil=True, cache=True)
def _gate_group(args: Any, row: int, first: int, out: int) -> None:
    """Columns first … first + 31 of the row at address `row`, as f32 to `out`; none beyond the last."""
    columns, interleaved, function = args[1], args[2], args[3]
    for column in range(first, min(first + GROUP, columns), LANES):
        gate, up = column, columns + column
        if interleaved != 0:
            gate = 2 * column - column % _PANEL_ROWS
            up = gate + _PANEL_ROWS
        rest = columns - column
        x = load_up_to(row + 4 * gate, rest)
        activated = silu(x) if function == _SILU else gelu_tanh(x)
        store_up_to(out + 4 * (column - first), activated * load_up_to(row + 4 * up, rest), rest)


@njit(nogil=True, cache=True, forceinline=True)
def _item_groups(args: Any, item: int) -> Any:
    """(token, first group, one past the last group, groups of a row) of an item."""
    groups = (args[1] + GROUP - 1) // GROUP
    items_per_token = (groups + args[4] - 1) // args[4]
    token, part = item // items_per_token, item % items_per_token
    return token, part * args[4], min((part + 1) * args[4], groups), groups


@cfunc(OP_SIGNATURE, cache=True)
def gate_op(args: Any, begin: int, end: int, thread: int) -> None:  # noqa: ARG001
    """Items begin..end as f32; args: `GateArgs`."""
    columns = args[1]
    for item in range(begin, end):
        token, first, stop, _ = _item_groups(args, item)
        for group in range(first, stop):
            out = args[5] + 4 * (token * columns + GROUP * group)
            _gate_group(args, args[0] + 8 * token * columns, GROUP * group, out)


@cfunc(OP_SIGNATURE, cache=True)
def gate_quantize_op(args: Any, begin: int, end: int, thread: int) -> None:  # noqa: ARG001
    """Items begin..end quantised in groups of 32; args: `GateArgs`."""
    columns, scratch = args[1], args[5]
    for item in range(begin, end):
        token, first, stop, groups = _item_groups(args, item)
        for group in range(first, stop):
            if GROUP * (group + 1) > columns:
                for i in range(0, 4 * GROUP, VECTOR_BYTES):
                    store(scratch + i, splat(0.0))
            _gate_group(args, args[0] + 8 * token * columns, GROUP * group, scratch)
            at = token * groups + group
            quantize_group(scratch, args[6] + GROUP * at, args[7] + 4 * at, args[8] + 4 * at)
