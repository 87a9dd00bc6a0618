"""Picks a replica and books the request on it, in one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from argosy.errors import ConfigError, NoReplicaAvailable
from argosy.fleet.policies.routing.policy import Filter, Question, Replicas, RoutingPolicy
from argosy.fleet.policies.routing.replica_state import ReplicaState
from argosy.fleet.policies.routing.request import RoutingRequest

_NOTHING_CACHED: Mapping[str, int] = {}


@dataclass(slots=True, eq=False)
class Decision:
    """Where a request goes, and the booking that stands for it until `Router.finish`.

    Attributes:
        replica: the replica itself, not its name: what is booked on it is taken off it, whoever bears its name by then.
        cached_tokens: leading prompt tokens that it probably holds.
        booked_tokens, booked_prefill_tokens: what the request adds to `replica.booked` now.
        alive_at_s: when the request was last known to be alive.
        finished: whether the booking has been taken off.
    """

    request: RoutingRequest
    replica: ReplicaState
    cached_tokens: int
    booked_tokens: int
    booked_prefill_tokens: int
    alive_at_s: float
    finished: bool = False


class Router:
    """Routes the requests of one pool by one policy. Not thread-safe: calls must not overlap.

    A pick is booked before it is returned, so that the next pick, in the same instant, sees it: a burst spreads out. Same
    policy, calls and random stream: same decisions.
    """

    def __init__(self, policy: RoutingPolicy, rng: Random) -> None:
        if any(scorer.weight < 0.0 for scorer in policy.scorers):
            raise ConfigError(f"policy {policy.name!r}: the weight of a scorer must not be negative")
        self.policy = policy
        self._rng = rng
        self._total_weight = sum(scorer.weight for scorer in policy.scorers)
        self._num_picks = 0
        self._alive: dict[Decision, None] = {}

    @property
    def num_alive(self) -> int:
        """Decisions that have not been finished."""
        return len(self._alive)

    def pick(self, request: RoutingRequest, replicas: Replicas, now_s: float) -> Decision:
        """Choose among `replicas`, the whole pool, and book the request on the one chosen. Mutates that one's `booked`.

        Replicas that take no requests are never candidates, whatever the policy's filters are.

        Raises:
            NoReplicaAvailable: no replica is left; the message says which filter left none.
        """
        candidates = self._filter(request, replicas)
        matcher = self.policy.prefix_matcher
        cached = _NOTHING_CACHED if matcher is None else matcher.match(request, now_s)
        question = Question(request, replicas, now_s, cached)
        if len(candidates) == 1:
            replica = candidates[0]
        else:
            replica = self.policy.picker.pick(question, candidates, lambda some: self._score(question, some), self._rng)
        if matcher is not None:
            matcher.record(request, replica.replica_id, now_s)
        return self._book(request, replica, min(cached.get(replica.replica_id, 0), request.prompt_tokens), now_s)

    def first_token(self, decision: Decision, now_s: float) -> None:
        """The prompt is computed: it no longer counts as work to come. Idempotent; also a sign of life."""
        if not decision.finished:
            decision.alive_at_s = now_s
            decision.replica.booked.prefill_tokens -= decision.booked_prefill_tokens
            decision.booked_prefill_tokens = 0

    def keep_alive(self, decision: Decision, now_s: float) -> None:
        """A sign of life, such as bytes of a stream, for `reap`."""
        decision.alive_at_s = now_s

    def finish(self, decision: Decision, now_s: float, *, latency_s: float | None = None) -> None:
        """Take the booking off, however the request ended. Idempotent; `latency_s` of a good answer is remembered once."""
        if decision.finished:
            return
        self.first_token(decision, now_s)
        decision.finished = True
        del self._alive[decision]
        replica, booked = decision.replica, decision.replica.booked
        booked.requests -= 1
        booked.tokens -= decision.booked_tokens
        adapter_id = decision.request.adapter_id
        if adapter_id:
            replica.booked_adapters[adapter_id] -= 1
            if not replica.booked_adapters[adapter_id]:
                del replica.booked_adapters[adapter_id]
        if latency_s is not None:
            replica.latency.observe(latency_s, now_s)

    def reap(self, now_s: float, silent_s: float) -> list[Decision]:
        """Finish the decisions without a sign of life for more than `silent_s` seconds, and return them.

        A backstop against a caller that never finishes. It goes by silence and not by age: an answer that streams for an
        hour is load for an hour.
        """
        silent = [decision for decision in self._alive if now_s - decision.alive_at_s > silent_s]
        for decision in silent:
            self.finish(decision, now_s)
        return silent

    def _filter(self, request: RoutingRequest, replicas: Replicas) -> Replicas:
        if not replicas:
            raise NoReplicaAvailable("no replica is registered: add one, or wait until one has started")
        candidates: Replicas = [replica for replica in replicas if replica.takes_requests]
        if not candidates:
            raise NoReplicaAvailable(
                f"none of {len(replicas)} replicas takes requests: all are down, draining or at weight 0"
            )
        for each in self.policy.filters:
            kept = each.keep(request, candidates)
            if kept:
                candidates = kept
            elif not each.is_preference:
                raise NoReplicaAvailable(_none_left(each, candidates, replicas))
        return candidates

    def _score(self, question: Question, candidates: Replicas) -> list[float]:
        """The weighted mean of the scorers, in [0, 1]; without scorers all score 0."""
        total = [0.0] * len(candidates)
        for part in self.policy.scorers:
            share = part.weight / self._total_weight if self._total_weight else 0.0
            for place, score in enumerate(part.scorer.score(question, candidates)):
                total[place] += share * score
        return total

    def _book(self, request: RoutingRequest, replica: ReplicaState, cached_tokens: int, now_s: float) -> Decision:
        prefill_tokens = request.prompt_tokens - cached_tokens
        tokens = prefill_tokens + request.expected_output_tokens
        self._num_picks += 1
        replica.last_picked = self._num_picks
        booked = replica.booked
        booked.requests += 1
        booked.tokens += tokens
        booked.prefill_tokens += prefill_tokens
        if request.adapter_id:
            replica.booked_adapters[request.adapter_id] = replica.booked_adapters.get(request.adapter_id, 0) + 1
        decision = Decision(request, replica, cached_tokens, tokens, prefill_tokens, now_s)
        self._alive[decision] = None
        return decision


def _none_left(by: Filter, before: Replicas, replicas: Replicas) -> str:
    passed = "" if len(before) == len(replicas) else f", {len(before)} of them passed what was asked before"
    return f"none of {len(replicas)} replicas may take this request by its {by.name}{passed}"
