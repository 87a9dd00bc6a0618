"""What becomes of limits while the shared ledger is stopped, frozen, full, or refuses: what is configured, without waiting.

    shared --a call fails or has no answer in time--> lost --a heartbeat is written, what was missed is told--> shared

Only the calls in flight at the moment of the loss wait, at most the channel's timeout. After it, requests are decided here
until a probe in the background can write again: a server that answers but is out of memory is as good as none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Literal

from argosy.errors import ConfigError, StoreUnavailable
from argosy.fleet.gateway.rate_limit_headers import rate_limit_headers
from argosy.fleet.gateway.redis_ledger import RedisLedger
from argosy.fleet.policies.ledger import Denial, Lease, Ledger, Scopes
from argosy.fleet.policies.limits import Demand, Limits, Scope
from argosy.fleet.policies.outcomes import Outcome
from argosy.fleet.policies.scope_usage import longest, too_large
from argosy.observe.logs import log_event

logger = logging.getLogger("argosy.gateway.redis")

OnLoss = Literal["closed", "local_share", "open"]
ON_LOSS: tuple[OnLoss, ...] = ("closed", "local_share", "open")
_NOTHING = Demand()
_WITHOUT_STORE = "without-store"


class GuardedLedger:
    """A `RedisLedger` that may be lost. Belongs to one event loop; `start` it there.

    While it is lost, requests without any limit pass, requests above the bounds of a single one do not, and the rest by
    `on_loss`:

    - `closed`: denied with `FAILED_STORE`.
    - `local_share`: each process grants 1/`replicas` of every limit by itself, what it has in flight included, and of each
      budget what was left when it last heard. The minute begins anew: what was used of it before the loss is not known.
    - `open`: granted.

    After it, the server is told what ended meanwhile, what was spent, and what still runs. Requests and tokens per minute
    that were granted meanwhile are not told.

    Args:
        replicas: gateway processes that share the limits.
        retry_s: from one probe to the next.
        on_change: called with whether the store is there, at every transition.

    Attributes:
        is_lost: decisions are made without the server.
        num_losses, num_decided_without, num_reaped: transitions to lost, requests decided without the server, and leases
            of dead processes that were ended; since the start.
    """

    def __init__(
        self,
        shared: RedisLedger,
        *,
        on_loss: OnLoss = "local_share",
        replicas: int = 1,
        retry_s: float = 1.0,
        on_change: Callable[[bool], None] | None = None,
    ) -> None:
        if on_loss not in ON_LOSS:
            raise ConfigError(f"on_loss must be one of {', '.join(ON_LOSS)}, got {on_loss!r}")
        if replicas < 1 or not retry_s > 0.0:
            raise ConfigError(f"replicas must be at least 1 and retry_s above 0, got {replicas} and {retry_s}")
        self.shared = shared
        self.local = Ledger(lease_ttl_s=math.inf, unix_offset_s=time.time() - time.monotonic())
        self.is_lost = False
        self.num_losses = self.num_decided_without = self.num_reaped = 0
        self._on_loss = on_loss
        self._replicas = replicas
        self._retry_s = retry_s
        self._on_change = on_change
        self._owed_usd: dict[
            tuple[tuple[Scope, Limits], ...], float
        ] = {}  # spent without the server, by the scopes that it counts in
        self._granted: dict[int, Lease] = {}  # live leases granted without the server
        self._told: dict[int, int] = {}  # by those, the leases that they have on the server after all
        self._mirrors: dict[int, Lease] = {}  # live leases of the server as the local ledger counts them
        self._restored: set[Scope] = set()  # budgets that the local ledger has been told of in this loss
        self._lost_since_s = 0.0
        self._heartbeat_at_s = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def num_pending(self) -> int:
        """What the server has yet to be told."""
        return len(self.shared.unended) + len(self._owed_usd)

    @property
    def num_leases(self) -> int:
        """Live leases of this process."""
        return len(self.shared.live) + len(self._granted)

    async def start(self) -> None:
        """Give the first sign of life, and go on in the background. A server that is away is a loss, not an error."""
        await self._tick()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def aclose(self) -> None:
        """Tell the server what is left to tell, if it is there, and close the connections."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if not self.is_lost:
            with contextlib.suppress(StoreUnavailable):
                await self._tell()
        await self.shared.aclose()

    async def acquire(self, scopes: Scopes, demand: Demand, *, now_s: float) -> Lease | Denial:
        """A lease over all limits, or which one denied it."""
        if not self.is_lost:
            try:
                return await self.shared.acquire(scopes, demand, now_s=now_s)
            except StoreUnavailable as error:
                self._lose(error)
        return self._decide_without(scopes, demand, now_s)

    async def settle(self, lease: Lease, actual: Demand, *, now_s: float) -> None:
        """End the lease, `actual` in place of the estimate. Idempotent; never raises for a store that is away."""
        if lease.owner == _WITHOUT_STORE:
            await self._end_granted(lease, actual, now_s)
        elif self.shared.live.pop(lease.id, None) is not None:
            mirror = self._mirrors.pop(lease.id, None)
            if mirror is not None:
                self.local.settle(mirror, actual, now_s=now_s)
            await self._end_on_server(lease.id, actual)

    async def release(self, lease: Lease, *, now_s: float) -> None:
        """End the lease of a request that took nothing. Idempotent; nothing happens after `settle`."""
        await self.settle(lease, _NOTHING, now_s=now_s)

    def headers(self, lease_or_denial: Lease | Denial, *, now_s: float) -> Mapping[str, str]:
        """The `x-ratelimit-*` headers of an answer."""
        return rate_limit_headers(lease_or_denial, now_s)

    def _decide_without(self, scopes: Scopes, demand: Demand, now_s: float) -> Lease | Denial:
        self.num_decided_without += 1
        limited = [(scope, limits) for scope, limits in scopes if not limits.is_empty]
        denials = [denial for scope, limits in limited for denial in too_large(scope, limits, demand)]
        if denials:
            return longest(denials)
        if limited and self._on_loss == "closed":
            return Denial(Outcome.FAILED_STORE, retry_after_s=self._retry_s)
        if self._on_loss == "open" or not limited:
            answer: Lease | Denial = self.local.adopt(scopes, demand, now_s=now_s, owner=_WITHOUT_STORE)
        else:
            self._restore_budgets(limited, now_s)
            shares = tuple((scope, limits.share(self._replicas)) for scope, limits in scopes)
            answer = self.local.acquire(shares, demand, now_s=now_s, owner=_WITHOUT_STORE)
        if isinstance(answer, Lease):
            self._granted[answer.id] = answer
        return answer

    def _restore_budgets(self, limited: Scopes, now_s: float) -> None:
        """Give the local ledger this process's part of what was spent of each budget when the server last said so."""
        for scope, limits in limited:
            if scope in self._restored or limits.max_budget_usd is None:
                continue
            if len(self._restored) >= self.shared.max_spending_known:
                self._restored.clear()
            self._restored.add(scope)
            spent_usd = self.shared.spent_usd(scope)
            if spent_usd is not None:
                share = limits.share(self._replicas)
                self.local.restore_spending(scope, share, spent_usd / self._replicas, now_s=now_s)

    async def _end_granted(self, lease: Lease, actual: Demand, now_s: float) -> None:
        if self._granted.pop(lease.id, None) is None:
            return
        self.local.settle(lease, actual, now_s=now_s)
        told_as = self._told.pop(lease.id, None)
        if told_as is not None:
            await self._end_on_server(told_as, actual)
        elif actual.cost_usd_estimate and any(limits.max_budget_usd is not None for _, limits in lease.scopes):
            scopes = tuple(lease.scopes)
            self._owed_usd[scopes] = self._owed_usd.get(scopes, 0.0) + actual.cost_usd_estimate

    async def _end_on_server(self, lease_id: int, actual: Demand) -> None:
        if self.is_lost:
            self.shared.unended[lease_id] = actual
            return
        try:
            await self.shared.end(lease_id, actual)
        except StoreUnavailable as error:
            self._lose(error)

    def _lose(self, error: StoreUnavailable) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        self.num_losses += 1
        self._lost_since_s = time.monotonic()
        self._restored.clear()
        if self._on_loss == "local_share":
            for lease in self.shared.live.values():
                shares = tuple((scope, limits.share(self._replicas)) for scope, limits in lease.scopes)
                self._mirrors[lease.id] = self.local.adopt(shares, lease.demand, now_s=lease.acquired_s)
        log_event(logger, logging.ERROR, "shared ledger lost", error=error.message, limits_are=self._on_loss)
        if self._on_change is not None:
            self._on_change(False)

    def _find(self) -> None:
        self.is_lost = False
        for mirror in self._mirrors.values():
            self.local.release(mirror, now_s=mirror.acquired_s)
        self._mirrors.clear()
        lost_s = round(time.monotonic() - self._lost_since_s, 3)
        log_event(logger, logging.INFO, "shared ledger answers again", lost_s=lost_s)
        if self._on_change is not None:
            self._on_change(True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._retry_s)
            try:
                await self._tick()
            except Exception:
                log_event(logger, logging.ERROR, "the shared ledger's upkeep failed", exc_info=True)

    async def _tick(self) -> None:
        """Probe a server that is lost; tell one that is there what it missed, and give a sign of life in time."""
        try:
            now_s = time.monotonic()
            if self.is_lost or now_s >= self._heartbeat_at_s:
                self.num_reaped += await self.shared.heartbeat()
                self._heartbeat_at_s = now_s + self.shared.lease_ttl_s / 3.0
            if self.is_lost or self.num_pending:
                await self._tell()
            if self.is_lost:
                self._find()
        except StoreUnavailable as error:
            self._lose(error)

    async def _tell(self) -> None:
        """End on the server what has ended here, and count there what was granted without it.

        Raises:
            StoreUnavailable: what is not told yet is kept.
        """
        await self.shared.end_unended()
        for scopes in tuple(self._owed_usd):
            lease_id = await self.shared.count(scopes, _NOTHING, "spend")
            await self.shared.end(lease_id, Demand(cost_usd_estimate=self._owed_usd.pop(scopes)))
        for lease in tuple(self._granted.values()):
            if lease.id in self._told:
                continue
            lease_id = await self.shared.count(lease.scopes, lease.demand, "spend")
            if lease.id in self._granted:
                self._told[lease.id] = lease_id
            else:  # it ended meanwhile, and what it took is owed
                await self._end_on_server(lease_id, _NOTHING)
