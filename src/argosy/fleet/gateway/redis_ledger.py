"""The ledger that several gateway processes share: the counters of `policies.ledger`, kept in Redis."""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from argosy.errors import StoreUnavailable
from argosy.fleet.gateway.rate_limit_headers import rate_limit_headers
from argosy.fleet.gateway.redis_channel import RedisChannel, Reply
from argosy.fleet.gateway.redis_scripts import ACQUIRE, END, HEARTBEAT, RESTORE, STATUS, Script
from argosy.fleet.policies.ledger import Denial, Lease, Scopes
from argosy.fleet.policies.limits import NANO_USD_PER_USD, Demand, Dimension, Limits, LimitStatus, Scope, nano_usd
from argosy.fleet.policies.scope_usage import RETRY_WHEN_ONE_ENDS_S, denial_of, longest, stretched, too_large

Mode = Literal["check", "spend", "in_flight"]

_DIMENSIONS = (Dimension.REQUESTS, Dimension.TOKENS, Dimension.PARALLEL, Dimension.KV_TOKENS, Dimension.BUDGET)
_VALUES_PER_SCOPE = 5
_MAX_LATE_ACQUIRES = 3


@dataclass(frozen=True, slots=True)
class SharedUsage:
    """What one scope uses over all processes."""

    parallel: int
    kv_tokens: int
    reserved_usd: float
    spent_usd: float
    requests: int
    tokens: int


