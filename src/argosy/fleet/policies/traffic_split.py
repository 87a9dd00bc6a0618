"""Traffic split between revisions of a model by conversation: weighted rendezvous hashing.

Schindelhauer and Schomaker, "Weighted Distributed Hash Tables" (2005): the arm with the largest -w / ln(u) wins, with u in
(0, 1) hashed from arm and key. Shares are proportional to the weights, and when one weight grows, keys move only to its arm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from argosy.errors import ConfigError
from argosy.fleet.policies.routing.policy import Question, Replicas, Score
from argosy.fleet.policies.routing.replica_state import ReplicaState
from argosy.fleet.policies.routing.request import stable_hash


@dataclass(frozen=True, slots=True)
class Arm:
    """One side of a split. Only ratios of weights matter; an arm of weight 0 gets nothing."""

    name: str
    weight: float


@dataclass(frozen=True, slots=True)
class TrafficSplit:
    """Sends each conversation to one arm, the same one in every process and for every request of it.

    Attributes:
        arms: names must differ, and one weight must be above 0.
        salt: tells splits apart, so that the same conversations are not the first of every rollout.
    """

    arms: tuple[Arm, ...]
    salt: str = ""

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the arm that cannot be."""
        names = [arm.name for arm in self.arms]
        if len(set(names)) != len(names):
            raise ConfigError(f"the arms of a traffic split must have different names, got {', '.join(names)}")
        for arm in self.arms:
            if not (math.isfinite(arm.weight) and arm.weight >= 0.0):
                raise ConfigError(f"weight of {arm.name!r} in a traffic split must be a number from 0 up, got {arm.weight}")
        if not any(arm.weight > 0.0 for arm in self.arms):
            raise ConfigError("a traffic split needs an arm with a weight above 0")

    def arm_of(self, session_key: str, rng: Random) -> str:
        """Name of the arm for a conversation; one without a key (`""`) is drawn from `rng`, or all would go to one arm."""
        live = [(arm.name, arm.weight) for arm in self.arms if arm.weight > 0.0]
        if not session_key:
            return rng.choices(live, weights=[weight for _, weight in live])[0][0]
        return live[rendezvous(session_key, live, self.salt)][0]


@dataclass(frozen=True, slots=True)
class ConversationPicker:
    """Picker of a router whose weights are shares of conversations, which stay where they are while that replica serves.

    While it does not, its conversations spread over the others by their weights, and come back to it.
    """

    salt: str = ""

    def pick(self, question: Question, candidates: Replicas, score: Score, rng: Random) -> ReplicaState:
        """Scores nothing. Without an affinity key: at random by weight."""
        key = question.request.affinity_key
        if not key:
            return rng.choices(candidates, weights=[replica.weight for replica in candidates])[0]
        return candidates[rendezvous(key, [(replica.replica_id, replica.weight) for replica in candidates], self.salt)]


def rendezvous(key: str, weights: Sequence[tuple[str, float]], salt: str = "") -> int:
    """Position of the arm, given as (name, weight above 0), that `key` belongs to."""
    scores = [-weight / math.log(_uniform(salt, name, key)) for name, weight in weights]
    return scores.index(max(scores))


def _uniform(salt: str, name: str, key: str) -> float:
    """In (0, 1). Lengths in front keep the parts apart, whatever they contain."""
    # 53 bits: more would round to 1.0, whose logarithm is zero.
    number = stable_hash(f"{len(salt)}:{salt}{len(name)}:{name}{key}") >> 11
    return (number + 0.5) / 2**53
