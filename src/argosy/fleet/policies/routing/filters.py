"""Which replicas may serve a request at all, or should if there is a choice.

A request that asks for nothing special is let through without looking at the replicas one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

from argosy.fleet.policies.routing.policy import Replicas
from argosy.fleet.policies.routing.request import RoutingRequest


@dataclass(frozen=True, slots=True)
class NotTried:
    """Not one of the replicas that failed this request before, as long as there is another."""

    name: str = "earlier attempts"
    is_preference: bool = True

    def keep(self, request: RoutingRequest, candidates: Replicas) -> Replicas:
        """Those that have not been tried."""
        if not request.tried:
            return candidates
        return [replica for replica in candidates if replica.replica_id not in request.tried]


@dataclass(frozen=True, slots=True)
class ServesModel:
    """Serves the model asked for. A replica without a list of models serves any."""

    name: str = "model"
    is_preference: bool = False

    def keep(self, request: RoutingRequest, candidates: Replicas) -> Replicas:
        """Those that serve `request.model`."""
        model = request.model
        if not model:
            return candidates
        return [replica for replica in candidates if not replica.info.models or model in replica.info.models]


@dataclass(frozen=True, slots=True)
class FitsContext:
    """Its context has room for the prompt and one more token. A replica of unknown context takes any."""

    name: str = "context length"
    is_preference: bool = False

    def keep(self, request: RoutingRequest, candidates: Replicas) -> Replicas:
        """Those whose context is longer than the prompt."""
        length = request.prompt_tokens
        return [replica for replica in candidates if length <= replica.max_prompt_tokens]


@dataclass(frozen=True, slots=True)
class InAllowedRegion:
    """Stands in a region that the request may be served from (data residency). An unknown region is not allowed."""

    name: str = "allowed regions"
    is_preference: bool = False

    def keep(self, request: RoutingRequest, candidates: Replicas) -> Replicas:
        """Those in one of the regions named, if any are."""
        if not request.allowed_regions:
            return candidates
        return [replica for replica in candidates if replica.info.region in request.allowed_regions]


@dataclass(frozen=True, slots=True)
class HasLabels:
    """Carries every label that the request requires."""

    name: str = "labels"
    is_preference: bool = False

    def keep(self, request: RoutingRequest, candidates: Replicas) -> Replicas:
        """Those with all the labels."""
        if not request.required_labels:
            return candidates
        return [replica for replica in candidates if request.required_labels <= replica.info.labels]


@dataclass(frozen=True, slots=True)
class BelowLoad:
    """Has fewer requests per unit of weight than a limit: a bulkhead in front of a replica's own queue."""

    max_requests_per_weight: float
    name: str = "load limit"
    is_preference: bool = False

    def keep(self, request: RoutingRequest, candidates: Replicas) -> Replicas:
        """Those that stay within the limit with one more request."""
        limit = self.max_requests_per_weight
        return [replica for replica in candidates if replica.num_requests + 1 <= limit * replica.weight]


DEFAULT_FILTERS = (ServesModel(), FitsContext(), InAllowedRegion(), HasLabels(), NotTried())
"""What the policies of `named` ask; each passes whatever the request or the replica says nothing about."""
