"""Approximate prefix index: a replica holds what was sent to it lately.

It costs the replicas nothing and needs nothing of them, and it errs when a replica evicts sooner than the index does; so
give it about as many blocks per replica as the KV pools have.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from argosy.errors import ConfigError
from argosy.fleet.policies.routing.request import RoutingRequest


@dataclass(slots=True)
class ApproximatePrefixIndex:
    """Block hashes per replica, least recently used dropped first; memory is bounded by replicas x blocks.

    A prompt is a path in a tree of blocks, but since each hash covers all that precedes it, a flat map from hash to holders
    answers the same question: follow the prompt's hashes until nobody is left.

    Attributes:
        max_blocks_per_replica: blocks remembered of one replica.
        ttl_s: seconds after which a block not used again is forgotten.
    """

    max_blocks_per_replica: int = 50_000
    ttl_s: float = 600.0
    _last_used_s: dict[str, OrderedDict[int, float]] = field(default_factory=dict)
    _holders: dict[int, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        if self.max_blocks_per_replica < 1:
            raise ConfigError(f"max_blocks_per_replica must be at least 1, got {self.max_blocks_per_replica}")
        if not self.ttl_s > 0.0:
            raise ConfigError(f"ttl_s must be above 0, got {self.ttl_s}")

    @property
    def num_blocks(self) -> int:
        """Blocks remembered, summed over the replicas."""
        return sum(len(blocks) for blocks in self._last_used_s.values())

    def match(self, request: RoutingRequest, now_s: float) -> dict[str, int]:
        """Leading prompt tokens that each replica probably holds."""
        matched: dict[str, int] = {}
        oldest_s = now_s - self.ttl_s
        alive: set[str] | None = None
        for depth, block in enumerate(request.prefix_blocks, start=1):
            holders = self._holders.get(block)
            if holders is None:
                break
            alive = {r for r in (holders if alive is None else alive & holders) if self._last_used_s[r][block] >= oldest_s}
            if not alive:
                break
            for replica_id in alive:
                matched[replica_id] = depth * request.prefix_block_tokens
        return matched

    def record(self, request: RoutingRequest, replica_id: str, now_s: float) -> None:
        """Remember that `replica_id` will hold the prompt. Mutates this index.

        The first block is touched last: when room is needed, the ends of prefixes go before their beginnings, without
        which they are worth nothing.
        """
        if not request.prefix_blocks:
            return
        blocks = self._last_used_s.setdefault(replica_id, OrderedDict())
        for block in reversed(request.prefix_blocks):
            blocks[block] = now_s
            blocks.move_to_end(block)
            self._holders.setdefault(block, set()).add(replica_id)
        oldest_s = now_s - self.ttl_s
        while len(blocks) > self.max_blocks_per_replica or next(iter(blocks.values())) < oldest_s:
            block, _ = blocks.popitem(last=False)
            self._drop_holder(block, replica_id)

    def forget(self, replica_id: str) -> None:
        """Drop all that is known of a replica. Idempotent."""
        for block in self._last_used_s.pop(replica_id, ()):
            self._drop_holder(block, replica_id)

    def _drop_holder(self, block: int, replica_id: str) -> None:
        holders = self._holders[block]
        holders.discard(replica_id)
        if not holders:
            del self._holders[block]
