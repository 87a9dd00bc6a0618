"""Op of a tape: rows of floats copied elsewhere, to look at afterwards."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import cfunc

from argosy.kernels.pointers import OP_SIGNATURE, load_f32, store_f32


class CopyArgs(NamedTuple):
    """Args of `copy_rows_op`. Items are rows.

    Attributes:
        source: address of f32[items, columns].
        columns: width of a row.
        out: address of f32[items, columns].
    """

    source: int
    columns: int
    out: int


@cfunc(OP_SIGNATURE, cache=True)
def copy_rows_op(args: Any, begin: int, end: int, thread: int) -> None:  # noqa: ARG001
    """Copy rows begin..end; args: `CopyArgs`."""
    for i in range(4 * begin * args[1], 4 * end * args[1], 4):
        store_f32(args[2] + i, load_f32(args[0] + i))