class RedisLedger:
    """Leases that count in every gateway with the same Redis and prefix. Belongs to one event loop.

    Time is the server's, so that clocks of several machines need not agree. A process whose heartbeat stops for
    `lease_ttl_s` loses its leases, as if they had taken their estimate; another process's heartbeat sees to it.

    A call that gives up may still have been carried out. So every lease has its own record, by which ending it twice does
    nothing, and the server refuses an `acquire` that reaches it after its caller has given up.

    Args:
        owner: unique for this process and this start of it.
        prefix: of all keys.
        burst: gives the factor on soft limits of this moment.
        server_clock: gives Unix time in place of the server's, for tests and simulation.
        max_spending_known: scopes whose spending is remembered, for a time without the server.

    Attributes:
        live: leases granted and not ended.
        unended: leases that the server may hold though nobody here does, and what they took, None if nobody ever had them:
            to be ended by `end_unended`.
    """

    def __init__(
        self,
        channel: RedisChannel,
        *,
        owner: str,
        prefix: str = "argosy",
        lease_ttl_s: float = 30.0,
        window_s: float = 60.0,
        burst: Callable[[], float] | None = None,
        server_clock: Callable[[], float] | None = None,
        max_spending_known: int = 100_000,
    ) -> None:
        self.owner = owner
        self.lease_ttl_s = lease_ttl_s
        self.max_spending_known = max_spending_known
        self._channel = channel
        self._prefix = f"{{{prefix}}}"
        self._window_s = window_s
        self._burst = burst
        self._server_clock = server_clock
        self._ids = itertools.count(1)
        self._server_ahead_s: float | None = None
        self.live: dict[int, Lease] = {}
        self.unended: dict[int, Demand | None] = {}
        self._spending: OrderedDict[Scope, int] = OrderedDict()  # nano-dollars, as the server said last

    async def acquire(self, scopes: Scopes, demand: Demand, *, now_s: float) -> Lease | Denial:
        """Reserve `demand` in every dimension of every scope, or in none; `now_s` is only noted in the lease.

        Raises:
            StoreUnavailable: there is no answer. What may be reserved is in `unended`, as it is when this is cancelled.
        """
        limited = _limited(scopes)
        denials = [denial for scope, limits in limited for denial in too_large(scope, limits, demand)]
        if denials:
            return longest(denials)
        lease_id = next(self._ids)
        if not limited:
            return Lease(lease_id, self.owner, scopes, demand, now_s)
        try:
            reply = await self._acquire(lease_id, limited, demand, "check")
        except BaseException:
            self.unended[lease_id] = None
            raise
        if reply[0] == 0:
            return self._denial(limited, demand, reply)
        self._note_spending(limited, reply)
        requests, tokens = _tightest(limited, reply)
        lease = Lease(lease_id, self.owner, scopes, demand, now_s, requests, tokens)
        self.live[lease_id] = lease
        return lease

    async def settle(self, lease: Lease, actual: Demand) -> None:
        """End a live lease that took `actual`; nothing happens if it has ended. Whoever cancels this, it ends later.

        Raises:
            StoreUnavailable: it may have ended or not; it stays in `unended`.
        """
        if self.live.pop(lease.id, None) is not None:
            await self.end(lease.id, actual)

    async def release(self, lease: Lease) -> None:
        """End the lease of a request that took nothing; nothing happens after `settle`."""
        await self.settle(lease, Demand())

    async def count(self, scopes: Scopes, demand: Demand, mode: Mode) -> int:
        """Count a request that runs already, without asking whether it fits; returns the id of its lease.

        Mode "spend" also reserves its cost, "in_flight" only its place.

        Raises:
            StoreUnavailable: what may be counted is in `unended`.
        """
        lease_id = next(self._ids)
        try:
            await self._acquire(lease_id, _limited(scopes), demand, mode)
        except BaseException:
            self.unended[lease_id] = Demand()
            raise
        return lease_id

    async def end(self, lease_id: int, actual: Demand | None) -> None:
        """End a lease on the server. Ending it twice does nothing.

        Args:
            actual: what it took; None takes back also that there was a request.

        Raises:
            StoreUnavailable: it may have ended or not; it stays in `unended`.
        """
        self.unended[lease_id] = actual
        took = Demand() if actual is None else actual
        cost = nano_usd(took.cost_usd_estimate)
        arguments = (*self._time(), lease_id, took.total_tokens, cost, int(actual is None))
        await self._run(END, (self._owners_key, self._leases_key), arguments)
        self.unended.pop(lease_id, None)

    async def end_unended(self) -> None:
        """End all that `unended` holds.

        Raises:
            StoreUnavailable: the rest stays there.
        """
        for lease_id, actual in tuple(self.unended.items()):
            await self.end(lease_id, actual)

    async def heartbeat(self) -> int:
        """Give a sign of life, and end leases of processes that gave none for too long; returns how many those were.

        If the server has lost leases of this process, because its data is gone or because this process was suspended,
        those that are live are counted again, as in flight only: their spending is known to the usage store.
        """
        num_reaped = 0
        while True:
            arguments = (*self._time(), self.owner, self.lease_ttl_s, f"{self._prefix}:leases:")
            reply = await self._run(HEARTBEAT, (self._owners_key, self._leases_key), arguments)
            num_reaped += reply[3]
            if reply[4] == 0:
                break
        if reply[2] < len(self.live):
            for lease_id, lease in tuple(self.live.items()):
                if lease_id in self.live:
                    await self._acquire(lease_id, _limited(lease.scopes), lease.demand, "in_flight")
                    if lease_id not in self.live:  # it has ended while it was counted again
                        await self.end(lease_id, Demand())
        return num_reaped

    async def restore_spending(self, scope: Scope, limits: Limits, spent_usd: float) -> None:
        """Tell the server what a scope has spent in the current period; it keeps the higher of that and what it knows."""
        if limits.budget_nano_usd is not None:
            arguments = (*self._time(), limits.budget_nano_usd, limits.budget_period_s or 0, nano_usd(spent_usd))
            await self._run(RESTORE, (self._owners_key, self._scope_key(scope)), arguments)

    async def usage(self, scope: Scope) -> SharedUsage:
        """What a scope uses over all processes."""
        reply = await self._run(STATUS, (self._owners_key, self._scope_key(scope)), self._time())
        parallel, kv_tokens, held, spent, requests, tokens = reply[2:8]
        return SharedUsage(parallel, kv_tokens, held / NANO_USD_PER_USD, spent / NANO_USD_PER_USD, requests, tokens)

    def spent_usd(self, scope: Scope) -> float | None:
        """What a scope with a budget had spent when the server last said so; None if it has not, or long ago."""
        spent = self._spending.get(scope)
        return None if spent is None else spent / NANO_USD_PER_USD

    def headers(self, lease_or_denial: Lease | Denial, *, now_s: float) -> Mapping[str, str]:
        """The `x-ratelimit-*` headers of an answer."""
        return rate_limit_headers(lease_or_denial, now_s)

    async def aclose(self) -> None:
        """Close the connections. Leases that are live end by their TTL."""
        await self._channel.aclose()

    async def _acquire(self, lease_id: int, limited: Sequence[tuple[Scope, Limits]], demand: Demand, mode: Mode) -> Reply:
        tokens, cost = demand.total_tokens, nano_usd(demand.cost_usd_estimate)
        factor = 1.0 if self._burst is None else self._burst()
        limit_arguments = [a for _, limits in limited for a in _limit_arguments(limits, factor if limits.soft else 1.0)]
        keys = (self._owners_key, self._leases_key, *(self._scope_key(scope) for scope, _ in limited))
        for _ in range(_MAX_LATE_ACQUIRES):
            deadline_s: float | str = ""
            if self._server_ahead_s is not None and self._server_clock is None and mode == "check":
                deadline_s = time.monotonic() + self._server_ahead_s + self._channel.longest_wait_s
            lease = (self.owner, lease_id, self.lease_ttl_s, tokens, cost, mode)
            reply = await self._run(ACQUIRE, keys, [*self._time(), deadline_s, *lease, *limit_arguments])
            if reply[0] != -1:
                return reply
            # Nobody has given up: a process under load was late to send it. Nothing is reserved, so it is asked again.
        raise StoreUnavailable("redis answered when it was too late")

    def _note_spending(self, limited: Sequence[tuple[Scope, Limits]], reply: Reply) -> None:
        for i, (scope, limits) in enumerate(limited):
            if limits.budget_nano_usd is not None:
                self._spending[scope] = reply[2 + _VALUES_PER_SCOPE * i + 4]
                self._spending.move_to_end(scope)
                if len(self._spending) > self.max_spending_known:
                    self._spending.popitem(last=False)

    async def _run(self, script: Script, keys: Sequence[str], arguments: Sequence[str | int | float]) -> Reply:
        reply = await self._channel.run(script, keys, arguments)
        ahead_s = reply[1] / 1e6 - time.monotonic()
        if self._server_ahead_s is None or ahead_s > self._server_ahead_s:
            self._server_ahead_s = ahead_s
        return reply

    def _time(self) -> tuple[str | float, float]:
        return "" if self._server_clock is None else self._server_clock(), self._window_s

    @property
    def _owners_key(self) -> str:
        return f"{self._prefix}:owners"

    @property
    def _leases_key(self) -> str:
        return f"{self._prefix}:leases:{self.owner}"

    def _scope_key(self, scope: Scope) -> str:
        return f"{self._prefix}:scope:{scope.kind}:{scope.id}"

    @staticmethod
    def _denial(limited: Sequence[tuple[Scope, Limits]], demand: Demand, reply: Reply) -> Denial:
        needed = {
            Dimension.REQUESTS: 1,
            Dimension.PARALLEL: 1,
            Dimension.TOKENS: demand.total_tokens,
            Dimension.KV_TOKENS: demand.total_tokens,
            Dimension.BUDGET: nano_usd(demand.cost_usd_estimate),
        }
        denials: list[Denial] = []
        for i in range(2, len(reply), 4):
            scope, limits = limited[reply[i] - 1]
            dimension, used, wait_us = _DIMENSIONS[reply[i + 1] - 1], reply[i + 2], reply[i + 3]
            wait_s: float | None = wait_us / 1e6
            if wait_us < 0:
                wait_s = None if dimension is Dimension.BUDGET else RETRY_WHEN_ONE_ENDS_S
            denials.append(denial_of(scope, limits, dimension, used, needed[dimension], wait_s))
        return longest(denials)


