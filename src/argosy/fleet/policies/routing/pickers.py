"""Which of the candidates gets the request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from argosy.errors import ConfigError
from argosy.fleet.policies.routing.loads import requests_per_weight
from argosy.fleet.policies.routing.policy import Question, Replicas, Score
from argosy.fleet.policies.routing.replica_state import ReplicaState

# Scores that differ by less are the same: what is left of adding them up in another order.
_SAME_SCORE = 1e-9


def best_of(candidates: Replicas, scores: Sequence[float], rng: Random) -> ReplicaState:
    """The candidate with the highest score.

    Among equals it is the one with fewest requests per weight, then the one picked longest ago, then any at random. Equal
    scores are common (an idle fleet, nothing cached anywhere): always taking the first of them would send a whole burst to
    one replica, and the requests of every router with the same view.
    """
    highest = max(scores) - _SAME_SCORE
    best = [replica for replica, score in zip(candidates, scores, strict=True) if score >= highest]
    if len(best) > 1:
        ranks = [(requests_per_weight(replica), replica.last_picked) for replica in best]
        lowest = min(ranks)
        best = [replica for replica, rank in zip(best, ranks, strict=True) if rank == lowest]
    return best[0] if len(best) == 1 else best[rng.randrange(len(best))]


@dataclass(frozen=True, slots=True)
class HighestScore:
    """The best of all candidates, as `best_of` breaks ties."""

    def pick(self, question: Question, candidates: Replicas, score: Score, rng: Random) -> ReplicaState:
        """Scores every candidate."""
        return best_of(candidates, score(candidates), rng)


@dataclass(frozen=True, slots=True)
class BestOfSample:
    """The best of a few drawn at random, in proportion to weight: power of two choices (Mitzenmacher 2001).

    Probing two instead of one lowers the expected longest queue over R replicas from order ln R / ln ln R to ln ln R, and
    unlike the best of all, two routers with the same stale view rarely choose the same replica.
    """

    num_probed: int = 2

    def __post_init__(self) -> None:
        """Raise `ConfigError` if nothing would be probed."""
        if self.num_probed < 1:
            raise ConfigError(f"num_probed must be at least 1, got {self.num_probed}")

    def pick(self, question: Question, candidates: Replicas, score: Score, rng: Random) -> ReplicaState:
        """Scores only the replicas drawn, which are distinct."""
        if len(candidates) <= self.num_probed:
            return best_of(candidates, score(candidates), rng)
        drawn = draw_distinct(candidates, self.num_probed, rng)
        return best_of(drawn, score(drawn), rng)


def draw_distinct(candidates: Replicas, count: int, rng: Random) -> list[ReplicaState]:
    """Draw `count` distinct replicas, fewer than there are, each draw in proportion to the weights of those left."""
    weights = [replica.weight for replica in candidates]
    if weights.count(weights[0]) == len(weights):
        return rng.sample(candidates, count)
    left, drawn = list(candidates), []
    for _ in range(count):
        place = rng.choices(range(len(left)), weights=weights)[0]
        drawn.append(left.pop(place))
        weights.pop(place)
    return drawn


@dataclass(frozen=True, slots=True)
class AtRandom:
    """Any candidate, alike or in proportion to weight."""

    weighted: bool = False

    def pick(self, question: Question, candidates: Replicas, score: Score, rng: Random) -> ReplicaState:
        """Scores nothing."""
        if not self.weighted:
            return candidates[rng.randrange(len(candidates))]
        return rng.choices(candidates, weights=[replica.weight for replica in candidates])[0]


@dataclass(frozen=True, slots=True)
class Softmax:
    """At random with probability proportional to exp(score / temperature): spreads what many routers see alike."""

    temperature: float = 0.1

    def __post_init__(self) -> None:
        """Raise `ConfigError` if the temperature is not positive."""
        if not self.temperature > 0.0:
            raise ConfigError(f"temperature must be above 0, got {self.temperature}")

    def pick(self, question: Question, candidates: Replicas, score: Score, rng: Random) -> ReplicaState:
        """Scores every candidate."""
        scores = score(candidates)
        highest = max(scores)
        weights = [math.exp((value - highest) / self.temperature) for value in scores]
        return rng.choices(candidates, weights=weights)[0]


@dataclass(slots=True)
class RoundRobin:
    """In turn, in proportion to weight if asked: stride scheduling (Waldspurger and Weihl 1995).

    Each replica's `pass` grows by its stride, 1 / weight, whenever it is picked, and the lowest pass is next. A replica that
    joins, or comes back, starts at the lowest pass of the others: it takes its turn and does not catch up. Positions in a
    list would skip or repeat replicas whenever one leaves.
    """

    weighted: bool = False
    _passes: dict[str, float] = field(default_factory=dict)

    def pick(self, question: Question, candidates: Replicas, score: Score, rng: Random) -> ReplicaState:
        """Scores nothing. Remembers only the candidates of the last pick."""
        known = self._passes
        passes = [known.get(replica.replica_id) for replica in candidates]
        lowest = min((value for value in passes if value is not None), default=0.0)
        if len(known) != len(candidates) or None in passes:
            passes = [lowest if value is None else value for value in passes]
            known = {
                replica.replica_id: value for replica, value in zip(candidates, passes, strict=True) if value is not None
            }
            self._passes = known
        picked = candidates[passes.index(lowest)]
        known[picked.replica_id] = lowest + (1.0 / picked.weight if self.weighted else 1.0)
        return picked
