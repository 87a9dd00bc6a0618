"""The KV blocks as numbers: which are free, and how many sequences hold each of the others."""

from __future__ import annotations


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

    def free(self, block_id: int) -> None:
        """Put a block that nobody holds back on the free list."""
        assert self.ref_counts[block_id] == 0, f"block {block_id} freed while held"
        self._free.append(block_id)