def _limited(scopes: Scopes) -> list[tuple[Scope, Limits]]:
    return [(scope, limits) for scope, limits in scopes if not limits.is_empty]


def _limit_arguments(limits: Limits, burst: float) -> tuple[int | float, ...]:
    def or_none(limit: int | None) -> int:
        return -1 if limit is None else limit

    return (
        or_none(stretched(limits.rpm, burst)),
        or_none(stretched(limits.tpm, burst)),
        or_none(stretched(limits.max_parallel, burst)),
        or_none(stretched(limits.kv_tokens, burst)),
        or_none(limits.budget_nano_usd),
        limits.budget_period_s or 0,
    )


def _tightest(limited: Sequence[tuple[Scope, Limits]], reply: Reply) -> tuple[LimitStatus | None, LimitStatus | None]:
    """Of requests and of tokens, the status in the scope that has least left."""
    found: dict[Dimension, LimitStatus] = {}
    for i, (scope, limits) in enumerate(limited):
        first = 2 + _VALUES_PER_SCOPE * i
        num_requests, requests_reset_us, num_tokens, tokens_reset_us = reply[first : first + 4]
        for dimension, limit, used, reset_us in (
            (Dimension.REQUESTS, limits.rpm, num_requests, requests_reset_us),
            (Dimension.TOKENS, limits.tpm, num_tokens, tokens_reset_us),
        ):
            if limit is None:
                continue
            status = LimitStatus(scope, dimension, limit, max(0, limit - used), reset_us / 1e6)
            if dimension not in found or status.remaining < found[dimension].remaining:
                found[dimension] = status
    return found.get(Dimension.REQUESTS), found.get(Dimension.TOKENS)
