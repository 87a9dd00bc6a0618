"""The prefix index: a tree of computed KV blocks, keyed by the tokens themselves.

    root of namespace (salt, adapter, dtype)
      +-- (1, 2, 3, 4) -> block 7
      |     +-- (5, 6, 7, 8) -> block 2
      |     +-- (5, 6, 9, 9) -> block 0
      +-- (8, 8, 8, 8) -> block 4

A path from a root spells a prefix; the node at depth d holds its d-th block. Children are found in a dict keyed by the
block's token tuple, so that a hash only leads to a candidate and equality of tokens decides. A tree of blocks with equal
tokens as edges is RadixAttention's idea (Zheng et al. 2024) at block granularity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

ROOT_BLOCK_ID = -1


class Namespace(NamedTuple):
    """Prefixes are shared within one of these and never across: tenant, weights and number format must all agree."""

    cache_salt: str
    adapter_id: str
    kv_dtype: str


@dataclass(slots=True, eq=False)
class Node:
    """One published block.

    Attributes:
        tokens: the tokens whose KV the block holds.
        depth: its place in the prefix, from 1; a root has 0.
        last_used: logical time at which its last holder let go.
        priority: the best (lowest) priority among the requests that held it.
        stamp: identifies its live entry in the eviction queue, 0 if it has none.
        namespace: of a root, the namespace it stands for.
    """

    block_id: int
    tokens: tuple[int, ...]
    parent: Node | None
    depth: int
    priority: int = 0
    last_used: int = 0
    stamp: int = 0
    namespace: Namespace | None = None
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)


class RadixIndex:
    """Published blocks of every namespace, one node per block. Knows nothing of reference counts."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._roots: dict[Namespace, Node] = {}
        self._node_of_block: dict[int, Node] = {}

    def __len__(self) -> int:
        return len(self._node_of_block)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._node_of_block

    def node_of(self, block_id: int) -> Node | None:
        """The node that holds `block_id`, or None if the block is not published."""
        return self._node_of_block.get(block_id)

    def nodes(self) -> Iterator[Node]:
        """Every published node, in no particular order."""
        return iter(self._node_of_block.values())

    def roots(self) -> Iterator[tuple[Namespace, Node]]:
        """Every namespace that has published blocks, with its root."""
        return iter(self._roots.items())

    def match(self, namespace: Namespace, token_ids: Sequence[int], max_blocks: int) -> list[Node]:
        """The longest published prefix of `token_ids`, as nodes from depth 1, at most `max_blocks` of them."""
        matched: list[Node] = []
        node = self._roots.get(namespace)
        if node is None:
            return matched
        size = self._block_size
        for begin in range(0, max_blocks * size, size):
            node = node.children.get(tuple(token_ids[begin : begin + size]))
            if node is None:
                break
            matched.append(node)
        return matched

    def child(self, namespace: Namespace, parent: Node | None, tokens: tuple[int, ...]) -> Node | None:
        """The node for `tokens` below `parent` (None: below the namespace's root), or None."""
        above = self._roots.get(namespace) if parent is None else parent
        return None if above is None else above.children.get(tokens)

    def insert(
        self, namespace: Namespace, parent: Node | None, tokens: tuple[int, ...], block_id: int, priority: int
    ) -> Node:
        """Publish `block_id` below `parent` (None: below the namespace's root) and return its node."""
        if parent is None:
            root = Node(ROOT_BLOCK_ID, (), None, 0, namespace=namespace)
            parent = self._roots.setdefault(namespace, root)
        assert block_id not in self._node_of_block, f"block {block_id} published twice"
        assert tokens not in parent.children, "the same tokens published twice"
        node = Node(block_id, tokens, parent, parent.depth + 1, priority)
        parent.children[tokens] = node
        self._node_of_block[block_id] = node
        return node

    def remove(self, node: Node) -> Node | None:
        """Take a leaf out and return its parent, or None if that is a root. An empty namespace is forgotten."""
        assert not node.children, "only leaves leave the index"
        del self._node_of_block[node.block_id]
        parent = node.parent
        assert parent is not None, "a root holds no block"
        del parent.children[node.tokens]
        if parent.block_id != ROOT_BLOCK_ID:
            return parent
        if not parent.children and parent.namespace is not None:
            del self._roots[parent.namespace]
        return None

    def clear(self) -> None:
        """Forget everything; the blocks are the caller's to free."""
        self._roots.clear()
        self._node_of_block.clear()
