"""Where each token of a step stands: the arrays that a plan's nested tuples become, once per step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from argosy.engine.core.plan import ScheduledSequence

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepLayout:
    """Tokens of all scheduled sequences laid end to end, in the plan's order. All arrays are int64.

        sequence          0        1  2
        rows            0 1 2 3 4  5  6 7 8
        first_rows      0          5  6       9

    Attributes:
        token_ids, positions, slots: [tokens]; `slots` is where each token's own KV goes.
        starts, counts: [sequences]; first position computed and number of tokens.
        first_rows: [sequences + 1].
        tables, table_offsets: all block tables end to end, and where each one begins.
    """

    block_size: int
    token_ids: IntArray
    positions: IntArray
    slots: IntArray
    starts: IntArray
    counts: IntArray
    first_rows: IntArray
    tables: IntArray
    table_offsets: IntArray

    @property
    def ends(self) -> IntArray:
        """[sequences]: one past the last position computed."""
        return self.starts + self.counts

    def slots_of(self, sequences: IntArray, positions: IntArray) -> IntArray:
        """Slots of `positions` of `sequences`; the two broadcast against each other."""
        return _slots(self.tables, self.table_offsets[sequences], positions, self.block_size)


def lay_out(sequences: Sequence[ScheduledSequence], block_size: int) -> StepLayout:
    """Flatten the sequences of a plan; the cost is linear in their tokens and blocks, without Python per token."""
    counts = np.array([len(s.token_ids) for s in sequences], dtype=np.int64)
    starts = np.array([s.start for s in sequences], dtype=np.int64)
    table_sizes = np.array([len(s.block_table) for s in sequences], dtype=np.int64)
    first_rows = np.concatenate(([0], np.cumsum(counts)))
    table_offsets = np.cumsum(table_sizes) - table_sizes
    token_ids = np.fromiter(chain.from_iterable(s.token_ids for s in sequences), np.int64, int(first_rows[-1]))
    tables = np.fromiter(chain.from_iterable(s.block_table for s in sequences), np.int64, int(table_sizes.sum()))
    assert (starts + counts <= table_sizes * block_size).all(), "a block table does not cover its step's positions"
    positions = np.arange(first_rows[-1]) + np.repeat(starts - first_rows[:-1], counts)
    slots = _slots(tables, np.repeat(table_offsets, counts), positions, block_size)
    return StepLayout(block_size, token_ids, positions, slots, starts, counts, first_rows, tables, table_offsets)


def _slots(tables: IntArray, offsets: IntArray, positions: IntArray, block_size: int) -> IntArray:
    slots: IntArray = tables[offsets + positions // block_size] * block_size + positions % block_size
    return slots


def to_device(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """A tensor of `array` on `device`; towards CUDA through pinned memory, without waiting for the copy."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor
