"""A step as a tape: one row per op, laid out so that threads can run it without Python.

    row (24 words of 64 bits):  | function | items | chunk | flags | args 0 … 19 |

Every op is a C function `void op(int64 *args, int64 begin, int64 end, int64 thread)` that does items begin..end of the op;
`args` are addresses, sizes, or the bits of a float64. A tape is built once; from step to step only `items` change, and what
the ops read at the addresses they were given.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROW_WORDS = 24
MAX_ARGS = 20
FUNCTION, ITEMS, CHUNK, FLAGS, ARGS = range(5)
"""Columns of a row."""

REPLICATED = 1
"""Flag: every thread does all items for itself, without waiting for the others before or after.

Such an op may write only memory that belongs to its thread, because a thread that was not scheduled may run it late.
"""

PARTS_PER_THREAD = 3
"""A thread takes this part of its even share of the items left: small enough to even out, large enough to be rare."""

MAX_ITEMS = 2**31 - 1

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PerThread:
    """An arg that differs from thread to thread: `base + thread * stride_bytes`."""

    base: int
    stride_bytes: int


Arg = int | float | PerThread


def op_address(op: Any) -> int:
    """The address of an op that Numba compiled (`cfunc`)."""
    return int(op.address)


class Tape:
    """Ops in the order in which they run; each begins when the one before it is done.

    Attributes:
        num_threads: of the team that will run it.
        descriptor: int64[5]: addresses of the rows and of the counters, number of ops, bytes from one thread's rows to the
            next one's, and into how many parts the items left of an op are cut.
    """

    def __init__(self, num_threads: int, rows: IntArray) -> None:
        assert rows.shape[0] == num_threads
        self.num_threads = num_threads
        self.num_ops = rows.shape[1]
        self._rows = rows
        # Per op two words of (generation << 32 | items): those nobody has taken yet, and those not yet done.
        self._counters = np.zeros((max(self.num_ops, 1), 2), dtype=np.int64)
        self.descriptor = np.array(
            [rows.ctypes.data, self._counters.ctypes.data, self.num_ops, rows.strides[0], PARTS_PER_THREAD * num_threads],
            dtype=np.int64,
        )

    def set_items(self, ops: IntArray, items: int) -> None:
        """Let `ops` (indices as `TapeBuilder.add` gave them) have `items` items each. Not while a team runs the tape."""
        assert 0 <= items <= MAX_ITEMS
        self._rows[:, ops, ITEMS] = items

    def items(self, op: int) -> int:
        """How many items an op has."""
        return int(self._rows[0, op, ITEMS])


class TapeBuilder:
    """Collects ops; `build` makes the tape."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._rows: list[list[list[int]]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, function: int, args: Sequence[Arg], *, items: int = 0, chunk: int = 1, replicated: bool = False) -> int:
        """Append an op and return its index.

        Args:
            function: address of the C function.
            args: at most `MAX_ARGS`; floats are passed as the bits of a float64.
            items: may change from step to step.
            chunk: items that a thread takes at a time, at least.
            replicated: see `REPLICATED`.
        """
        assert function != 0
        assert len(args) <= MAX_ARGS
        assert chunk >= 1
        assert 0 <= items <= MAX_ITEMS
        head = [function, items, chunk, REPLICATED if replicated else 0]
        padding = [0] * (MAX_ARGS - len(args))
        self._rows.append([head + [_word(arg, thread) for arg in args] + padding for thread in range(self._num_threads)])
        return len(self._rows) - 1

    def build(self) -> Tape:
        """The tape of the ops added so far."""
        rows = np.array(self._rows, dtype=np.int64).reshape(-1, self._num_threads, ROW_WORDS)
        return Tape(self._num_threads, np.ascontiguousarray(rows.transpose(1, 0, 2)))


def _word(arg: Arg, thread: int) -> int:
    if isinstance(arg, PerThread):
        return arg.base + thread * arg.stride_bytes
    if isinstance(arg, float):
        word: int = struct.unpack("<q", struct.pack("<d", arg))[0]
        return word
    return int(arg)
