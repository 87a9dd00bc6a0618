"""Which replicas may serve a request at all, or should if there is a choice."""

from __future__ import annotations

from dataclasses import dataclass

from argosy.fleet.policies.routing.replica_state import ReplicaState
from argosy.fleet.policies.routing.request import RoutingRequest


@dataclass(frozen=True, slots=True)
class NotTried:
    """Not one of the replicas that failed this request before, as long as there is another."""

    name: str = "earlier attempts"
    is_preference: bool = True

    def keeps(self, request: RoutingRequest, replica: ReplicaState) -> bool:
        """Whether `replica` has not been tried."""
        return replica.replica_id not in request.tried


@dataclass(frozen=True, slots=True)
class ServesModel:
    """Serves the model asked for."""

    name: str = "model"
    is_preference: bool = False

    def keeps(self, request: RoutingRequest, replica: ReplicaState) -> bool:
        """A request without a model, or a replica without a list of them, fits all."""
        return not request.model or not replica.info.models or request.model in replica.info.models


@dataclass(frozen=True, slots=True)
class FitsContext:
    """Its context has room for the prompt and one more token."""

    name: str = "context length"
    is_preference: bool = False

    def keeps(self, request: RoutingRequest, replica: ReplicaState) -> bool:
        """Whether the prompt fits; a replica with unknown context fits all."""
        limit = replica.info.max_model_len
        return limit is None or request.prompt_tokens < limit


@dataclass(frozen=True, slots=True)
class InAllowedRegion:
    """Stands in a region that the request may be served from (data residency)."""

    name: str = "allowed regions"
    is_preference: bool = False

    def keeps(self, request: RoutingRequest, replica: ReplicaState) -> bool:
        """Whether the region is allowed; a replica of unknown region is not, once regions are named."""
        return not request.allowed_regions or replica.info.region in request.allowed_regions


@dataclass(frozen=True, slots=True)
class HasLabels:
    """Carries every label that the request requires."""

    name: str = "labels"
    is_preference: bool = False

    def keeps(self, request: RoutingRequest, replica: ReplicaState) -> bool:
        """Whether all required labels are there."""
        return request.required_labels <= replica.info.labels


@dataclass(frozen=True, slots=True)
class BelowLoad:
    """Has fewer requests per unit of weight than a limit: a bulkhead in front of a replica's own queue."""

    max_requests_per_weight: float
    name: str = "load limit"
    is_preference: bool = False

    def keeps(self, request: RoutingRequest, replica: ReplicaState) -> bool:
        """Whether one more request stays within the limit."""
        return replica.num_requests + 1 <= self.max_requests_per_weight * replica.info.weight


DEFAULT_FILTERS = (ServesModel(), FitsContext(), InAllowedRegion(), HasLabels(), NotTried())
"""What the policies of `named` ask; each passes whatever the request or the replica says nothing about."""
