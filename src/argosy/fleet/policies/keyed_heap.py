"""A heap whose keys can change their rank and leave."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class KeyedHeap(Generic[K]):
    """Keys by rank, lowest first, and of equal rank the one ranked first. All operations O(log n), amortized.

    What changes or leaves stays in the heap until it comes up, and is swept out when it is the larger part, so that the
    size stays in proportion to the keys.
    """

    _MIN_SWEEP = 64

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, K]] = []
        self._current: dict[K, tuple[float, int]] = {}
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._current)

    def __contains__(self, key: K) -> bool:
        return key in self._current

    @property
    def num_entries(self) -> int:
        """Entries held, outdated ones included: at most twice the keys and a constant."""
        return len(self._entries)

    def rank(self, key: K, rank: float) -> None:
        """Put `key` in, or give it another rank. Without effect if it has that rank."""
        current = self._current.get(key)
        if current is not None and current[0] == rank:
            return
        self._last_number += 1
        self._current[key] = (rank, self._last_number)
        heapq.heappush(self._entries, (rank, self._last_number, key))
        self._sweep()

    def discard(self, key: K) -> None:
        """Take `key` out if it is in."""
        if self._current.pop(key, None) is not None:
            self._sweep()

    def first(self) -> tuple[float, K] | None:
        """The lowest rank and its key, which stay; None if there is no key."""
        entries, current = self._entries, self._current
        while entries:
            rank, number, key = entries[0]
            if current.get(key) == (rank, number):
                return rank, key
            heapq.heappop(entries)
        return None

    def _sweep(self) -> None:
        if len(self._entries) > 2 * len(self._current) + self._MIN_SWEEP:
            self._entries = [(rank, number, key) for key, (rank, number) in self._current.items()]
            heapq.heapify(self._entries)
