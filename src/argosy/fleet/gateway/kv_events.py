"""KV cache events of backends, on their way into the prefix index of their pool.

One `KvFeed` per pool, on the event loop of the data path. Who receives the events (`kv_subscriber`) works on another thread,
and passes them on in portions that a loop can take between two requests.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from argosy.fleet.policies.routing.event_or_sent_index import EventOrSentIndex
from argosy.observe.logs import log_event

_LOGGER = logging.getLogger("argosy.gateway.kv_events")


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


@dataclass(slots=True, eq=False)
class KvSource:
    """What one subscription has told about one backend.

    Attributes:
        is_open: False once the subscription has been ended; what still comes from it is ignored.
        num_batches: messages taken in, replayed ones included.
        num_gaps: times that messages were missing and could not be had again, so that what was known was dropped.
        num_malformed: messages that could not be understood, with the same consequence.
        num_left_out: blocks that were not remembered, because the limit was reached or their size is another one.
    """

    backend_id: str
    max_blocks: int
    is_open: bool = True
    num_batches: int = 0
    num_gaps: int = 0
    num_malformed: int = 0
    num_left_out: int = 0
    has_told_size: bool = False


class KvFeed:
    """Applies events to a pool's index, backend by backend. Belongs to the event loop of the data path."""

    def __init__(self, index: EventOrSentIndex) -> None:
        self.index = index

    def num_blocks_of(self, source: KvSource) -> int:
        """Blocks known of a backend."""
        return self.index.events.num_blocks_of(source.backend_id)

    def trust(self, source: KvSource) -> None:
        """From here on the events say what the backend holds; until then it is what was sent to it."""
        if source.is_open:
            self.index.set_told(source.backend_id, told=True)

    def lose(self, source: KvSource) -> None:
        """The connection is gone, and what the backend holds is unknown."""
        if source.is_open:
            self._clear(source)
            self.index.set_told(source.backend_id, told=False)

    def gap(self, source: KvSource, *, malformed: bool = False) -> None:
        """Something was missed: what was known of the backend is dropped, and grows again with what it stores.

        What it stores below a block that is not known any more is left out: no prompt reaches it.
        """
        if not source.is_open:
            return
        source.num_gaps += not malformed
        source.num_malformed += malformed
        self._clear(source)

    def close(self, source: KvSource) -> None:
        """The subscription has ended. Idempotent."""
        self.lose(source)
        source.is_open = False

    def apply(self, source: KvSource, events: Iterable[KvEvent]) -> None:
        """Take in events, in order."""
        if source.is_open:
            for event in events:
                self._apply(source, event)

    def _clear(self, source: KvSource) -> None:
        self.index.events.cleared(source.backend_id)

    def _apply(self, source: KvSource, event: KvEvent) -> None:
        index, backend_id = self.index.events, source.backend_id
        if isinstance(event, AllCleared):
            index.cleared(backend_id)
        elif isinstance(event, BlocksRemoved):
            for block_id in event.block_ids:
                index.removed(backend_id, block_id)
        elif event.block_ids:
            self._store(source, event)

    def _store(self, source: KvSource, event: BlocksStored) -> None:
        index, backend_id = self.index.events, source.backend_id
        size = len(event.token_ids) // len(event.block_ids)
        if size != index.block_tokens:
            source.num_left_out += len(event.block_ids)
            self._tell_size(source, size)
            return
        parent = event.parent_block_id
        for place, block_id in enumerate(event.block_ids):
            if index.num_blocks_of(backend_id) >= source.max_blocks and not index.knows(backend_id, block_id):
                source.num_left_out += len(event.block_ids) - place
                return
            tokens = event.token_ids[place * size : (place + 1) * size]
            index.stored(backend_id, block_id, parent, tokens, cache_salt=event.cache_salt, adapter_id=event.adapter_id)
            parent = block_id

    def _tell_size(self, source: KvSource, size: int) -> None:
        """Once for a subscription: blocks of another size than the prompts are hashed in would never match."""
        if not source.has_told_size:
            source.has_told_size = True
            log_event(
                _LOGGER,
                logging.ERROR,
                "KV blocks of another size are of no use; set routing.block_tokens to the backend's block size",
                backend=source.backend_id,
                block_tokens=size,
                expected=self.index.events.block_tokens,
            )
