"""The KV blocks as numbers: which are free, and how many sequences hold each of the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class BlockPool:
    """Block ids 0..num_blocks - 1 with a LIFO free list and reference counts; every operation is O(1).

    A block outside the free list with a count of zero is idle: it stands in the prefix index and nobody holds it. Which
    blocks those are is for the KV manager to know; the pool only counts.

    Attributes:
        ref_counts: holders of each block, by block id. Read by others, changed here only.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.ref_counts = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Blocks on the free list."""
        return len(self._free)

    @property
    def free_blocks(self) -> tuple[int, ...]:
        """The free list, for checks."""
        return tuple(self._free)

    def take(self) -> int:
        """Take a free block with a count of one. The caller has made sure that there is one."""
        block_id = self._free.pop()
        self.ref_counts[block_id] = 1
        return block_id

    def take_many(self, num_blocks: int) -> list[int]:
        """Take so many free blocks, in the order in which `take` would. The caller has made sure that there are as many."""
        free, counts = self._free, self.ref_counts
        first = len(free) - num_blocks
        taken = free[first:]
        del free[first:]
        taken.reverse()
        for block_id in taken:
            counts[block_id] = 1
        return taken

    def hold(self, block_id: int) -> int:
        """Add one holder and return the count."""
        count = self.ref_counts[block_id] + 1
        self.ref_counts[block_id] = count
        return count

    def drop(self, block_id: int) -> int:
        """Take one holder away and return the count; at zero the caller frees the block or keeps it as idle."""
        count = self.ref_counts[block_id] - 1
        assert count >= 0, f"block {block_id} dropped more often than held"
        self.ref_counts[block_id] = count
        return count

    def drop_many(self, block_ids: Iterable[int]) -> list[int]:
        """Take one holder away from each block, and return those that have none left, in the same order."""
        counts = self.ref_counts
        idle = []
        for block_id in block_ids:
            count = counts[block_id] - 1
            assert count >= 0, f"block {block_id} dropped more often than held"
            counts[block_id] = count
            if count == 0:
                idle.append(block_id)
        return idle

    def free_many(self, block_ids: Sequence[int]) -> None:
        """Put blocks that nobody holds back on the free list, in this order."""
        assert not any(map(self.ref_counts.__getitem__, block_ids)), "a block is freed while held"
        self._free.extend(block_ids)

    def free(self, block_id: int) -> None:
        """Put a block that nobody holds back on the free list."""
        assert self.ref_counts[block_id] == 0, f"block {block_id} freed while held"
        self._free.append(block_id)
