"""Shares: of traffic over replicas of unequal capacity, of capacity over tenants, and of queues over random placement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from argosy.cost.checks import not_negative, positive
from argosy.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ReplicaShare:
    """What weighted routing sends to one replica: its share of traffic, its rate, and that rate over its capacity."""

    share: float
    rate_per_s: float
    utilisation: float


def weighted_routing(
    capacities_per_s: Sequence[float], offered_per_s: float, *, weights: Sequence[float] | None = None
) -> tuple[ReplicaShare, ...]:
    """Traffic of each replica when it is picked in proportion to its weight, by default its capacity.

    Weights equal to capacities give every replica the same utilisation, offered / total capacity; equal weights load the
    small ones most. A utilisation above 1 means a queue that grows.

    Raises:
        ConfigError: no replica, a capacity or weight that is not above 0, or a negative rate.
    """
    if not capacities_per_s:
        raise ConfigError("weighted routing needs at least one replica")
    chosen = capacities_per_s if weights is None else weights
    if len(chosen) != len(capacities_per_s):
        raise ConfigError(f"{len(chosen)} weights for {len(capacities_per_s)} replicas")
    for capacity, weight in zip(capacities_per_s, chosen, strict=True):
        positive(capacity_per_s=capacity, weight=weight)
    not_negative(offered_per_s=offered_per_s)
    total = sum(chosen)
    return tuple(
        ReplicaShare(weight / total, offered_per_s * weight / total, offered_per_s * weight / total / capacity)
        for capacity, weight in zip(capacities_per_s, chosen, strict=True)
    )


def longest_queue_random(replicas: int) -> float:
    """ln R / ln ln R: the order of the longest of R queues after R random placements (Gonnet 1981; Mitzenmacher 2001).

    Raises:
        ConfigError: fewer than 16 replicas, for which ln ln R is not above 1 and the form says nothing.
    """
    if replicas < 16:
        raise ConfigError(f"replicas must be at least 16 for ln R / ln ln R, got {replicas}")
    return math.log(replicas) / math.log(math.log(replicas))


def longest_queue_choices(replicas: int, choices: int = 2) -> float:
    """ln ln R / ln d: the order of the longest queue when the shortest of d random ones is taken (Azar et al. 1999).

    The worked form "ln ln R" of two choices leaves out the constant 1 / ln 2; see `longest_queue_two_choices_order`.

    Raises:
        ConfigError: fewer than 16 replicas or 2 choices.
    """
    if choices < 2:
        raise ConfigError(f"choices must be at least 2, got {choices}")
    return longest_queue_two_choices_order(replicas) / math.log(choices)


def longest_queue_two_choices_order(replicas: int) -> float:
    """ln ln R, the growth of the longest queue under two choices without its constant (Mitzenmacher 2001).

    Raises:
        ConfigError: fewer than 16 replicas.
    """
    if replicas < 16:
        raise ConfigError(f"replicas must be at least 16 for ln ln R, got {replicas}")
    return math.log(math.log(replicas))


def max_min_shares(
    demands: Sequence[float], capacity: float, *, weights: Sequence[float] | None = None
) -> tuple[float, ...]:
    """Weighted max-min fair shares by water-filling (Bertsekas & Gallager 1992, section 6.5.2).

    Nobody gets more than the demand; what a small demand leaves is split over the others by weight; nobody's share can grow
    without shrinking one that is smaller by weight.

    Raises:
        ConfigError: a negative or non-finite demand or capacity, a weight that is not above 0, or lengths that differ.
    """
    not_negative(capacity=capacity)
    chosen = [1.0] * len(demands) if weights is None else list(weights)
    if len(chosen) != len(demands):
        raise ConfigError(f"{len(chosen)} weights for {len(demands)} demands")
    for demand, weight in zip(demands, chosen, strict=True):
        not_negative(demand=demand)
        positive(weight=weight)
    shares = [0.0] * len(demands)
    left, open_weight = capacity, math.fsum(chosen)
    # Demands that fill first come first: once one is above the water level, so are all after it.
    for index in sorted(range(len(demands)), key=lambda i: demands[i] / chosen[i]):
        level = left / open_weight if open_weight > 0 else 0.0
        shares[index] = min(demands[index], max(0.0, level) * chosen[index])
        left -= shares[index]
        open_weight -= chosen[index]
    return tuple(shares)
