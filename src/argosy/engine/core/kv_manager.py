"""Who holds which KV block, which of them can be reused, and which make room.

At any moment each block is in exactly one state:

    free     on the free list, content without meaning
    held     in the block table of at least one sequence
    cached   published in the prefix index and held by nobody: reusable, and evictable

and free + cached + held == num_blocks. Whoever holds a published block holds the whole path above it, so every cached
block can be evicted, leaves first, and `num_free + num_cached` is what an allocation can count on.
"""

from __future__ import annotations

from argosy.engine.core.block_pool import BlockPool
from argosy.engine.core.eviction import EvictionPolicy, EvictionQueue
from argosy.engine.core.invariants import check_block_states, check_holder, check_index
from argosy.engine.core.kv_events import BlockRemoved, BlockStored, CacheCleared, KVListener
from argosy.engine.core.plan import BlockCopy
from argosy.engine.core.radix_index import Namespace, Node, RadixIndex
from argosy.engine.core.request import Sequence

NEVER = 2**62


class KVManager:
    """Block tables, reference counts, copy-on-write and the prefix index of one pool.

    Mutates of a `Sequence` only `block_table`, `capacity`, `num_computed` (at admission and release), `num_published` and
    `publish_at`. Calls either do all they say or return a refusal and change nothing.

    Attributes:
        num_prompt_publications: prompt blocks published so far; tells whether a failed match is worth repeating.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        kv_dtype: str,
        enable_prefix_caching: bool,
        policy: EvictionPolicy,
        listener: KVListener | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_prompt_publications = 0
        self._kv_dtype = kv_dtype
        self._caching = enable_prefix_caching
        self._listener = listener
        self._pool = BlockPool(num_blocks)
        self._index = RadixIndex(block_size)
        self._evictable = EvictionQueue(policy)
        self._num_cached = 0
        self._clock = 0
        self._holders: dict[int, Sequence] = {}

    @property
    def num_free(self) -> int:
        """Blocks on the free list."""
        return self._pool.num_free

    @property
    def num_cached(self) -> int:
        """Blocks in the prefix index that nobody holds."""
        return self._num_cached

    @property
    def num_held(self) -> int:
        """Blocks in at least one block table."""
        return self.num_blocks - self._pool.num_free - self._num_cached

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated, by eviction if need be."""
        return self._pool.num_free + self._num_cached

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens take."""
        return -(-num_tokens // self.block_size)

    def admit(self, sequence: Sequence, *, reserve_tokens: int, reusable_tokens: int, headroom_blocks: int) -> bool:
        """Give a sequence without blocks its cached prefix and room for `reserve_tokens` tokens in all.

        At most `reusable_tokens` are taken from the prefix index, in whole blocks. Matched blocks are held before anything
        is allocated, so that making room cannot evict them.

        Returns:
            False, and nothing changed, if this would leave fewer than `headroom_blocks` available.
        """
        assert not sequence.block_table, f"sequence {sequence.sequence_id} already holds blocks"
        matched: list[Node] = []
        if self._caching and reusable_tokens >= self.block_size:
            matched = self._index.match(self._namespace(sequence), sequence.token_ids, reusable_tokens // self.block_size)
        counts = self._pool.ref_counts
        num_idle = sum(1 for node in matched if counts[node.block_id] == 0)
        num_fresh = self.blocks_for(reserve_tokens) - len(matched)
        if num_fresh + headroom_blocks > self.num_available - num_idle:
            return False
        priority = sequence.request.priority
        for node in matched:
            self._hold_published(node)
            node.priority = min(node.priority, priority)
        table = [node.block_id for node in matched]
        table += self._allocate(num_fresh)
        self._set_table(sequence, tuple(table))
        sequence.num_published = len(matched)
        sequence.num_computed = len(matched) * self.block_size
        sequence.publish_at = (len(matched) + 1) * self.block_size if self._caching else NEVER
        self._holders[sequence.sequence_id] = sequence
        return True

    def fork(
        self, source: Sequence, sequence: Sequence, *, num_tokens: int, reserve_tokens: int, headroom_blocks: int
    ) -> tuple[BlockCopy, ...] | None:
        """Give a sequence without blocks the first `num_tokens` computed positions of `source`.

            source    [ full ][ full ][ part.... ]
            sequence  [ same ][ same ][ copy.... ][ own ]

        Full blocks are shared. The partial one is copied at once, since the sequence writes position `num_tokens` in its
        next step; so a partial block has one holder at any time and `source` never has to copy.

        Returns:
            The copies to put into the plan that first runs the sequence; None, and nothing changed, if this would leave
            fewer than `headroom_blocks` available.
        """
        assert not sequence.block_table, f"sequence {sequence.sequence_id} already holds blocks"
        assert num_tokens <= source.num_computed, "only computed positions can be shared"
        num_shared, num_in_partial = divmod(num_tokens, self.block_size)
        num_fresh = self.blocks_for(reserve_tokens) - num_shared
        if num_fresh + headroom_blocks > self.num_available:
            return None
        shared = source.block_table[:num_shared]
        for block_id in shared:
            self._pool.hold(block_id)
        fresh = tuple(self._allocate(num_fresh))
        self._set_table(sequence, shared + fresh)
        sequence.num_computed = num_tokens
        sequence.num_published = min(num_shared, source.num_published)
        sequence.publish_at = NEVER if source.publish_at == NEVER else (sequence.num_published + 1) * self.block_size
        self._holders[sequence.sequence_id] = sequence
        return (BlockCopy(source.block_table[num_shared], fresh[0]),) if num_in_partial else ()

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Extend the block table to `num_tokens` tokens; False, and nothing changed, if there are not enough blocks."""
        num_fresh = self.blocks_for(num_tokens) - len(sequence.block_table)
        if num_fresh == 1 and self._pool.num_free:
            self._set_table(sequence, (*sequence.block_table, self._pool.take()))
            return True
        if num_fresh > self.num_available:
            return False
        if num_fresh > 0:
            self._set_table(sequence, (*sequence.block_table, *self._allocate(num_fresh)))
        return True

    def publish(self, sequence: Sequence) -> None:
        """Put every block that is full of computed tokens into the prefix index. To be called when the step is over.

        If another sequence has published the same tokens first, its block takes the place of this sequence's own, which
        is freed: content is equal, and the path in the index stays one that the sequence holds.
        """
        size = self.block_size
        namespace = self._namespace(sequence)
        first = sequence.num_published
        parent = self._index.node_of(sequence.block_table[first - 1]) if first else None
        for depth in range(first, sequence.num_computed // size):
            tokens = tuple(sequence.token_ids[depth * size : (depth + 1) * size])
            block_id = sequence.block_table[depth]
            node = self._index.child(namespace, parent, tokens)
            if node is not None:
                self._replace(sequence, depth, node)
            else:
                node = self._index.insert(namespace, parent, tokens, block_id, sequence.request.priority)
                if (depth + 1) * size <= sequence.num_prompt:
                    self.num_prompt_publications += 1
                if self._listener is not None:
                    above = None if parent is None else parent.block_id
                    self._listener(BlockStored(block_id, above, tokens, namespace))
            parent = node
            sequence.num_published = depth + 1
        sequence.publish_at = (sequence.num_published + 1) * size

    def release(self, sequence: Sequence) -> None:
        """Let go of all blocks. Published ones nobody else holds stay as cached, the others become free."""
        self._clock += 1
        idle = self._pool.drop_many(reversed(sequence.block_table))
        if len(self._index):
            for block_id in idle:
                self._idle_or_free(block_id)
        else:
            self._pool.free_many(idle)
        self._set_table(sequence, ())
        sequence.num_computed = 0
        sequence.num_published = 0
        self._holders.pop(sequence.sequence_id, None)

    def reset_prefix_cache(self) -> None:
        """Forget every published block, e.g. because the weights changed. Cached blocks become free.

        Sequences keep the blocks they hold, and publish nothing before they are admitted again.
        """
        idle = [node.block_id for node in self._index.nodes() if self._pool.ref_counts[node.block_id] == 0]
        self._evictable.clear()
        self._index.clear()
        for block_id in idle:
            self._pool.free(block_id)
        self._num_cached = 0
        for sequence in self._holders.values():
            sequence.num_published = 0
            sequence.publish_at = NEVER
        if self._listener is not None:
            self._listener(CacheCleared())

    def holders(self) -> frozenset[int]:
        """Ids of the sequences that hold blocks, for checks."""
        return frozenset(self._holders)

    def check_invariants(self) -> None:
        """Raise `InvariantViolated` if blocks, tables and index contradict each other. O(blocks)."""
        holders = self._holders.values()
        check_block_states(self._pool, self._index, self._num_cached, holders)
        check_index(self._index, self._pool, self._evictable, self.block_size)
        for sequence in holders:
            check_holder(sequence, self._namespace(sequence), self._index, self._pool, self.block_size)

    def _namespace(self, sequence: Sequence) -> Namespace:
        return Namespace(sequence.request.cache_salt, sequence.request.adapter_id, self._kv_dtype)

    def _set_table(self, sequence: Sequence, table: tuple[int, ...]) -> None:
        sequence.block_table = table
        sequence.capacity = len(table) * self.block_size

    def _allocate(self, num_blocks: int) -> list[int]:
        """Free blocks while there are any, then evicted ones. The caller has made sure that there are as many."""
        taken = self._pool.take_many(min(num_blocks, self._pool.num_free))
        while len(taken) < num_blocks:
            self._evict()
            taken.append(self._pool.take())
        return taken

    def _evict(self) -> None:
        node = self._evictable.pop()
        parent = self._index.remove(node)
        self._num_cached -= 1
        self._pool.free(node.block_id)
        if parent is not None and not parent.children and self._pool.ref_counts[parent.block_id] == 0:
            self._evictable.add(parent)
        if self._listener is not None:
            self._listener(BlockRemoved(node.block_id))

    def _hold_published(self, node: Node) -> None:
        if self._pool.hold(node.block_id) == 1:
            self._num_cached -= 1
            self._evictable.discard(node)

    def _replace(self, sequence: Sequence, depth: int, node: Node) -> None:
        own = sequence.block_table[depth]
        self._hold_published(node)
        node.priority = min(node.priority, sequence.request.priority)
        table = sequence.block_table
        sequence.block_table = (*table[:depth], node.block_id, *table[depth + 1 :])
        if self._pool.drop(own) == 0:
            self._idle_or_free(own)

    def _idle_or_free(self, block_id: int) -> None:
        node = self._index.node_of(block_id)
        if node is None:
            self._pool.free(block_id)
            return
        self._num_cached += 1
        node.last_used = self._clock
        if not node.children:
            self._evictable.add(node)
