"""Writes a plan into the arrays that the ops of a step read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from argosy.engine.core.plan import ScheduledSequence
from argosy.engine.executors.cpu_buffers import HeaderField, IntArray, StepBuffers


class StepShape(NamedTuple):
    """Where the tokens of a step's sequences lie; arrays as of `StepLayout`, valid until the next step."""

    num_tokens: int
    starts: IntArray
    counts: IntArray
    first_rows: IntArray
    ends: IntArray


class StepInputs:
    """Fills the inputs of `StepBuffers` and the block tables.

    Args:
        tables: i64[sequences, blocks], whose row i becomes the block table of the step's sequence i. Rows are rewritten
            only where a table has changed, which while decoding is once in `block_size` steps.
    """

    def __init__(self, buffers: StepBuffers, tables: IntArray, block_size: int) -> None:
        self._buffers = buffers
        self._tables = tables
        self._block_size = block_size
        max_sequences = len(tables)
        self._written: list[tuple[int, ...]] = [()] * max_sequences
        self._starts, self._counts, self._ends = (np.zeros(max_sequences, dtype=np.int64) for _ in range(3))
        self._first_rows = np.zeros(max_sequences + 1, dtype=np.int64)

    def fill(self, entries: Sequence[ScheduledSequence]) -> StepShape:
        """Write the step's tokens, positions, slots, block tables and number of tokens."""
        b, count = self._buffers, len(entries)
        assert count <= len(self._tables), "a step has more sequences than the executor was built for"
        for i, entry in enumerate(entries):
            table = entry.block_table
            if table is not self._written[i] and table != self._written[i]:
                self._tables[i, : len(table)] = table
            self._written[i] = table
        starts, counts, ends = self._starts[:count], self._counts[:count], self._ends[:count]
        first_rows = self._first_rows[: count + 1]
        starts[:] = [entry.start for entry in entries]
        counts[:] = [len(entry.token_ids) for entry in entries]
        num_tokens = int(counts.sum())
        assert num_tokens <= b.max_tokens, "a step has more tokens than the executor was built for"
        b.token_ids[:num_tokens] = list(chain.from_iterable(entry.token_ids for entry in entries))
        _place_tokens(starts, counts, self._tables, self._block_size, b.positions, b.slots, first_rows, ends)
        b.header[HeaderField.NUM_TOKENS] = num_tokens
        return StepShape(num_tokens, starts, counts, first_rows, ends)


@njit(nogil=True, cache=True)
def _place_tokens(
    starts: Any,
    counts: Any,
    tables: Any,
    block_size: int,
    positions: Any,
    slots: Any,
    first_rows: Any,
    ends: Any,
) -> None:
    """Position and slot of every token, and where each sequence's tokens begin and end."""
    row = 0
    for s in range(len(starts)):
        first_rows[s] = row
        ends[s] = starts[s] + counts[s]
        for position in range(starts[s], ends[s]):
            positions[row] = position
            slots[row] = tables[s, position // block_size] * block_size + position % block_size
            row += 1
    first_rows[len(starts)] = row
