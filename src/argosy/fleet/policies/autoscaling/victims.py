"""Which replicas go when a fleet shrinks."""

from __future__ import annotations

from collections.abc import Sequence

from argosy.fleet.policies.routing.replica_state import ReplicaState


def replicas_to_remove(starting: Sequence[ReplicaState], ready: Sequence[ReplicaState], count: int) -> list[ReplicaState]:
    """The `count` replicas whose loss costs least: those that serve nothing yet, the latest first, then the least loaded.

    Args:
        starting, ready: each in the order in which they were added. Among equally loaded ones the latest goes, whose cache
            is the emptiest.
    """
    latest_first = list(reversed(starting))
    by_load = sorted(ready, key=lambda replica: -replica.num_requests)[::-1]
    return [*latest_first, *by_load][:count]
