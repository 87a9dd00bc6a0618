"""How a router learns what the replicas hold of a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from argosy.fleet.policies.routing.request import RoutingRequest


class PrefixMatcher(Protocol):
    """Knows, precisely or approximately, which replica holds which prefix."""

    def match(self, request: RoutingRequest, now_s: float) -> Mapping[str, int]:
        """Leading prompt tokens held, by replica id; a replica that holds none may be absent. Mutates nothing visible."""
        ...

    def record(self, request: RoutingRequest, replica_id: str, now_s: float) -> None:
        """Told that `request` goes to `replica_id`, whether or not this index wants to know."""
        ...

    def forget(self, replica_id: str) -> None:
        """Drop all that is known of a replica that left or lost its cache. Idempotent."""
        ...
