"""What must hold between any two calls, recomputed from scratch. For tests, simulation and debugging: O(everything held).

Each violation raises `InvariantViolated` naming the invariant, since `assert` vanishes under `python -O`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from argosy.engine.core.block_pool import BlockPool
from argosy.engine.core.eviction import EvictionQueue
from argosy.engine.core.radix_index import Namespace, Node, RadixIndex
from argosy.engine.core.request import Sequence, SequenceStatus
from argosy.engine.core.request_group import RequestGroup


class InvariantViolated(AssertionError):
    """A bug of ours: the state contradicts itself."""


def check_block_states(pool: BlockPool, index: RadixIndex, num_cached: int, holders: Collection[Sequence]) -> None:
    """Reference counts equal the block tables; each block is free, held or cached, and nothing else."""
    held = Counter(block_id for sequence in holders for block_id in sequence.block_table)
    for sequence in holders:
        _require(
            len(set(sequence.block_table)) == len(sequence.block_table),
            f"no block twice in a table: sequence {sequence.sequence_id} has {sequence.block_table}",
        )
    free = Counter(pool.free_blocks)
    cached = 0
    for block_id in range(pool.num_blocks):
        count, is_published = pool.ref_counts[block_id], block_id in index
        _require(
            count == held[block_id],
            f"references equal tables: block {block_id} counts {count}, stands in {held[block_id]} tables",
        )
        _require(free[block_id] <= 1, f"no block twice on the free list: {block_id}")
        _require(
            (free[block_id] == 1) == (count == 0 and not is_published),
            f"free means neither held nor published: block {block_id}, free {free[block_id]}, held {count}, "
            f"published {is_published}",
        )
        cached += count == 0 and is_published
    _require(cached == num_cached, f"cached blocks are counted: {cached} found, {num_cached} counted")
    _require(
        pool.num_free + cached + sum(1 for count in held.values() if count) == pool.num_blocks,
        "free + cached + held = total",
    )


def check_index(index: RadixIndex, pool: BlockPool, evictable: EvictionQueue, block_size: int) -> None:
    """The index is a forest of whole blocks; who holds a node holds its parent; idle leaves can be evicted, no others."""
    reached: list[Node] = []
    for namespace, root in index.roots():
        _require(bool(root.children), f"no empty namespace is kept: {namespace}")
        _require(root.depth == 0 and root.parent is None, "a root has no parent and depth 0")
        stack = [root]
        while stack:
            node = stack.pop()
            for tokens, child in node.children.items():
                _require(tokens == child.tokens and len(tokens) == block_size, f"key equals tokens: {tokens}")
                _require(child.parent is node and child.depth == node.depth + 1, f"parent link: {child.block_id}")
                _require(index.node_of(child.block_id) is child, f"one node per block: {child.block_id}")
                _require(
                    node is root or not pool.ref_counts[child.block_id] or pool.ref_counts[node.block_id] > 0,
                    f"the parent of a held node is held: {node.block_id} above {child.block_id}",
                )
                reached.append(child)
                stack.append(child)
    _require(len(reached) == len(index), f"every node hangs on a root: {len(reached)} of {len(index)}")
    leaves = {n.block_id for n in reached if not n.children and pool.ref_counts[n.block_id] == 0}
    candidates = [n.block_id for n in evictable.candidates()]
    _require(
        sorted(candidates) == sorted(leaves) and len(evictable) == len(leaves),
        f"candidates for eviction are the idle leaves: {sorted(candidates)} against {sorted(leaves)}",
    )


def check_holder(sequence: Sequence, namespace: Namespace, index: RadixIndex, pool: BlockPool, block_size: int) -> None:
    """A table has room for what is computed, its published part is a path in the index, and the rest is writable."""
    table, name = sequence.block_table, f"sequence {sequence.sequence_id}"
    _require(sequence.capacity == len(table) * block_size, f"capacity equals the table: {name}")
    _require(sequence.num_computed <= sequence.capacity, f"computed positions have blocks: {name}")
    _require(sequence.num_computed <= len(sequence.token_ids), f"computed positions have tokens: {name}")
    num_full = sequence.num_computed // block_size
    _require(sequence.num_published <= num_full, f"only computed blocks are published: {name}")
    _require(
        sequence.publish_at > sequence.num_computed,
        f"what can be published is: {name} has computed {sequence.num_computed}, publishes at {sequence.publish_at}",
    )
    path = index.match(namespace, sequence.token_ids, sequence.num_published)
    _require(
        tuple(node.block_id for node in path) == table[: sequence.num_published],
        f"the published part is a path: {name}",
    )
    for place, block_id in enumerate(table[sequence.num_published :], start=sequence.num_published):
        _require(block_id not in index, f"the rest is not published: {name}, block {block_id}")
        _require(
            place < num_full or pool.ref_counts[block_id] == 1,
            f"a block to be written has one holder: {name}, block {block_id}",
        )


def check_sequences(running: list[Sequence], queued: list[Sequence], groups: Iterable[RequestGroup]) -> None:
    """Every sequence alive is in exactly one place, with the status and the blocks that belong there."""
    _require(running == sorted(running, key=lambda s: s.rank), "running sequences are in order of rank")
    parked: list[Sequence] = []
    alive: list[Sequence] = []
    for group in groups:
        members = [s for s in group.sequences if s.status is not SequenceStatus.FINISHED]
        waiting = [s for s in members if s.status is SequenceStatus.WAITING]
        _require(group.num_alive == len(members) > 0, f"a request lives as long as a sequence: {group.request.request_id}")
        _require(group.num_waiting == len(waiting), f"waiting sequences are counted: {group.request.request_id}")
        leaders = [s for s in members if s.has_parked_siblings]
        _require(
            len(leaders) == 1 or not group.parked, f"whom parked siblings wait for is alive: {group.request.request_id}"
        )
        parked += group.parked
        alive += members
    placed = [s.sequence_id for s in (*running, *queued, *parked)]
    _require(sorted(placed) == sorted(s.sequence_id for s in alive), "every sequence alive is in one place")
    for sequence in running:
        _require(sequence.status is SequenceStatus.RUNNING, f"status: {sequence.sequence_id} runs")
        _require(
            not sequence.protected or sequence.capacity >= sequence.max_len - 1,
            f"a protected sequence has all it needs: {sequence.sequence_id}",
        )
    for sequence in (*queued, *parked):
        _require(
            sequence.status is SequenceStatus.WAITING and not sequence.block_table and not sequence.num_computed,
            f"who waits holds nothing: {sequence.sequence_id}",
        )
    for sequence in alive:
        _require(
            len(sequence.token_ids) < sequence.max_len or sequence.max_len == sequence.num_prompt,
            f"who is alive has not met its limit: {sequence.sequence_id}",
        )


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantViolated(what)
