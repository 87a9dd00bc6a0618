"""The ledger of a gateway that is alone, or whose shared ledger is lost: the counters of this process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from argosy.fleet.gateway.rate_limit_headers import rate_limit_headers
from argosy.fleet.policies.ledger import Denial, Lease, Ledger, Scopes
from argosy.fleet.policies.limits import Demand


class LocalLedger:
    """`policies.ledger.Ledger` behind the asynchronous face that the pipeline uses. Nothing here waits.

    Leases live as long as this process, however long a stream lasts: they need no sign of life.

    Args:
        burst: gives the factor on soft limits of this moment, as from `SoftQuota.burst`.
        owner: this process.
    """

    def __init__(
        self, ledger: Ledger | None = None, *, owner: str = "local", burst: Callable[[], float] | None = None
    ) -> None:
        self.ledger = ledger or Ledger(lease_ttl_s=math.inf, unix_offset_s=time.time() - time.monotonic())
        self._owner = owner
        self._burst = burst

    async def acquire(self, scopes: Scopes, demand: Demand, *, now_s: float) -> Lease | Denial:
        """A lease over all limits, or which one denied it."""
        burst = 1.0 if self._burst is None else self._burst()
        return self.ledger.acquire(scopes, demand, now_s=now_s, owner=self._owner, burst=burst)

    async def settle(self, lease: Lease, actual: Demand, *, now_s: float) -> None:
        """End the lease, `actual` in place of the estimate. Idempotent."""
        self.ledger.settle(lease, actual, now_s=now_s)

    async def release(self, lease: Lease, *, now_s: float) -> None:
        """End the lease of a request that took nothing. Idempotent; nothing happens after `settle`."""
        self.ledger.release(lease, now_s=now_s)

    def headers(self, lease_or_denial: Lease | Denial, *, now_s: float) -> Mapping[str, str]:
        """The `x-ratelimit-*` headers of an answer."""
        return rate_limit_headers(lease_or_denial, now_s)
