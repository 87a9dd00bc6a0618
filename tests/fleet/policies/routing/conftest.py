from collections.abc import Callable
from random import Random

import pytest

from argosy.fleet.policies.routing.named import make_policy
from argosy.fleet.policies.routing.replica_state import ReplicaInfo, ReplicaState
from argosy.fleet.policies.routing.request import RoutingRequest, chain_root, token_block_hashes
from argosy.fleet.policies.routing.router import Router

# What a policy cannot do without.
NEEDED = {"prefix_precise": {"block_tokens": 16}, "nearest_region": {"round_trip_s": {"us": {"eu": 0.09}}}}


@pytest.fixture
def pool() -> Callable[..., list[ReplicaState]]:
    """Makes replicas r0, r1, … with equal or the given weights."""

    def make(count: int = 0, *, weights: tuple[float, ...] = (), **info) -> list[ReplicaState]:
        weights = weights or (1.0,) * count
        return [
            ReplicaState(ReplicaInfo(f"r{i}", weight=weight, kv_capacity_tokens=info.pop("kv", 10_000), **info))
            for i, weight in enumerate(weights)
        ]

    return make


@pytest.fixture
def router() -> Callable[..., Router]:
    """Makes a router by the name of its policy."""

    def make(name: str, seed: int = 0, **settings) -> Router:
        return Router(make_policy(name, NEEDED.get(name, {}) | settings), Random(seed))

    return make


@pytest.fixture
def prompt() -> Callable[..., RoutingRequest]:
    """Makes a request from token ids."""

    def make(request_id: str, token_ids, *, block: int = 16, salt: str = "", output: int = 10, **fields) -> RoutingRequest:
        return RoutingRequest(
            request_id,
            prompt_tokens=len(token_ids),
            expected_output_tokens=output,
            prefix_blocks=token_block_hashes(tuple(token_ids), block, chain_root(salt)),
            prefix_block_tokens=block,
            **fields,
        )

    return make
