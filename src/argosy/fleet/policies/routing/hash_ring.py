"""Consistent hashing with virtual nodes and bounded load.

    0 ------- r2 -- r0 ---- key ---- r1 -- r2 ----- r0 --- r1 ---- 2^64
                             '-> clockwise: r1; if r1 is away or full: r2, then r0

Karger et al. 1997 for the ring; Mirrokni, Thorup and Zadimoghaddam 2018 for the bound: with m requests in flight, this one
included, none of n replicas gets more than ceil(c m / n), and what overflows walks on.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from random import Random

from argosy.errors import ConfigError
from argosy.fleet.policies.routing.policy import Picker, Question, Replicas, Score
from argosy.fleet.policies.routing.replica_state import ReplicaState
from argosy.fleet.policies.routing.request import stable_hash


@dataclass(slots=True)
class HashRing:
    """The replica that owns the request's affinity key; requests without one go to `keyless`.

    Points are placed for every member, those that take no requests included: while one is away its keys walk on to the next
    candidates and come back with it, and no other key moves.

    Attributes:
        keyless: picks for requests without an affinity key; one ring position for all of them would be one replica.
        virtual_nodes: points per unit of weight. The spread of the shares falls with their square root.
        load_bound: c > 1 of the bound, or None for no bound. Load is requests in flight, shared out by weight.
    """

    keyless: Picker
    virtual_nodes: int = 100
    load_bound: float | None = 1.25
    _weights: list[tuple[str, float]] = field(default_factory=list)
    _points: list[int] = field(default_factory=list)
    _owners: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        if self.virtual_nodes < 1:
            raise ConfigError(f"virtual_nodes must be at least 1, got {self.virtual_nodes}")
        if self.load_bound is not None and not self.load_bound > 1.0:
            raise ConfigError(f"load_bound must be above 1, or null for none, got {self.load_bound}")

    def pick(self, question: Question, candidates: Replicas, score: Score, rng: Random) -> ReplicaState:
        """The first candidate on the way that has room."""
        key = question.request.affinity_key
        if not key:
            return self.keyless.pick(question, candidates, score, rng)
        self._place(question.members)
        with_room = self._with_room(candidates)
        start = bisect_right(self._points, stable_hash(key))
        owners = self._owners
        for step in range(len(owners)):
            owner = with_room.get(owners[(start + step) % len(owners)])
            if owner is not None:
                return owner
        raise AssertionError("the bounds add up to more than the load, so that some candidate has room")

    def _with_room(self, candidates: Replicas) -> dict[str, ReplicaState]:
        """The candidates below their bound, ceil(c m w / W), by id."""
        if self.load_bound is None:
            return {replica.replica_id: replica for replica in candidates}
        loads = [replica.num_requests for replica in candidates]
        share = self.load_bound * (sum(loads) + 1) / sum(replica.weight for replica in candidates)
        return {
            replica.replica_id: replica
            for replica, load in zip(candidates, loads, strict=True)
            if load < math.ceil(share * replica.weight)
        }

    def _place(self, members: Replicas) -> None:
        """Lay out the ring again if ids or weights are others than at the last pick."""
        weights = [(member.replica_id, member.weight) for member in members]
        if self._weights == weights:
            return
        self._weights = weights
        placed = sorted(
            (stable_hash(f"{replica_id}#{number}"), replica_id)
            for replica_id, weight in weights
            for number in range(math.ceil(self.virtual_nodes * weight))
        )
        self._points = [point for point, _ in placed]
        self._owners = [replica_id for _, replica_id in placed]
