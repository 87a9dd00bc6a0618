"""Who holds a prompt by their KV events, where those come in, and by what was sent to them, where not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from argosy.fleet.policies.routing.kv_event_index import KvEventIndex
from argosy.fleet.policies.routing.prefix_index import ApproximatePrefixIndex
from argosy.fleet.policies.routing.request import RoutingRequest


@dataclass(slots=True)
class EventOrSentIndex:
    """A precise index and an approximate one that stands in for it, replica by replica.

    What a replica's events say is the whole truth about it: an approximate index that remembers more is not asked then. It
    is asked for replicas without events, or whose events are broken off, and for requests whose tokens are not known. It is
    told of every request, so that it knows something when it is needed.

    Attributes:
        events: by `RoutingRequest.prefix_blocks`, hashes of tokens.
        sent: by `RoutingRequest.sent_blocks`, hashes of the prompt as it was written.
        on_forget: told of each replica that was forgotten, whose events must then be read from the beginning.
        num_by_events, num_by_sent: requests matched by events, and those with no tokens or no replica that has events.
    """

    events: KvEventIndex
    sent: ApproximatePrefixIndex
    on_forget: Callable[[str], None] | None = None
    num_by_events: int = 0
    num_by_sent: int = 0
    _told: set[str] = field(default_factory=set)

    def is_told(self, replica_id: str) -> bool:
        """Whether the events of a replica come in, complete so far as is known."""
        return replica_id in self._told

    def set_told(self, replica_id: str, *, told: bool) -> None:
        """The events of a replica come in, or no longer do."""
        if told:
            self._told.add(replica_id)
        else:
            self._told.discard(replica_id)

    def match(self, request: RoutingRequest, now_s: float) -> dict[str, int]:
        """Leading prompt tokens that each replica holds, or probably holds."""
        by_events = bool(request.prefix_blocks) and bool(self._told)
        self.num_by_events += by_events
        self.num_by_sent += not by_events
        written = replace(request, prefix_blocks=request.sent_blocks, prefix_block_tokens=request.sent_block_tokens)
        matched = self.sent.match(written, now_s)
        if by_events:
            for replica_id in self._told:
                matched.pop(replica_id, None)
            for replica_id, tokens in self.events.match(request, now_s).items():
                if replica_id in self._told:
                    matched[replica_id] = tokens
        return matched

    def record(self, request: RoutingRequest, replica_id: str, now_s: float) -> None:
        """Remember what was sent. What is stored, the replica will tell. Mutates this index."""
        written = replace(request, prefix_blocks=request.sent_blocks, prefix_block_tokens=request.sent_block_tokens)
        self.sent.record(written, replica_id, now_s)

    def forget(self, replica_id: str) -> None:
        """Drop all that is known of a replica, its events included, until they are trusted anew. Idempotent."""
        self.events.forget(replica_id)
        self.sent.forget(replica_id)
        self._told.discard(replica_id)
        if self.on_forget is not None:
            self.on_forget(replica_id)
