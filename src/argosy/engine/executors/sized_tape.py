"""A tape some of whose ops have as many items as a step has tokens, logit rows or pieces of attention."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from argosy.kernels.tape import Arg, IntArray, Tape, TapeBuilder


class Size(NamedTuple):
    """A number that every step has anew; `window` tells attention's pieces under one sliding window from another's."""

    name: str
    window: int = 0


TOKENS = Size("tokens")
LOGIT_ROWS = Size("logit rows")


class SizedTape:
    """A tape and which of its ops follow which size."""

    def __init__(self, tape: Tape, followers: Sequence[tuple[Size, int, IntArray]], tables: Sequence[IntArray]) -> None:
        self.tape = tape
        self._followers = followers
        self._tables = tables

    def resize(self, sizes: Mapping[Size, int]) -> None:
        """Set the items of every op that follows a size. Not while a team runs the tape."""
        for size, items_each, ops in self._followers:
            self.tape.set_items(ops, sizes[size] * items_each)


class SizedTapeBuilder:
    """Collects ops; `build` makes the tape."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._builder = TapeBuilder(num_threads)
        self._followers: defaultdict[tuple[Size, int], list[int]] = defaultdict(list)
        self._tables: list[IntArray] = []

    def table(self, values: Sequence[int]) -> int:
        """The address of `values` as i64, which live as long as the tape; 0 if there are none."""
        if not values:
            return 0
        self._tables.append(np.array(values, dtype=np.int64))
        return self._tables[-1].ctypes.data

    def add(self, function: int, args: Sequence[Arg], *, items: int, chunk: int = 1) -> None:
        """Append an op with as many items in every step."""
        self._builder.add(function, args, items=items, chunk=chunk)

    def add_sized(self, function: int, args: Sequence[Arg], *, size: Size, items_each: int = 1, chunk: int = 1) -> None:
        """Append an op with `items_each` items for each unit of `size`."""
        self._followers[size, items_each].append(self._builder.add(function, args, chunk=chunk))

    def build(self) -> SizedTape:
        """The tape of the ops added so far."""
        followers = [(size, each, np.array(ops)) for (size, each), ops in self._followers.items()]
        return SizedTape(self._builder.build(), followers, self._tables)
