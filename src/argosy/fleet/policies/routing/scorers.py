"""How well each replica would serve a request, in [0, 1].

A cost becomes a score relative to the dearest candidate, 1 - cost / largest: a replica that costs nothing scores 1, and two
that cost nearly the same score nearly the same. Stretching the costs to fill [0, 1] instead would let a difference of one
request among a hundred outweigh a whole cached prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from argosy.fleet.policies.routing.loads import LoadMeasure, requests_per_weight
from argosy.fleet.policies.routing.policy import Question, Replicas


def falling(costs: Sequence[float]) -> list[float]:
    """Scores of costs, which are not negative: 1 for a cost of 0, 0 for the largest; all 1 if none costs anything."""
    largest = max(costs)
    if largest <= 0.0:
        return [1.0] * len(costs)
    return [1.0 - cost / largest for cost in costs]


@dataclass(frozen=True, slots=True)
class LeastLoad:
    """Less load is better, by any measure of `loads`."""

    measure: LoadMeasure = requests_per_weight

    def score(self, question: Question, candidates: Replicas) -> list[float]:
        """Relative to the most loaded candidate."""
        return falling([self.measure(replica) for replica in candidates])


@dataclass(frozen=True, slots=True)
class LeastLatency:
    """Peak EWMA latency times the requests that would share it (Finagle's load metric).

    A replica without samples counts as fast as the fastest known, so that it is tried, and its requests in flight keep it
    from being flooded before it has answered once.
    """

    def score(self, question: Question, candidates: Replicas) -> list[float]:
        """Relative to the slowest candidate."""
        known = [replica.latency.value_s for replica in candidates]
        fastest = min((value for value in known if value is not None), default=1.0)
        return falling(
            [
                (fastest if value is None else value) * (requests_per_weight(replica) + 1.0)
                for value, replica in zip(known, candidates, strict=True)
            ]
        )


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """Part of the prompt that the replica probably holds in its prefix cache."""

    def score(self, question: Question, candidates: Replicas) -> list[float]:
        """0 for a prompt of unknown or no length."""
        prompt = question.request.prompt_tokens
        if prompt <= 0:
            return [0.0] * len(candidates)
        cached = question.cached_tokens
        return [min(1.0, cached.get(replica.replica_id, 0) / prompt) for replica in candidates]


@dataclass(frozen=True, slots=True)
class LeastWork:
    """Tokens of work that stand before the answer, per unit of weight.

        booked prefill + prompt - cached + held_token_cost x tokens in flight + adapter_load_tokens if it lacks the adapter

    A cached prefix or adapter draws a request to where it lies until that replica has so much else to do that computing or
    loading it elsewhere is cheaper; so a popular one spreads over as many replicas as its traffic needs. Scores that only
    say "has it" would pile up all its requests on the first replica that had it.

    Attributes:
        held_token_cost: how much a token in flight costs against a prompt token to compute. It is small: a decode step
            reads it, a prefill computes all layers for it.
        adapter_load_tokens: prompt tokens that could be computed while a LoRA adapter is loaded. It counts twice where
            another adapter must be dropped, which will be loaded again.
    """

    held_token_cost: float = 0.05
    adapter_load_tokens: float = 1000.0

    def score(self, question: Question, candidates: Replicas) -> list[float]:
        """Relative to the candidate with most work."""
        request, cached = question.request, question.cached_tokens
        costs: list[float] = []
        for replica in candidates:
            own = max(0, request.prompt_tokens - cached.get(replica.replica_id, 0))
            work = replica.booked.prefill_tokens + own + self.held_token_cost * replica.num_tokens
            if request.adapter_id and not replica.holds_adapter(request.adapter_id):
                has_room = replica.num_adapters < replica.info.max_adapters
                work += self.adapter_load_tokens * (1 if has_room else 2)
            costs.append(work / replica.weight)
        return falling(costs)


@dataclass(frozen=True, slots=True)
class LeastPrice:
    """Fewer dollars per hour and unit of weight are better."""

    def score(self, question: Question, candidates: Replicas) -> list[float]:
        """Relative to the dearest candidate."""
        return falling([replica.info.usd_per_hour / replica.weight for replica in candidates])


@dataclass(frozen=True, slots=True)
class NearestRegion:
    """A shorter round trip from the request's region is better.

    Attributes:
        round_trip_s: seconds by one region and the other, in either order; within a region it is 0.
        unknown_s: for pairs that are not listed.
    """

    round_trip_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    unknown_s: float = 0.1

    def score(self, question: Question, candidates: Replicas) -> list[float]:
        """Relative to the farthest candidate; all 1 if the request's region is unknown."""
        home = question.request.region
        if not home:
            return [1.0] * len(candidates)
        return falling([self._between(home, replica.info.region) for replica in candidates])

    def _between(self, here: str, there: str) -> float:
        if here == there:
            return 0.0
        there_and_back = self.round_trip_s.get(here, {}).get(there)
        if there_and_back is None:
            there_and_back = self.round_trip_s.get(there, {}).get(here, self.unknown_s)
        return there_and_back
