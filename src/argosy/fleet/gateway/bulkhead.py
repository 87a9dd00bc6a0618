"""Bulkheads: what one backend, and one tenant on it, may hold, so that neither takes what the others need."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from argosy.errors import ConfigError
from argosy.fleet.policies.routing.policy import Replicas
from argosy.fleet.policies.routing.request import RoutingRequest


class Bulkhead:
    """Requests in flight to one backend, in all and by tenant. Called from one event loop.

    Attributes:
        max_in_flight: requests at once.
        max_per_tenant: of them, those of one tenant; at least 1.
    """

    def __init__(self, max_in_flight: int, tenant_share: float = 1.0) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        if max_in_flight < 1:
            raise ConfigError(f"max_in_flight must be at least 1, got {max_in_flight}")
        if not 0.0 < tenant_share <= 1.0:
            raise ConfigError(f"tenant_share must be above 0 and at most 1, got {tenant_share}")
        self.max_in_flight = max_in_flight
        self.max_per_tenant = max(1, math.floor(max_in_flight * tenant_share + 1e-9))
        self._in_flight = 0
        self._by_tenant: dict[str, int] = {}

    @property
    def in_flight(self) -> int:
        """Requests of all tenants."""
        return self._in_flight

    def in_flight_of(self, tenant: str) -> int:
        """Requests of one tenant."""
        return self._by_tenant.get(tenant, 0)

    def has_room(self, tenant: str) -> bool:
        """Whether `enter` would succeed."""
        return self._in_flight < self.max_in_flight and self.in_flight_of(tenant) < self.max_per_tenant

    def enter(self, tenant: str) -> bool:
        """Take a place, to be given back with `leave` once; False if there is none."""
        if not self.has_room(tenant):
            return False
        self._in_flight += 1
        self._by_tenant[tenant] = self.in_flight_of(tenant) + 1
        return True

    def leave(self, tenant: str) -> None:
        """Give a place back."""
        held = self._by_tenant[tenant] - 1
        self._in_flight -= 1
        if held:
            self._by_tenant[tenant] = held
        else:
            del self._by_tenant[tenant]


@dataclass(frozen=True, slots=True)
class HasRoom:
    """Router's filter: backends whose bulkhead has room for the request's tenant.

    Attributes:
        bulkhead_of: by replica id.
    """

    bulkhead_of: Callable[[str], Bulkhead]
    name: str = "bulkhead"
    is_preference: bool = False

    def keep(self, request: RoutingRequest, candidates: Replicas) -> Replicas:
        """Those with room."""
        return [each for each in candidates if self.bulkhead_of(each.replica_id).has_room(request.tenant)]


@dataclass(frozen=True, slots=True)
class TenantPools:
    """Router's filter: backends set apart for some tenants.

    A tenant that has backends of its own uses these alone; the others share those that nobody owns.

    Attributes:
        tenants_of: tenants that a replica is set apart for, by its id; one that is absent is shared.
    """

    tenants_of: Mapping[str, frozenset[str]]
    name: str = "tenant's pool"
    is_preference: bool = False

    def keep(self, request: RoutingRequest, candidates: Replicas) -> Replicas:
        """Those of the tenant's pool."""
        if not self.tenants_of:
            return candidates
        if any(request.tenant in tenants for tenants in self.tenants_of.values()):
            return [each for each in candidates if request.tenant in self.tenants_of.get(each.replica_id, ())]
        return [each for each in candidates if each.replica_id not in self.tenants_of]
