"""News of the prefix index, for whoever routes requests to where their prefix lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from argosy.engine.core.radix_index import Namespace


class BlockStored(NamedTuple):
    """A block can be reused from here on. `parent_block_id` is None at the start of a prefix."""

    block_id: int
    parent_block_id: int | None
    token_ids: tuple[int, ...]
    namespace: Namespace


class BlockRemoved(NamedTuple):
    """A block was evicted; what is below it in the tree went before it."""

    block_id: int


class CacheCleared(NamedTuple):
    """Every block was removed at once."""


KVEvent = BlockStored | BlockRemoved | CacheCleared
KVListener = Callable[[KVEvent], None]
