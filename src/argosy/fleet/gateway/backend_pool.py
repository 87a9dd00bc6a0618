"""One pool of backends: who is in it, whether it can take a request, and why not."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from enum import StrEnum
from random import Random
from types import MappingProxyType
from typing import Protocol

from argosy.fleet.gateway.backend import Backend
from argosy.fleet.gateway.bulkhead import Bulkhead, HasRoom, TenantPools
from argosy.fleet.gateway.exchange import Exchange
from argosy.fleet.gateway.replies import shown_model
from argosy.fleet.policies.breaker import BreakerState
from argosy.fleet.policies.health_state import HealthPhase
from argosy.fleet.policies.outcomes import Outcome, RequestDropped
from argosy.fleet.policies.routing.policy import RoutingPolicy
from argosy.fleet.policies.routing.replica_state import ReplicaState
from argosy.fleet.policies.routing.request import RoutingRequest
from argosy.fleet.policies.routing.router import Router

Prefix = Callable[[Exchange], tuple[tuple[int, ...], int]]
"""The prompt as block hashes and the tokens per block, as `RoutingRequest` takes them."""


class PromptBlocks(Protocol):
    """Knows the tokens of prompts, block by block."""

    def prepare(self, exchange: Exchange) -> Awaitable[None] | None:
        """To be awaited before `blocks_of`; None if there is nothing to wait for."""
        ...

    def blocks_of(self, exchange: Exchange) -> tuple[tuple[int, ...], int]:
        """As `Prefix`, of tokens; () for a prompt whose tokens are not known."""
        ...


# Nothing else is known: as long as the breaker's shortest way back, or a model's load, may take.
_UNKNOWN_RETRY_S = 1.0
# A pause that ends sooner is waited for in the queue instead of being told to the client.
_SHORT_PAUSE_S = 5.0


class PoolState(StrEnum):
    """Whether a pool can take a request. `LOADING`: not yet, so wait; `AWAY`: breakers or back-offs let none through."""

    SERVING = "serving"
    FULL = "full"
    LOADING = "loading"
    AWAY = "away"
    EMPTY = "empty"


_REASONS = MappingProxyType(
    {
        PoolState.LOADING: "{} is still loading on its backends",
        PoolState.AWAY: "every backend of {} has failed too often; they are tried again one request at a time",
        PoolState.EMPTY: "no backend of {} is healthy",
    }
)


class BackendPool:
    """Backends that answer for one model, and their router. Times are in seconds of the pipeline's clock.

    Attributes:
        members: by id; replicas: theirs, in the same order.
        tenants_of: tenants that a member is set apart for, by its id.
    """

    def __init__(
        self, name: str, policy: RoutingPolicy, rng: Random, prefix: Prefix | None, tokens: PromptBlocks | None = None
    ) -> None:
        """Empty. The policy's filters are joined by those of bulkheads and of tenants' own backends."""
        self._shown = shown_model(name)
        self.members: dict[str, Backend] = {}
        self.replicas: list[ReplicaState] = []
        self.tenants_of: dict[str, frozenset[str]] = {}
        self._tenant_pools = TenantPools(self.tenants_of)
        self._has_room = HasRoom(self._bulkhead_of)
        self._prefix = prefix
        self._tokens = tokens
        self.router = Router(replace(policy, filters=(*policy.filters, self._tenant_pools, self._has_room)), rng)

    def add(self, backend: Backend) -> None:
        """Take in a member."""
        self.members[backend.backend_id] = backend
        self.replicas = [each.replica for each in self.members.values()]
        if backend.settings.tenants:
            self.tenants_of[backend.backend_id] = frozenset(backend.settings.tenants)

    def remove(self, backend_id: str) -> Backend:
        """Take a member out, and forget what it held."""
        backend = self.members.pop(backend_id)
        self.replicas = [each.replica for each in self.members.values()]
        self.tenants_of.pop(backend_id, None)
        self.forget_prefixes(backend_id)
        return backend

    def forget_prefixes(self, backend_id: str) -> None:
        """A member has lost its cache. Idempotent."""
        if self.router.policy.prefix_matcher is not None:
            self.router.policy.prefix_matcher.forget(backend_id)

    def prepare(self, exchange: Exchange) -> Awaitable[None] | None:
        """To be awaited before a request is routed, if there is something to wait for."""
        return None if self._tokens is None else self._tokens.prepare(exchange)

    def refresh(self, now_s: float) -> None:
        """Let the router see what time has done; only a breaker that is not closed changes by itself."""
        for backend in self.members.values():
            if backend.replica.breaker_open:
                backend.refresh(now_s)

    def state(self, now_s: float) -> PoolState:
        """Whether it could take a request of some tenant at `now_s`. Brings its replicas up to date."""
        self.refresh(now_s)
        live = [each for each in self.members.values() if each.replica.weight > 0.0 and not each.replica.draining]
        able = [backend for backend in live if backend.replica.takes_requests]
        if able:
            free = any(backend.bulkhead.in_flight < backend.bulkhead.max_in_flight for backend in able)
            return PoolState.SERVING if free else PoolState.FULL
        phases = {backend.phase for backend in live}
        if phases & {HealthPhase.LOADING, HealthPhase.UNKNOWN, HealthPhase.ASLEEP}:
            return PoolState.LOADING
        return PoolState.AWAY if HealthPhase.READY in phases else PoolState.EMPTY

    def is_worth_waiting_for(self, now_s: float) -> bool:
        """Whether a request that finds no backend ready had better wait: a model loads, or a short pause will end."""
        if self.state(now_s) is PoolState.LOADING:
            return True
        return self._is_pausing(now_s) and self.retry_after_s(now_s) <= _SHORT_PAUSE_S

    def sleeper(self) -> Backend | None:
        """A member whose model is not in memory, unless another one loads its own already."""
        members = [each for each in self.members.values() if each.replica.weight > 0.0 and not each.replica.draining]
        if any(each.phase is HealthPhase.LOADING for each in members):
            return None
        return next((each for each in members if each.phase is HealthPhase.ASLEEP), None)

    def retry_after_s(self, now_s: float) -> float:
        """Seconds until a breaker or a back-off may let a request through again."""
        ready = [each for each in self.members.values() if each.phase is HealthPhase.READY]
        waits = [each.breaker.allowed_at_s(now_s) - now_s for each in ready]
        return max(_UNKNOWN_RETRY_S, min(waits, default=_UNKNOWN_RETRY_S))

    def routing_request(self, exchange: Exchange, tenant: str, tried: frozenset[str]) -> RoutingRequest:
        """What routing may know of a request.

        A prompt longer than any context goes to the longest: the length is an estimate, and that backend says precisely.
        """
        longest = max((each.max_prompt_tokens for each in self.replicas if each.takes_requests), default=math.inf)
        sent, sent_tokens = ((), 0) if self._prefix is None else self._prefix(exchange)
        blocks, block_tokens = (sent, sent_tokens) if self._tokens is None else self._tokens.blocks_of(exchange)
        return RoutingRequest(
            exchange.exchange_id,
            prompt_tokens=int(min(exchange.prompt_tokens, longest)),
            expected_output_tokens=exchange.expected_output_tokens,
            prefix_blocks=blocks,
            prefix_block_tokens=block_tokens,
            sent_blocks=sent,
            sent_block_tokens=sent_tokens,
            affinity_key=exchange.affinity_key,
            tenant=tenant,
            tried=tried,
        )

    def refusal(self, request: RoutingRequest, message: str, now_s: float) -> RequestDropped:
        """Why nobody takes `request`: 429 is pressure that passes, 503 that nobody could serve it.

        Args:
            message: for a reason that the pool's state does not tell.
        """
        outcome = Outcome.REJECTED_CAPACITY
        if self._is_full(request):
            message = f"every backend of {self._shown} is at its limit of requests in flight"
        elif self._is_pausing(now_s):
            message = f"every backend of {self._shown} has asked for a pause"
        else:
            outcome, reason = Outcome.REJECTED_NO_BACKEND, _REASONS.get(self.state(now_s))
            message = f"{self._shown}: {message}" if reason is None else reason.format(self._shown)
        return RequestDropped(outcome, message, retry_after_s=self.retry_after_s(now_s))

    def _is_full(self, request: RoutingRequest) -> bool:
        """Whether there are backends for the request's tenant and none has room."""
        able = self._tenant_pools.keep(request, [each for each in self.replicas if each.takes_requests])
        return bool(able) and not self._has_room.keep(request, able)

    def _is_pausing(self, now_s: float) -> bool:
        """Whether it is a 429 that keeps requests away, and not a breaker."""
        if self.state(now_s) is not PoolState.AWAY:
            return False
        ready = [each for each in self.members.values() if each.phase is HealthPhase.READY and not each.replica.draining]
        return any(each.replica.weight > 0.0 and each.breaker.state(now_s) is BreakerState.CLOSED for each in ready)

    def _bulkhead_of(self, backend_id: str) -> Bulkhead:
        return self.members[backend_id].bulkhead
