"""Who sends a request: keys looked up in the database once, then known for a while.

What is cached is bounded, in number and in time. A change that any process makes reaches the others when they next look at
the version of the tenants (every `poll_s`): only identities made from what has changed are forgotten. If that look fails,
nothing that is cached is trusted for longer than `max_stale_s`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from argosy.errors import ConfigError, StoreUnavailable, Unauthorized
from argosy.fleet.gateway.budgets import BudgetState
from argosy.fleet.gateway.exchange import Exchange, Principal
from argosy.fleet.gateway.key_hash import MAX_KEY_CHARACTERS, KeyHasher
from argosy.fleet.gateway.store_calls import StoreCalls
from argosy.fleet.gateway.tenancy import Identity, find_identity
from argosy.fleet.gateway.tenancy_changes import ChangesSince, read_changes
from argosy.fleet.policies.outcomes import Outcome, RequestDropped


@dataclass(frozen=True, slots=True)
class AuthenticationConfig:
    """How long and how many keys are known without asking the database.

    Attributes:
        max_keys: identities kept; the one unused for longest goes first.
        max_unknown_keys: keys known to be wrong, kept apart so that guesses push no good key out.
        ttl_s: after which an identity is read again, with the spend of its budgets; meanwhile the one at hand is used,
            unless `serve_on_store_loss` is off.
        unknown_ttl_s: after which a wrong key is looked up again.
        poll_s: how often the version of the tenants is looked at: a blocked key stops working within that time plus one
            call of the database.
        serve_on_store_loss: whether keys in the cache keep working while the database does not answer.
        max_stale_s: for how long they do.
    """

    max_keys: int = 10_000
    max_unknown_keys: int = 10_000
    ttl_s: float = 60.0
    unknown_ttl_s: float = 5.0
    poll_s: float = 1.0
    serve_on_store_loss: bool = True
    max_stale_s: float = 600.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming the setting that is out of range."""
        for name in ("max_keys", "max_unknown_keys"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} of authentication must be at least 1, got {getattr(self, name)}")
        for name in ("ttl_s", "unknown_ttl_s", "max_stale_s"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} of authentication must not be negative, got {getattr(self, name)}")
        if not self.poll_s > 0:
            raise ConfigError(f"poll_s of authentication must be above 0, got {self.poll_s}")


@dataclass(slots=True)
class _Cached:
    """An identity and the monotonic time when the database last vouched for it."""

    identity: Identity
    seen_s: float
    is_stale: bool = False


