"""The admission ledger: a lease over every limit of key, team and organisation, or nothing.

Checking first and counting later lets every request through that arrives in between. Here a request reserves what it is
expected to take in the same step that checks it, and the reservation is replaced by what it took when it ends.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from argosy.errors import ConfigError
from argosy.fleet.policies.limits import Demand, Dimension, Limits, LimitStatus, Scope, nano_usd
from argosy.fleet.policies.outcomes import Outcome
from argosy.fleet.policies.scope_usage import Booking, Denial, ScopeUsage, longest

__all__ = ["Denial", "Lease", "Ledger", "Scopes"]

Scopes = Sequence[tuple[Scope, Limits]]


@dataclass(frozen=True, slots=True, eq=False)
class Lease:
    """What one admitted request holds until `settle` or `release`.

    Attributes:
        id: unique among the leases of its owner.
        owner: the gateway process that must keep it alive.
        acquired_s: on the clock of the one who acquired it.
        requests, tokens: the scope that has least left of either, right after admission; None if nothing limits it.
    """

    id: int
    owner: str
    scopes: Scopes
    demand: Demand
    acquired_s: float
    requests: LimitStatus | None = None
    tokens: LimitStatus | None = None


class _Holding:
    """A live lease and what it has booked in each scope that limits anything."""

    __slots__ = ("bookings", "cost", "expires_s", "lease", "tokens")

    def __init__(self, lease: Lease, bookings: list[Booking], tokens: int, cost: int, expires_s: float) -> None:
        self.lease = lease
        self.bookings = bookings
        self.tokens = tokens
        self.cost = cost
        self.expires_s = expires_s


class Ledger:
    """Counts for all scopes of one process. Thread-safe; every call is a few microseconds under one lock.

    The work per request does not depend on how many scopes there are: windows move when they are looked at, and each
    `acquire` looks at one scope beside its own to forget it if nothing of it counts any more.

    Args:
        lease_ttl_s: a lease that is not renewed for so long ends as if it had taken its estimate. A backstop for owners
            that died: whoever acquires a lease must end it.
        window_s: length of the windows of rpm and tpm.
        unix_offset_s: what to add to `now_s` for Unix time, which budget periods follow.
        max_scopes, max_leases: remembered at once. Beyond it requests are denied with `REJECTED_CAPACITY`; nothing that
            counts is forgotten.
    """

    def __init__(
        self,
        *,
        lease_ttl_s: float = 120.0,
        window_s: float = 60.0,
        unix_offset_s: float = 0.0,
        max_scopes: int = 200_000,
        max_leases: int = 100_000,
    ) -> None:
        if not (lease_ttl_s > 0.0 and window_s > 0.0 and max_scopes >= 1 and max_leases >= 1):
            raise ConfigError("a ledger needs lease_ttl_s, window_s, max_scopes and max_leases above 0")
        self._lease_ttl_s = lease_ttl_s
        self._window_s = window_s
        self._unix_offset_s = unix_offset_s
        self._max_scopes = max_scopes
        self._max_leases = max_leases
        self._scopes: OrderedDict[Scope, ScopeUsage] = OrderedDict()  # the one looked at longest ago first
        self._holdings: OrderedDict[int, _Holding] = OrderedDict()  # the one that expires first first
        self._ids = itertools.count(1)
        self._lock = threading.RLock()
        self.num_expired = 0

    @property
    def num_leases(self) -> int:
        """Leases that are held."""
        return len(self._holdings)

    @property
    def num_scopes(self) -> int:
        """Scopes remembered."""
        return len(self._scopes)

    def acquire(
        self, scopes: Scopes, demand: Demand, *, now_s: float, owner: str = "local", burst: float = 1.0
    ) -> Lease | Denial:
        """Reserve `demand` in every dimension of every scope, or in none.

        Args:
            scopes: each scope once, with its limits of this moment.
            burst: factor on limits that are soft, from `SoftQuota`.
        """
        tokens, cost = demand.total_tokens, nano_usd(demand.cost_usd_estimate)
        with self._lock:
            self._make_room(now_s)
            if len(self._holdings) >= self._max_leases:
                return Denial(Outcome.REJECTED_CAPACITY, retry_after_s=1.0)
            usages: list[ScopeUsage] = []
            for scope, limits in scopes:
                if limits.is_empty:
                    continue
                usage = self._usage(scope, limits, now_s)
                if usage is None:
                    return Denial(Outcome.REJECTED_CAPACITY, retry_after_s=1.0)
                if not usage.fits(demand, tokens, cost, burst, now_s):
                    return self._denial(scopes, demand, burst, now_s)
                assert usage not in usages, f"{scope} counts once per request"
                usages.append(usage)
            return self._book(scopes, demand, usages, owner, now_s)

    def adopt(self, scopes: Scopes, demand: Demand, *, now_s: float, owner: str = "local") -> Lease:
        """Count a request that runs already, whether it fits or not: another ledger has admitted it.

        Scopes for which there is no room stay uncounted.
        """
        with self._lock:
            usages = [
                usage
                for scope, limits in scopes
                if not limits.is_empty and (usage := self._usage(scope, limits, now_s)) is not None
            ]
            return self._book(scopes, demand, usages, owner, now_s)

    def settle(self, lease: Lease, actual: Demand, *, now_s: float) -> bool:
        """End the lease and count `actual` in place of what was reserved; False, and nothing is done, if it has ended.

        Spending belongs to the budget period in which it is settled.
        """
        with self._lock:
            return self._end(lease.id, actual.total_tokens, nano_usd(actual.cost_usd_estimate), now_s)

    def release(self, lease: Lease, *, now_s: float) -> bool:
        """End the lease of a request that took nothing; False, and nothing is done, if it has ended.

        It still counts as one request in its minute.
        """
        with self._lock:
            return self._end(lease.id, 0, 0, now_s)

    def renew(self, lease: Lease, *, now_s: float) -> bool:
        """Keep one lease alive for another TTL; False if it has ended."""
        with self._lock:
            holding = self._holdings.get(lease.id)
            if holding is None:
                return False
            holding.expires_s = now_s + self._lease_ttl_s
            self._holdings.move_to_end(lease.id)
            return True

    def heartbeat(self, owner: str, *, now_s: float) -> int:
        """Keep all leases of `owner` alive for another TTL; returns how many those are."""
        with self._lock:
            leases = [holding.lease for holding in self._holdings.values() if holding.lease.owner == owner]
            return sum(self.renew(lease, now_s=now_s) for lease in leases)

    def expire(self, *, now_s: float) -> int:
        """End all leases whose TTL has passed; returns how many. `acquire` does so too."""
        num_ended = 0
        with self._lock:
            while self._holdings:
                lease_id, holding = next(iter(self._holdings.items()))
                if holding.expires_s > now_s:
                    break
                demand = holding.lease.demand
                self._end(lease_id, demand.total_tokens, nano_usd(demand.cost_usd_estimate), now_s)
                num_ended += 1
            self.num_expired += num_ended
        return num_ended

    def status(self, scope: Scope, dimension: Dimension, *, now_s: float) -> LimitStatus | None:
        """Where a scope stands; None if nothing of it is remembered, or it has no such limit."""
        with self._lock:
            usage = self._scopes.get(scope)
            return None if usage is None else usage.status(dimension, now_s)

    def restore_spending(self, scope: Scope, limits: Limits, spent_usd: float, *, now_s: float) -> None:
        """Set what a scope has spent in the period of `now_s`, as a store remembers it.

        What requests in flight have reserved stays. Nothing happens if `limits` hold no budget.
        """
        with self._lock:
            usage = None if limits.max_budget_usd is None else self._usage(scope, limits, now_s)
            if usage is not None and usage.budget is not None:
                usage.budget.used(limits.budget_period_s, now_s + self._unix_offset_s)
                usage.budget.spent = nano_usd(spent_usd)

    def spent_usd(self, scope: Scope, *, now_s: float) -> float:
        """Dollars that a scope has spent in its current period, reservations not included."""
        with self._lock:
            usage = self._scopes.get(scope)
            if usage is None or usage.budget is None:
                return 0.0
            usage.budget.used(usage.limits.budget_period_s, now_s + self._unix_offset_s)
            return usage.budget.spent_usd

    def check_invariants(self) -> None:
        """Raise `AssertionError` unless scopes count in flight what the leases hold, and every map is within its bounds."""
        with self._lock:
            assert len(self._scopes) <= self._max_scopes, "more scopes than allowed"
            in_leases = {scope: [0, 0, 0] for scope in self._scopes}
            for holding in self._holdings.values():
                assert holding.lease.owner, "a lease without an owner"
                for usage, budget, _ in holding.bookings:
                    assert self._scopes.get(usage.scope) is usage, f"{usage.scope} was forgotten while a lease holds it"
                    sums = in_leases[usage.scope]
                    sums[0] += 1
                    sums[1] += holding.tokens
                    sums[2] += 0 if budget is None else holding.cost
            for scope, usage in self._scopes.items():
                usage.check_invariants()
                reserved_cost = 0 if usage.budget is None else usage.budget.reserved
                counted = [usage.parallel, usage.kv_tokens, reserved_cost]
                assert counted == in_leases[scope], f"{scope} counts {counted} in flight, its leases hold {in_leases[scope]}"

    def _usage(self, scope: Scope, limits: Limits, now_s: float) -> ScopeUsage | None:
        """The counters of a scope, made if there are none; None if there is no room for them."""
        usage = self._scopes.get(scope)
        if usage is None:
            if len(self._scopes) >= self._max_scopes and not self._forget_idle(now_s, num_tries=8):
                return None
            usage = self._scopes[scope] = ScopeUsage(scope, limits, self._window_s, self._unix_offset_s)
            usage.prepare(limits)
        else:
            self._scopes.move_to_end(scope)
            if usage.limits is not limits:
                usage.prepare(limits)
        return usage

    def _make_room(self, now_s: float) -> None:
        if self._holdings and next(iter(self._holdings.values())).expires_s <= now_s:
            self.expire(now_s=now_s)
        self._forget_idle(now_s, num_tries=1)

    def _forget_idle(self, now_s: float, num_tries: int) -> bool:
        """Look at scopes not looked at for longest and forget one of which nothing counts; whether there was one."""
        for _ in range(min(num_tries, len(self._scopes))):
            scope, usage = next(iter(self._scopes.items()))
            if usage.is_idle(now_s):
                del self._scopes[scope]
                return True
            self._scopes.move_to_end(scope)
        return False

    def _denial(self, scopes: Scopes, demand: Demand, burst: float, now_s: float) -> Denial:
        """The limit that holds longest among all that deny: after it, the request is not denied once more."""
        denials: list[Denial] = []
        for scope, limits in scopes:
            usage = None if limits.is_empty else self._usage(scope, limits, now_s)
            if usage is not None:
                denials += usage.denials(demand, burst, now_s)
        return longest(denials)

    def _book(self, scopes: Scopes, demand: Demand, usages: list[ScopeUsage], owner: str, now_s: float) -> Lease:
        tokens, cost = demand.total_tokens, nano_usd(demand.cost_usd_estimate)
        bookings = [usage.book(tokens, cost, now_s) for usage in usages]
        lease = Lease(next(self._ids), owner, scopes, demand, now_s, *_tightest(usages, now_s))
        self._holdings[lease.id] = _Holding(lease, bookings, tokens, cost, now_s + self._lease_ttl_s)
        return lease

    def _end(self, lease_id: int, actual_tokens: int, actual_cost: int, now_s: float) -> bool:
        holding = self._holdings.pop(lease_id, None)
        if holding is None:
            return False
        for usage, budget, token_slot in holding.bookings:
            usage.end(holding.tokens, actual_tokens, token_slot, now_s)
            if budget is not None:
                usage.end_spending(budget, holding.cost, actual_cost, now_s)
        return True


def _tightest(usages: list[ScopeUsage], now_s: float) -> tuple[LimitStatus | None, LimitStatus | None]:
    """Of requests and of tokens, the status in the scope that has least left."""
    requests: ScopeUsage | None = None
    tokens: ScopeUsage | None = None
    least_requests = least_tokens = 0
    for usage in usages:
        if usage.limits.rpm is not None and usage.requests is not None:
            left = usage.limits.rpm - usage.requests.total
            if requests is None or left < least_requests:
                requests, least_requests = usage, left
        if usage.limits.tpm is not None and usage.tokens is not None:
            left = usage.limits.tpm - usage.tokens.total
            if tokens is None or left < least_tokens:
                tokens, least_tokens = usage, left
    return (
        None if requests is None else requests.status(Dimension.REQUESTS, now_s),
        None if tokens is None else tokens.status(Dimension.TOKENS, now_s),
    )
