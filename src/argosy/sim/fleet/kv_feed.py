"""Carries the KV events of simulated replicas to a router's precise prefix index."""

from __future__ import annotations

from argosy.engine.core.kv_events import BlockRemoved, BlockStored, KVEvent, KVListener
from argosy.fleet.policies.routing.kv_event_index import KvEventIndex


def kv_feed(index: KvEventIndex, replica_id: str) -> KVListener:
    """A listener for the scheduler of the replica with that id. Events arrive without delay and none is lost."""

    def on_event(event: KVEvent) -> None:
        if isinstance(event, BlockStored):
            space = event.namespace
            index.stored(
                replica_id,
                event.block_id,
                event.parent_block_id,
                event.token_ids,
                cache_salt=space.cache_salt,
                adapter_id=space.adapter_id,
            )
        elif isinstance(event, BlockRemoved):
            index.removed(replica_id, event.block_id)
        else:
            index.cleared(replica_id)

    return on_event
