"""Which cached block goes first when the pool runs dry.

Only leaves of the prefix index that nobody holds may go: a block without its prefix is of no use. A policy is a sort key;
the queue around it is a lazy heap, so that holding and letting go cost O(log n) and nothing is ever searched for.
"""

from __future__ import annotations

import heapq
from typing import Protocol

from argosy.engine.core.radix_index import Node

EvictionKey = tuple[int, ...]


class EvictionPolicy(Protocol):
    """The order of eviction. Stateless; the key of a node is taken when it becomes a candidate."""

    def key(self, node: Node) -> EvictionKey:
        """Lower goes first."""
        ...


class LeastRecentlyUsed:
    """The block whose last holder let go longest ago."""

    def key(self, node: Node) -> EvictionKey:
        """Time of last use; of one sequence's blocks the deeper first."""
        return (node.last_used, -node.depth)


class LargestFirst:
    """The block at the end of the longest prefix: long ones take most room and are shared least; then the LRU one."""

    def key(self, node: Node) -> EvictionKey:
        """Depth, deepest first, then time of last use."""
        return (-node.depth, node.last_used)


class LeastImportantFirst:
    """The block that only low-priority requests (high values) have used; then the LRU one."""

    def key(self, node: Node) -> EvictionKey:
        """Best priority among the requests that used it, worst first, then time of last use."""
        return (-node.priority, node.last_used, -node.depth)


def make_policy(name: str) -> EvictionPolicy:
    """The policy called `name` in `SchedulerConfig.eviction_policy`, which has checked the name."""
    policies: dict[str, EvictionPolicy] = {
        "lru": LeastRecentlyUsed(),
        "size": LargestFirst(),
        "priority": LeastImportantFirst(),
    }
    return policies[name]


class EvictionQueue:
    """Candidates for eviction in the policy's order.

    Entries are not removed when a node stops being a candidate: its `stamp` is cleared and the entry is skipped when it
    comes up. The heap is rebuilt when more than half of a large one is stale, which keeps it O(candidates).
    """

    _MIN_REBUILD = 64

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._heap: list[tuple[EvictionKey, int, Node]] = []
        self._num_live = 0
        self._last_stamp = 0

    def __len__(self) -> int:
        return self._num_live

    def add(self, node: Node) -> None:
        """Make `node` a candidate. Mutates its `stamp`."""
        assert node.stamp == 0, f"block {node.block_id} is a candidate twice"
        self._last_stamp += 1
        node.stamp = self._last_stamp
        heapq.heappush(self._heap, (self._policy.key(node), node.stamp, node))
        self._num_live += 1

    def discard(self, node: Node) -> None:
        """Make `node` no candidate, if it is one. Mutates its `stamp`."""
        if node.stamp == 0:
            return
        node.stamp = 0
        self._num_live -= 1
        if len(self._heap) > self._MIN_REBUILD and len(self._heap) > 2 * self._num_live:
            self._heap = [entry for entry in self._heap if entry[2].stamp == entry[1]]
            heapq.heapify(self._heap)

    def pop(self) -> Node:
        """Take out the first candidate. The caller has made sure that there is one."""
        while True:
            _, stamp, node = heapq.heappop(self._heap)
            if node.stamp == stamp:
                node.stamp = 0
                self._num_live -= 1
                return node

    def clear(self) -> None:
        """Drop every candidate."""
        for node in self.candidates():
            node.stamp = 0
        self._heap.clear()
        self._num_live = 0

    def candidates(self) -> list[Node]:
        """The live candidates in no particular order, for checks."""
        return [node for _, stamp, node in self._heap if node.stamp == stamp]
