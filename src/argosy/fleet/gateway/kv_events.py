"""KV cache events of backends, on their way into the precise prefix index.

The transport is whoever has it: an engine in this process, a subscriber of vLLM's or SGLang's event stream. Each batch has a
sequence number; events say what changed, so that after a gap nothing that is known of the backend may be trusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from argosy.fleet.policies.routing.kv_event_index import KvEventIndex

MAX_BLOCKS_PER_BACKEND = 2_000_000


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Blocks, one following the other, that can be reused from here on.

    Attributes:
        block_ids: the backend's own names of the blocks.
        parent_block_id: the block before the first of them, None at the start of a prompt.
        token_ids: of all the blocks, as many for each.
    """

    block_ids: tuple[int, ...]
    parent_block_id: int | None
    token_ids: tuple[int, ...]
    cache_salt: str = ""
    adapter_id: str = ""


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """Blocks that were evicted."""

    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AllCleared:
    """Every block was removed."""


KvEvent = BlocksStored | BlocksRemoved | AllCleared


class MalformedEvent(ValueError):
    """An event that cannot be understood; what follows it cannot be trusted either."""


def decode_event(event: Mapping[str, Any]) -> KvEvent:
    """An event as vLLM and SGLang publish it: a mapping with `type` BlockStored, BlockRemoved or AllBlocksCleared.

    Raises:
        MalformedEvent: the type is unknown, or a field is missing or wrong.
    """
    try:
        kind = event["type"]
        if kind == "AllBlocksCleared":
            return AllCleared()
        blocks = tuple(_block_id(each) for each in event["block_hashes"])
        if kind == "BlockRemoved":
            return BlocksRemoved(blocks)
        if kind != "BlockStored":
            raise MalformedEvent(f"the type {str(kind)[:80]!r} of a KV event is unknown")
        tokens = tuple(int(token) for token in event["token_ids"])
        if len(tokens) != len(blocks) * int(event["block_size"]):
            raise MalformedEvent(
                f"a KV event has {len(blocks)} blocks and {len(tokens)} tokens, which do not fit each other"
            )
        parent = event.get("parent_block_hash")
        adapter = event.get("lora_name") or event.get("lora_id")
        return BlocksStored(
            blocks,
            None if parent is None else _block_id(parent),
            tokens,
            cache_salt=str(event.get("cache_salt") or ""),
            adapter_id="" if adapter is None else str(adapter),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, MalformedEvent):
            raise
        raise MalformedEvent(f"a KV event lacks or garbles a field: {error}") from None


def _block_id(value: object) -> int:
    """vLLM names blocks by integers or, with a cryptographic hash, by bytes."""
    if isinstance(value, bytes):
        return int.from_bytes(value[:8], "big")
    if isinstance(value, bool) or not isinstance(value, int):
        raise MalformedEvent("the hash of a block must be an integer or bytes")
    return value


class KvEventFeed:
    """Applies events to an index, backend by backend. Belongs to the event loop of the data path.

    Attributes:
        num_gaps: times that batches of a backend were missing or malformed, and what was known of it was dropped.
    """

    def __init__(self, index: KvEventIndex, *, max_blocks_per_backend: int = MAX_BLOCKS_PER_BACKEND) -> None:
        self.num_gaps = 0
        self._index = index
        self._max_blocks = max_blocks_per_backend
        self._next: dict[str, int] = {}

    def on_batch(self, backend_id: str, sequence: int, events: Sequence[KvEvent | Mapping[str, Any]]) -> bool:
        """Take in one batch; False if the backend should be asked to tell again what it holds.

        A batch that came before is passed over. After a gap or a malformed event everything known of the backend is dropped
        and later events build on nothing: what they name grows again as the backend stores new prefixes.
        """
        expected = self._next.get(backend_id)
        if expected is not None and sequence < expected and sequence != 0:
            return True
        complete = expected is None or sequence == expected
        if not complete:
            # A number of 0 again: the backend has started anew.
            self._drop(backend_id)
        self._next[backend_id] = sequence + 1
        try:
            decoded = [decode_event(event) if isinstance(event, Mapping) else event for event in events]
        except MalformedEvent:
            self._drop(backend_id)
            return False
        for event in decoded:
            self._apply(backend_id, event)
        return complete

    def forget(self, backend_id: str) -> None:
        """A backend left or lost its cache. Idempotent."""
        self._index.forget(backend_id)
        self._next.pop(backend_id, None)

    def _drop(self, backend_id: str) -> None:
        self.num_gaps += 1
        self._index.cleared(backend_id)

    def _apply(self, backend_id: str, event: KvEvent) -> None:
        index = self._index
        if isinstance(event, AllCleared):
            index.cleared(backend_id)
            return
        if isinstance(event, BlocksRemoved):
            for block_id in event.block_ids:
                index.removed(backend_id, block_id)
            return
        size = index.block_tokens
        if len(event.token_ids) != size * len(event.block_ids):
            # Blocks of another size than the prompts are hashed in would never match.
            self._drop(backend_id)
            return
        if index.num_blocks_of(backend_id) + len(event.block_ids) > self._max_blocks:
            self._drop(backend_id)
            return
        parent = event.parent_block_id
        for place, block_id in enumerate(event.block_ids):
            tokens = event.token_ids[place * size : (place + 1) * size]
            index.stored(backend_id, block_id, parent, tokens, cache_salt=event.cache_salt, adapter_id=event.adapter_id)
            parent = block_id
