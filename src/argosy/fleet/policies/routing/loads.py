"""Measures of load, each per unit of a replica's weight, so that a replica twice as large may carry twice as much."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from argosy.errors import ConfigError
from argosy.fleet.policies.routing.replica_state import ReplicaState

LoadMeasure = Callable[[ReplicaState], float]


def requests_per_weight(replica: ReplicaState) -> float:
    """Requests that run or wait."""
    return replica.num_requests / replica.weight


def tokens_per_weight(replica: ReplicaState) -> float:
    """Tokens of the requests that run or wait."""
    return replica.num_tokens / replica.weight


def kv_fraction(replica: ReplicaState) -> float:
    """Part of the KV pool in use: a fraction of the replica's own pool already."""
    return replica.kv_fraction


LOAD_MEASURES: Mapping[str, LoadMeasure] = MappingProxyType(
    {"requests": requests_per_weight, "tokens": tokens_per_weight, "kv": kv_fraction}
)


def load_measure(name: str) -> LoadMeasure:
    """The measure called `name`.

    Raises:
        ConfigError: there is none.
    """
    if name not in LOAD_MEASURES:
        raise ConfigError(f"load must be one of {', '.join(LOAD_MEASURES)}, got {name!r}")
    return LOAD_MEASURES[name]
