"""Precise prefix index: what the replicas hold, as their KV events say."""

from __future__ import annotations

from dataclasses import dataclass, field

from argosy.errors import ConfigError
from argosy.fleet.policies.routing.request import RoutingRequest, chain_block, chain_root


@dataclass(slots=True)
class KvEventIndex:
    """Block hashes per replica, kept by its events: stored, removed, cleared. Holds as many blocks as the replicas do.

    Events of one replica must come in order and complete; after a gap, call `cleared` and let the replica tell all again.

    Attributes:
        block_tokens: tokens per KV block of the replicas; requests must be hashed in the same blocks.
    """

    block_tokens: int
    _hash_of_block: dict[str, dict[int, int]] = field(default_factory=dict)
    _holders: dict[int, dict[str, int]] = field(default_factory=dict)

    @property
    def num_blocks(self) -> int:
        """Blocks known, summed over the replicas."""
        return sum(len(blocks) for blocks in self._hash_of_block.values())

    def num_blocks_of(self, replica_id: str) -> int:
        """Blocks known of one replica."""
        return len(self._hash_of_block.get(replica_id, ()))

    def knows(self, replica_id: str, block_id: int) -> bool:
        """Whether a replica is known to hold the block that it calls `block_id`."""
        return block_id in self._hash_of_block.get(replica_id, ())

    def stored(
        self,
        replica_id: str,
        block_id: int,
        parent_block_id: int | None,
        token_ids: tuple[int, ...],
        *,
        cache_salt: str = "",
        adapter_id: str = "",
    ) -> None:
        """A block can be reused on `replica_id` from here on.

        A block whose parent is unknown is left out: no prompt reaches it.
        """
        blocks = self._hash_of_block.setdefault(replica_id, {})
        if parent_block_id is None:
            parent = chain_root(cache_salt, adapter_id)
        elif parent_block_id in blocks:
            parent = blocks[parent_block_id]
        else:
            return
        self.removed(replica_id, block_id)
        block_hash = chain_block(parent, token_ids)
        blocks[block_id] = block_hash
        holders = self._holders.setdefault(block_hash, {})
        holders[replica_id] = holders.get(replica_id, 0) + 1

    def removed(self, replica_id: str, block_id: int) -> None:
        """A block was evicted. Idempotent."""
        block_hash = self._hash_of_block.get(replica_id, {}).pop(block_id, None)
        if block_hash is not None:
            self._drop_holder(block_hash, replica_id)

    def cleared(self, replica_id: str) -> None:
        """Every block was removed at once."""
        self.forget(replica_id)

    def match(self, request: RoutingRequest, now_s: float) -> dict[str, int]:
        """Leading prompt tokens that each replica holds.

        Raises:
            ConfigError: the request is hashed in blocks of another size, so that nothing could ever match.
        """
        if request.prefix_blocks and request.prefix_block_tokens != self.block_tokens:
            raise ConfigError(
                f"the prompt is hashed in blocks of {request.prefix_block_tokens} tokens, the replicas' KV blocks have "
                f"{self.block_tokens}: hash it in theirs"
            )
        matched: dict[str, int] = {}
        alive: set[str] | None = None
        for depth, block in enumerate(request.prefix_blocks, start=1):
            holders = self._holders.get(block)
            if holders is None:
                break
            alive = set(holders) if alive is None else alive & holders.keys()
            for replica_id in alive:
                matched[replica_id] = depth * self.block_tokens
        return matched

    def record(self, request: RoutingRequest, replica_id: str, now_s: float) -> None:
        """Nothing to do: the replica will tell when the blocks are there."""

    def forget(self, replica_id: str) -> None:
        """Drop all that is known of a replica. Idempotent."""
        for block_hash in self._hash_of_block.pop(replica_id, {}).values():
            self._drop_holder(block_hash, replica_id)

    def _drop_holder(self, block_hash: int, replica_id: str) -> None:
        holders = self._holders[block_hash]
        holders[replica_id] -= 1
        if not holders[replica_id]:
            del holders[replica_id]
        if not holders:
            del self._holders[block_hash]
