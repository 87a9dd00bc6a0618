"""The routing policies people know by name, each put together from filters, scorers and a picker."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from argosy.errors import ConfigError
from argosy.fleet.policies.routing.filters import DEFAULT_FILTERS
from argosy.fleet.policies.routing.hash_ring import HashRing
from argosy.fleet.policies.routing.kv_event_index import KvEventIndex
from argosy.fleet.policies.routing.loads import load_measure, requests_per_weight
from argosy.fleet.policies.routing.pickers import AtRandom, BestOfSample, HighestScore, RoundRobin, Softmax
from argosy.fleet.policies.routing.policy import Picker, RoutingPolicy, Scorer, WeightedScorer
from argosy.fleet.policies.routing.prefix_index import ApproximatePrefixIndex
from argosy.fleet.policies.routing.prefix_match import PrefixMatcher
from argosy.fleet.policies.routing.scorers import LeastLatency, LeastLoad, LeastPrice, LeastWork, NearestRegion


def make_policy(name: str, settings: Mapping[str, Any] | None = None) -> RoutingPolicy:
    """The policy called `name`, with the keyword arguments of its function below as settings.

    Raises:
        ConfigError: the name or a setting is unknown, or a value is out of range.
    """
    if name not in POLICIES:
        raise ConfigError(f"routing policy {name!r} is unknown{_nearest(name, POLICIES)}")
    make = POLICIES[name]
    known = inspect.signature(make).parameters
    given = dict(settings or {})
    for key in given:
        if key not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise ConfigError(f"routing policy {name!r} has no setting {key!r}{_nearest(key, known)}: {takes}")
    return make(**given)


def round_robin() -> RoutingPolicy:
    """Each in turn."""
    return RoutingPolicy("round_robin", DEFAULT_FILTERS, (), RoundRobin())


def weighted_round_robin() -> RoutingPolicy:
    """Each in turn, in proportion to its weight."""
    return RoutingPolicy("weighted_round_robin", DEFAULT_FILTERS, (), RoundRobin(weighted=True))


def at_random() -> RoutingPolicy:
    """Any, alike."""
    return RoutingPolicy("random", DEFAULT_FILTERS, (), AtRandom())


def weighted_random() -> RoutingPolicy:
    """Any, in proportion to its weight."""
    return RoutingPolicy("weighted_random", DEFAULT_FILTERS, (), AtRandom(weighted=True))


def least_load(*, load: str = "requests") -> RoutingPolicy:
    """The least loaded of all, by requests, tokens or kv; with "requests", least connections."""
    return RoutingPolicy("least_load", DEFAULT_FILTERS, _scorers((LeastLoad(load_measure(load)), 1.0)), HighestScore())


def power_of_two(*, load: str = "requests", num_probed: int = 2) -> RoutingPolicy:
    """The less loaded of two drawn at random."""
    return RoutingPolicy(
        "power_of_two", DEFAULT_FILTERS, _scorers((LeastLoad(load_measure(load)), 1.0)), BestOfSample(num_probed)
    )


def consistent_hash(*, virtual_nodes: int = 100, load_bound: float | None = 1.25) -> RoutingPolicy:
    """The owner of the affinity key on a ring, unless it is over its bound; without a key, power of two choices."""
    ring = HashRing(BestOfSample(2), virtual_nodes, load_bound)
    return RoutingPolicy("consistent_hash", DEFAULT_FILTERS, _scorers((LeastLoad(requests_per_weight), 1.0)), ring)


def session_affinity(*, virtual_nodes: int = 100) -> RoutingPolicy:
    """The same replica for one affinity key as long as it is there, whatever its load."""
    ring = HashRing(BestOfSample(2), virtual_nodes, None)
    return RoutingPolicy("session_affinity", DEFAULT_FILTERS, _scorers((LeastLoad(requests_per_weight), 1.0)), ring)


def least_latency(*, num_probed: int = 2) -> RoutingPolicy:
    """The lower peak-EWMA latency x requests in flight of a few drawn at random."""
    return RoutingPolicy("least_latency", DEFAULT_FILTERS, _scorers((LeastLatency(), 1.0)), BestOfSample(num_probed))


def least_work(
    *, held_token_cost: float = 0.05, adapter_load_tokens: float = 1000.0, temperature: float | None = None
) -> RoutingPolicy:
    """Least work before the answer, counting LoRA adapters but not prefixes."""
    return _work_policy("least_work", LeastWork(held_token_cost, adapter_load_tokens), temperature, None)


def prefix_aware(
    *,
    held_token_cost: float = 0.05,
    adapter_load_tokens: float = 1000.0,
    temperature: float | None = None,
    blocks_per_replica: int = 50_000,
    ttl_s: float = 600.0,
) -> RoutingPolicy:
    """Least work, counting the prefixes that each replica was sent lately as done."""
    index = ApproximatePrefixIndex(blocks_per_replica, ttl_s)
    return _work_policy("prefix_aware", LeastWork(held_token_cost, adapter_load_tokens), temperature, index)


def prefix_precise(
    *,
    block_tokens: int,
    held_token_cost: float = 0.05,
    adapter_load_tokens: float = 1000.0,
    temperature: float | None = None,
) -> RoutingPolicy:
    """Least work, counting the prefixes that each replica's KV events name as done."""
    index = KvEventIndex(block_tokens)
    return _work_policy("prefix_precise", LeastWork(held_token_cost, adapter_load_tokens), temperature, index)


def cost_aware(*, load_weight: float = 1.0) -> RoutingPolicy:
    """The cheapest, weighed (1) against load."""
    scorers = _scorers((LeastPrice(), 1.0), (LeastLoad(requests_per_weight), load_weight))
    return RoutingPolicy("cost_aware", DEFAULT_FILTERS, scorers, HighestScore())


def nearest_region(
    *, round_trip_s: Mapping[str, Mapping[str, float]], unknown_s: float = 0.1, load_weight: float = 1.0
) -> RoutingPolicy:
    """The nearest, weighed (1) against load."""
    scorers = _scorers((NearestRegion(round_trip_s, unknown_s), 1.0), (LeastLoad(requests_per_weight), load_weight))
    return RoutingPolicy("nearest_region", DEFAULT_FILTERS, scorers, HighestScore())


POLICIES: Mapping[str, Callable[..., RoutingPolicy]] = MappingProxyType(
    {
        "round_robin": round_robin,
        "weighted_round_robin": weighted_round_robin,
        "random": at_random,
        "weighted_random": weighted_random,
        "least_load": least_load,
        "power_of_two": power_of_two,
        "consistent_hash": consistent_hash,
        "session_affinity": session_affinity,
        "least_latency": least_latency,
        "least_work": least_work,
        "prefix_aware": prefix_aware,
        "prefix_precise": prefix_precise,
        "cost_aware": cost_aware,
        "nearest_region": nearest_region,
    }
)


def _work_policy(name: str, scorer: LeastWork, temperature: float | None, matcher: PrefixMatcher | None) -> RoutingPolicy:
    picker: Picker = HighestScore() if temperature is None else Softmax(temperature)
    return RoutingPolicy(name, DEFAULT_FILTERS, _scorers((scorer, 1.0)), picker, matcher)


def _scorers(*parts: tuple[Scorer, float]) -> tuple[WeightedScorer, ...]:
    return tuple(WeightedScorer(scorer, weight) for scorer, weight in parts)


def _nearest(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f", did you mean {close[0]!r}?" if close else ""
