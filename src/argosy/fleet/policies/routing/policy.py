"""The parts a routing policy is made of, and what they are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from argosy.fleet.policies.routing.prefix_match import PrefixMatcher
from argosy.fleet.policies.routing.replica_state import ReplicaState
from argosy.fleet.policies.routing.request import RoutingRequest

Replicas = Sequence[ReplicaState]
Score = Callable[[Replicas], list[float]]


@dataclass(frozen=True, slots=True)
class Question:
    """One decision to be made.

    Attributes:
        members: the whole pool, replicas that take no requests included, for pickers whose choice must not move when a
            replica is away for a while.
        cached_tokens: by replica id, leading prompt tokens that it probably holds; absent means none.
    """

    request: RoutingRequest
    members: Replicas
    now_s: float
    cached_tokens: Mapping[str, int]


class Filter(Protocol):
    """Says which replicas may serve a request, or should."""

    @property
    def name(self) -> str:
        """What it looks at, for the error when no replica passes."""
        ...

    @property
    def is_preference(self) -> bool:
        """Whether it is passed over when no replica would be left."""
        ...

    def keep(self, request: RoutingRequest, candidates: Replicas) -> Replicas:
        """Those of `candidates` that may serve `request`, in order; the argument itself if all may. Mutates nothing."""
        ...


class Scorer(Protocol):
    """Says how well each replica would serve a request."""

    def score(self, question: Question, candidates: Replicas) -> list[float]:
        """One number in [0, 1] per candidate, in order; higher is better. Mutates nothing.

        Scores are compared within one call only, so they may be relative to the candidates given.
        """
        ...


class Picker(Protocol):
    """Chooses one replica. May keep state of its own, such as a position or a ring, and draw from `rng`."""

    def pick(self, question: Question, candidates: Replicas, score: Score, rng: Random) -> ReplicaState:
        """One of `candidates`, which are not empty. `score` gives the weighted mean of the scorers for any of them."""
        ...


@dataclass(frozen=True, slots=True)
class WeightedScorer:
    """A scorer and its share in the total."""

    scorer: Scorer
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class RoutingPolicy:
    """How a router decides. Filters are asked in order; only relative weights of scorers matter.

    `prefix_matcher` is asked once per decision what each replica holds of the prompt, and told where the prompt went.
    """

    name: str
    filters: tuple[Filter, ...]
    scorers: tuple[WeightedScorer, ...]
    picker: Picker
    prefix_matcher: PrefixMatcher | None = None