class StoreAuthenticator:
    """Keys of the database, on the event loop (the pipeline's `Authenticator`).

    Args:
        clock: monotonic seconds; wall_clock: Unix seconds, for expiry.
        on_budgets: told of the spend of a key's budgets each time the database is read, before its request is admitted.
    """

    def __init__(
        self,
        calls: StoreCalls,
        hasher: KeyHasher,
        config: AuthenticationConfig,
        *,
        on_budgets: Callable[[tuple[BudgetState, ...]], None] = lambda _states: None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._calls, self._hasher, self.config = calls, hasher, config
        self._on_budgets, self._clock, self._wall_clock = on_budgets, clock, wall_clock
        self._known: OrderedDict[str, _Cached] = OrderedDict()
        self._unknown: OrderedDict[str, float] = OrderedDict()
        self._looking_up: dict[str, asyncio.Task[Identity | None]] = {}
        self._version: int | None = None

    async def authenticate(self, key: str | None, exchange: Exchange) -> Principal:
        """The principal that `key` belongs to. A key that is cached is answered without waiting.

        Raises:
            Unauthorized: no key, an unknown one, or one that is blocked or has expired; none is repeated.
            RequestDropped: the key is not cached and the database does not answer (`FAILED_STORE`).
        """
        del exchange
        if not key:
            raise Unauthorized("an API key is needed: send it as Authorization: Bearer sk-…", code="missing_api_key")
        digest = self._hasher.digest(key)
        cached = self._known.get(digest)
        identity: Identity | None
        if cached is not None and self._may_serve(cached):
            self._known.move_to_end(digest)
            if self._clock() - cached.seen_s >= self.config.ttl_s:
                self._start_look_up(key, digest)
            identity = cached.identity
        elif len(key) > MAX_KEY_CHARACTERS or self._is_known_to_be_wrong(digest):
            identity = None
        else:
            identity = await self._read(key, digest)
        if identity is None:
            raise Unauthorized(f"the API key {self._hasher.describe(key)} is not known; check it, or ask for one")
        return identity.check(self._hasher.describe(key), self._wall_clock())

    async def watch(self) -> None:
        """Follow changes that any process makes, until cancelled. Run it as a task beside the server."""
        while True:
            with contextlib.suppress(StoreUnavailable):
                await self.follow_changes()
            await asyncio.sleep(self.config.poll_s)

    async def follow_changes(self) -> None:
        """Look once at what has changed, and forget what was made from it.

        Raises:
            StoreUnavailable: the database does not answer.
        """
        changes = await self._calls.run(lambda: self._calls.store.read(lambda c: read_changes(c, self._version)))
        if changes.version != self._version:
            self._apply(changes)

    @property
    def is_ready(self) -> bool:
        """Whether requests can be expected to pass: readiness does not end with the database if keys are served without."""
        return self.config.serve_on_store_loss or not self._calls.is_lost

    @property
    def num_cached(self) -> int:
        """Identities in the cache."""
        return len(self._known)

    def _apply(self, changes: ChangesSince) -> None:
        if self._version is not None:
            self._unknown.clear()
            for cached in self._known.values():
                if changes.is_complete and changes.records.isdisjoint(cached.identity.record_ids):
                    continue
                cached.is_stale = True
        self._version = changes.version

    def _is_known_to_be_wrong(self, digest: str) -> bool:
        found_s = self._unknown.get(digest)
        if found_s is None:
            return False
        if self._clock() - found_s < self.config.unknown_ttl_s:
            return True
        del self._unknown[digest]
        return False

    async def _read(self, key: str, digest: str) -> Identity | None:
        try:
            return await asyncio.shield(self._start_look_up(key, digest))
        except StoreUnavailable as error:
            raise RequestDropped(
                Outcome.FAILED_STORE, "the API key cannot be checked at this moment; try again", retry_after_s=1.0
            ) from error

    def _start_look_up(self, key: str, digest: str) -> asyncio.Task[Identity | None]:
        """Ask the database, once for all requests that bring the same key."""
        task = self._looking_up.get(digest)
        if task is None:
            task = self._looking_up[digest] = asyncio.create_task(self._look_up(key, digest))
            task.add_done_callback(lambda ended: self._end_look_up(digest, ended))
        return task

    def _end_look_up(self, digest: str, ended: asyncio.Task[Identity | None]) -> None:
        del self._looking_up[digest]
        if not ended.cancelled():
            ended.exception()  # looked at: nobody may wait for it

    async def _look_up(self, key: str, digest: str) -> Identity | None:
        store, hasher, now_s = self._calls.store, self._hasher, self._wall_clock()
        asked_s, version = self._clock(), self._version
        identity = await self._calls.run(lambda: store.read(lambda c: find_identity(c, hasher, key, now_s)))
        if identity is None:
            self._known.pop(digest, None)
            self._unknown[digest] = asked_s
            _shorten(self._unknown, self.config.max_unknown_keys)
            return None
        # What was read before a change that has been seen meanwhile is read once more by the next request.
        self._known[digest] = _Cached(identity, asked_s, is_stale=version != self._version)
        self._known.move_to_end(digest)
        _shorten(self._known, self.config.max_keys)
        self._on_budgets(identity.budgets)
        return identity

    def _may_serve(self, cached: _Cached) -> bool:
        """Whether an identity may be used without asking. One that is known to have changed never may: a key that was
        blocked must not come back because the database is gone."""
        age_s = self._clock() - cached.seen_s
        if cached.is_stale:
            return False
        return age_s < self.config.ttl_s or (self.config.serve_on_store_loss and age_s < self.config.max_stale_s)


def _shorten(entries: OrderedDict[str, _Cached] | OrderedDict[str, float], most: int) -> None:
    while len(entries) > most:
        entries.popitem(last=False)
