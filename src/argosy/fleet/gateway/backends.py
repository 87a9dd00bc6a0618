"""The backends of every pool: routing, health, breakers and bulkheads behind one face, with members that come and go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from types import MappingProxyType
from typing import Protocol

from argosy.errors import ConfigError, NoReplicaAvailable
from argosy.fleet.gateway.backend import Backend, BackendPlacement, BackendStatus
from argosy.fleet.gateway.backend_pool import BackendPool, PoolState, Prefix, PromptBlocks
from argosy.fleet.gateway.config_models import BackendSettings
from argosy.fleet.gateway.engine_metrics import EngineReport
from argosy.fleet.gateway.exchange import Exchange
from argosy.fleet.gateway.replies import shown_model
from argosy.fleet.gateway.stages import Route, Upstream
from argosy.fleet.policies.breaker import BreakerConfig
from argosy.fleet.policies.health_state import HealthPhase
from argosy.fleet.policies.outcomes import Outcome, RequestDropped
from argosy.fleet.policies.routing.policy import RoutingPolicy
from argosy.fleet.policies.routing.replica_state import ReplicaState
from argosy.fleet.policies.routing.request import RoutingRequest
from argosy.fleet.policies.traffic_split import ConversationPicker


class Watcher(Protocol):
    """Watches the health and load of backends. Its methods return at once."""

    def added(self, settings: BackendSettings, upstream: Upstream, model: str) -> None:
        """A backend is to be watched; it knows its model as `model`."""
        ...

    def removed(self, backend_id: str) -> None:
        """A backend is to be watched no more."""
        ...

    def suspect(self, backend_id: str) -> None:
        """A call got no connection: it had better be looked at."""
        ...

    def wake(self, backend_id: str) -> None:
        """A request waits for a backend whose model is not in memory: it is to be loaded."""
        ...


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """What all backends have in common.

    Attributes:
        max_in_flight: requests to one backend at once, where it states none of its own.
        tenant_share: part of them that one tenant may hold.
    """

    breaker: BreakerConfig = field(default_factory=BreakerConfig)
    max_in_flight: int = 512
    tenant_share: float = 1.0


class BackendPools:
    """Picks backends for the pipeline (`stages.Backends`). Belongs to the event loop of the data path.

    Health and load reports come in through `set_phase` and `take_report`, from whoever watches.
    """

    def __init__(
        self,
        connect: Callable[[BackendSettings], Upstream],
        rng: Random,
        limits: PoolLimits | None = None,
        *,
        watcher: Watcher | None = None,
        on_gone: Callable[[Upstream], None] | None = None,
        on_change: Callable[[str], None] | None = None,
    ) -> None:
        """No pools yet.

        Args:
            connect: makes the connections of a backend that is added.
            watcher: told of members that come and go; without one, backends stay as `set_phase` says.
            on_change: told the name of a pool that may take other requests than before.
            on_gone: told when a removed backend has ended its last call; closes its connections.
        """
        self._connect = connect
        self._rng = rng
        self._limits = limits or PoolLimits()
        self._watcher = watcher
        self._on_gone = on_gone
        self._on_change = on_change
        self._pools: dict[str, BackendPool] = {}
        self._by_id: dict[str, Backend] = {}
        self._leaving: dict[Backend, None] = {}

    # --- members -----------------------------------------------------------------------------------------------------

    def has_pool(self, name: str) -> bool:
        """Whether there is such a pool."""
        return name in self._pools

    def set_pool(
        self,
        name: str,
        policy: RoutingPolicy,
        *,
        by_conversation: bool = False,
        prefix: Prefix | None = None,
        tokens: PromptBlocks | None = None,
    ) -> None:
        """Create a pool, or give it another policy; its members and what is in flight stay.

        Args:
            by_conversation: weights are shares of conversations, which stay where they are; the policy's filters still hold.
            prefix: for a policy that looks at prefixes.
            tokens: for one that looks at those of tokens.
        """
        old = self._pools.get(name)
        if by_conversation:
            policy = replace(policy, picker=ConversationPicker(salt=name), scorers=())
        pool = self._pools[name] = BackendPool(name, policy, self._rng, prefix, tokens)
        for backend in old.members.values() if old is not None else ():
            pool.add(backend)

    def remove_pool(self, name: str) -> None:
        """Remove a pool and its members. Idempotent."""
        for backend_id in list(self._pools[name].members if name in self._pools else ()):
            self.remove(backend_id)
        self._pools.pop(name, None)

    def add(self, pool: str, settings: BackendSettings) -> None:
        """Add a backend. One whose health is probed takes requests once a probe has said so.

        Raises:
            ConfigError: its name is taken, or there is no such pool.
        """
        if settings.name in self._by_id:
            raise ConfigError(
                f"backend {settings.name!r} exists already: give every backend a name of its own", param="name"
            )
        home = self._pool(pool)
        backend = Backend(
            pool,
            settings,
            self._connect(settings),
            breaker=self._limits.breaker,
            max_in_flight=self._limits.max_in_flight,
            tenant_share=self._limits.tenant_share,
        )
        home.add(backend)
        self._by_id[backend.backend_id] = backend
        if self._watcher is not None:
            backend.on_suspect = self._watcher.suspect
            self._watcher.added(settings, backend.upstream, backend.upstream.model or pool)
        self._changed(pool)

    def remove(self, backend_id: str) -> None:
        """Take a backend out; what is in flight to it goes on, and its name is free at once.

        Raises:
            ConfigError: there is no such backend.
        """
        backend = self._backend(backend_id)
        self._pools[backend.pool].remove(backend_id)
        del self._by_id[backend_id]
        backend.replica.draining = True
        self._leaving[backend] = None
        if self._watcher is not None:
            self._watcher.removed(backend_id)
        backend.on_idle = self._gone
        if not backend.bulkhead.in_flight:
            self._gone(backend)

    def set_weight(self, backend_id: str, weight: float) -> None:
        """Change a backend's share; 0 sends it nothing more.

        Raises:
            ConfigError: there is no such backend, or the weight is not a number from 0 up.
        """
        backend = self._backend(backend_id)
        backend.replica.info = replace(backend.replica.info, weight=weight)
        backend.settings = replace(backend.settings, weight=weight)
        self._changed(backend.pool)

    def drain(self, backend_id: str, *, draining: bool = True) -> None:
        """Send a backend nothing more, or again, while it stays a member.

        Raises:
            ConfigError: there is no such backend.
        """
        backend = self._backend(backend_id)
        backend.replica.draining = draining
        self._changed(backend.pool)

    def reconcile(self, pool: str, wanted: Iterable[BackendSettings]) -> tuple[list[str], list[str]]:
        """Make a pool's members those `wanted`; return the ids removed and added. One that is unchanged, but for its weight,
        keeps its health, breaker and connections.

        Raises:
            ConfigError: as `add`; nothing has been changed then.
        """
        by_name = {settings.name: settings for settings in wanted}
        members = self._pool(pool).members
        for name in by_name:
            if name not in members and name in self._by_id:
                raise ConfigError(f"backend {name!r} exists already in pool {self._by_id[name].pool!r}", param="name")
        kept = {name for name, each in members.items() if name in by_name and _same_but_weight(each.settings, by_name[name])}
        gone = [name for name in members if name not in kept]
        for name in gone:
            self.remove(name)
        for name in kept:
            self.set_weight(name, by_name[name].weight)
        added = [name for name in by_name if name not in kept]
        for name in added:
            self.add(pool, by_name[name])
        return gone, added

    # --- requests ----------------------------------------------------------------------------------------------------

    def prepare(self, exchange: Exchange, route: Route) -> Awaitable[None] | None:
        """Find out what routing needs to know of a prompt and takes a while, if there is such a thing."""
        pool = self._pools.get(route.pool)
        return None if pool is None else pool.prepare(exchange)

    def pick(self, exchange: Exchange, route: Route, tried: frozenset[str], now_s: float) -> BackendPlacement:
        """Choose a backend of the route's pool and book the request on it, on its breaker and on its bulkhead.

        Raises:
            RequestDropped: none may take it: `REJECTED_CAPACITY` if they are full, else `REJECTED_NO_BACKEND`.
        """
        pool = self._pools.get(route.pool)
        if pool is None:
            raise RequestDropped(Outcome.REJECTED_NO_BACKEND, f"{shown_model(route.pool)} has no backends")
        pool.refresh(now_s)
        tenant = exchange.principal.tenant if exchange.principal is not None else ""
        request = pool.routing_request(exchange, tenant, tried)
        try:
            decision = pool.router.pick(request, pool.replicas, now_s)
        except NoReplicaAvailable as error:
            raise pool.refusal(request, str(error), now_s) from None
        backend = pool.members[decision.replica.replica_id]
        permit = backend.breaker.begin(now_s)
        assert permit is not None, "the router was told which breakers are open"
        entered = backend.bulkhead.enter(tenant)
        assert entered, "the router was told which bulkheads are full"
        if permit.is_probe:
            backend.refresh(now_s)
        return BackendPlacement(backend, pool.router, decision, permit, tenant, now_s)

    def state(self, pool: str, now_s: float) -> PoolState:
        """Whether a pool could take a request of some tenant at `now_s`. Brings its replicas up to date."""
        return self._pools[pool].state(now_s) if pool in self._pools else PoolState.EMPTY

    def refresh(self, pool: str, now_s: float) -> None:
        """Let the router see what time has done to a pool's backends."""
        if pool in self._pools:
            self._pools[pool].refresh(now_s)

    def will_serve(self, pool: str, now_s: float) -> bool:
        """Whether a request that finds no backend ready had better wait: for a model that loads, or a short pause to end.

        Has a model loaded that is not in memory.
        """
        home = self._pools.get(pool)
        if home is None or not home.is_worth_waiting_for(now_s):
            return False
        sleeper = home.sleeper()
        if sleeper is not None and self._watcher is not None:
            # Set here already: the requests that come before the watcher has answered must not wake a second one.
            sleeper.set_phase(HealthPhase.LOADING)
            self._watcher.wake(sleeper.backend_id)
        return True

    def refusal(self, pool: str, now_s: float) -> RequestDropped:
        """Why a request cannot be served by a pool that has no backend ready, and when to come back."""
        if pool not in self._pools:
            return RequestDropped(Outcome.REJECTED_NO_BACKEND, f"{shown_model(pool)} has no backends")
        return self._pools[pool].refusal(RoutingRequest(""), "no backend is ready", now_s)

    def reap(self, now_s: float, silent_s: float) -> int:
        """Backstop against calls that were never finished; returns how many there were."""
        return sum(len(pool.router.reap(now_s, silent_s)) for pool in self._pools.values())

    @property
    def num_leaving(self) -> int:
        """Removed backends that still have calls in flight."""
        return len(self._leaving)

    # --- reports -----------------------------------------------------------------------------------------------------

    def set_phase(self, backend_id: str, phase: HealthPhase) -> None:
        """Take over what probes say of a backend; ignored if it has left meanwhile. A cache does not survive a restart."""
        backend = self._by_id.get(backend_id)
        if backend is None:
            return
        if phase in (HealthPhase.DOWN, HealthPhase.LOADING):
            self._pools[backend.pool].forget_prefixes(backend_id)
        backend.set_phase(phase)
        self._changed(backend.pool)

    def take_report(self, backend_id: str, report: EngineReport | None, at_s: float) -> None:
        """Take over what a backend told of its load at `at_s`; None forgets it. Ignored if the backend has left."""
        backend = self._by_id.get(backend_id)
        if backend is None:
            return
        replica = backend.replica
        replica.take_report(None if report is None else report.load(at_s))
        if report is not None:
            replica.adapters = report.adapters
            info = replica.info
            capacity = backend.settings.kv_capacity_tokens or report.kv_capacity_tokens
            adapters = report.max_adapters or 0
            if (capacity, adapters) != (info.kv_capacity_tokens, info.max_adapters):
                replica.info = replace(info, kv_capacity_tokens=capacity, max_adapters=adapters)
        self._changed(backend.pool)

    def replicas(self, pool: str) -> tuple[ReplicaState, ...]:
        """What the router sees of a pool, for saturation and degradation. Not to be changed."""
        return tuple(self._pools[pool].replicas) if pool in self._pools else ()

    def statuses(self, now_s: float) -> Iterator[BackendStatus]:
        """Every member, for metrics and the admin API."""
        for backend in self._by_id.values():
            yield backend.status(now_s)

    @property
    def settings(self) -> Mapping[str, BackendSettings]:
        """Of every member, by id."""
        return MappingProxyType({backend_id: backend.settings for backend_id, backend in self._by_id.items()})

    def check_invariants(self) -> None:
        """What router and bulkheads count must agree. Raises `AssertionError`."""
        for pool in self._pools.values():
            for backend in pool.members.values():
                booked = backend.replica.booked.requests
                held = backend.bulkhead.in_flight
                assert booked <= held, f"{backend.backend_id}: {booked} requests booked, {held} in its bulkhead"

    def _changed(self, pool: str) -> None:
        if self._on_change is not None:
            self._on_change(pool)

    def _gone(self, backend: Backend) -> None:
        del self._leaving[backend]
        if self._on_gone is not None:
            self._on_gone(backend.upstream)

    def _pool(self, name: str) -> BackendPool:
        if name not in self._pools:
            raise ConfigError(f"there is no pool {name!r}", param="pool")
        return self._pools[name]

    def _backend(self, backend_id: str) -> Backend:
        if backend_id not in self._by_id:
            raise ConfigError(f"there is no backend {backend_id!r}", param="backend")
        return self._by_id[backend_id]


def _same_but_weight(one: BackendSettings, other: BackendSettings) -> bool:
    return replace(one, weight=other.weight) == other
