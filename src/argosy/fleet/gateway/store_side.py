"""Everything of a gateway process that stands on the database, made and ended together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from starlette.applications import Starlette

from argosy.fleet.gateway.admin_api import Admin, ModelAdmin, create_admin_app
from argosy.fleet.gateway.authenticator import AuthenticationConfig, StoreAuthenticator
from argosy.fleet.gateway.budgets import BudgetState, read_budget_states
from argosy.fleet.gateway.config_operations import AuthSettings, StoreSettings
from argosy.fleet.gateway.key_hash import KeyHasher
from argosy.fleet.gateway.prices import PriceTable
from argosy.fleet.gateway.store import Store, StoreConfig
from argosy.fleet.gateway.store_calls import StoreCalls
from argosy.fleet.gateway.tenancy_groups import GroupRecords
from argosy.fleet.gateway.tenancy_keys import KeyRecords
from argosy.fleet.gateway.usage_journal import UsageJournal
from argosy.fleet.gateway.usage_writer import StoreUsageSink, UsageWriter
from argosy.fleet.policies.limits import Limits, Scope


class StoreSide:
    """The database, who is known by it, and the way of usage into it. Made on the event loop, then `start`, then `close`.

    Attributes:
        authenticator: of the keys in the database.
        sink: the pipeline's `UsageSink`; writer: counts what it has taken, stored and lost.
    """

    def __init__(
        self,
        settings: StoreSettings,
        auth: AuthSettings,
        hasher: KeyHasher,
        prices: PriceTable,
        *,
        url: str | None = None,
        on_budgets: Callable[[tuple[BudgetState, ...]], None] = lambda _states: None,
    ) -> None:
        """Open the database and the journal. Blocks, each step for at most `settings.timeout_s`.

        Args:
            url: in place of `settings.url`, with its password.
            on_budgets: see `StoreAuthenticator`.

        Raises:
            ConfigError: a setting, the database or the journal is not fit; see `Store.open`.
            StoreUnavailable: the database does not answer.
        """
        self.hasher = hasher
        self.store = Store(StoreConfig(url or settings.url, settings.timeout_s))
        self.store.open(hasher.fingerprint())
        self._calls = StoreCalls(self.store)
        self.authenticator = StoreAuthenticator(
            self._calls,
            hasher,
            AuthenticationConfig(
                max_keys=auth.cache_entries,
                ttl_s=auth.cache_ttl_s,
                serve_on_store_loss=settings.serve_on_store_loss,
                max_stale_s=max(settings.grace_s, auth.cache_ttl_s),
            ),
            on_budgets=on_budgets,
        )
        self._journal = UsageJournal(Path(settings.journal))
        self.writer = UsageWriter(self.store, self._journal)
        self.sink = StoreUsageSink(self.writer, prices, process_id=self._journal.process_id)
        self._admin_calls: StoreCalls | None = None
        self._watch: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow changes of tenants and to write usage, first what earlier processes left."""
        self.writer.start()
        self._watch = asyncio.create_task(self.authenticator.watch())

    def budget_states(self, scopes: Sequence[tuple[Scope, Limits]], unix_s: float) -> tuple[BudgetState, ...]:
        """What scopes that are not in the database, such as those of the configuration file, have spent by it. Blocks."""
        return self.store.read(lambda connection: read_budget_states(connection, scopes, unix_s))

    def admin_app(self, master_key: str, models: ModelAdmin | None = None) -> Starlette:
        """The admin API on this database."""
        if self._admin_calls is None:
            self._admin_calls = StoreCalls(self.store, caller="admin API", num_threads=2)
        keys, groups = KeyRecords(self.store, self.hasher), GroupRecords(self.store)
        on_change = self.authenticator.follow_changes
        return create_admin_app(Admin(self._admin_calls, keys, groups, self.hasher, master_key, models, on_change))

    @property
    def is_lost(self) -> bool:
        """Whether the database does not answer at present."""
        return self._calls.is_lost

    async def close(self, timeout_s: float = 5.0) -> None:
        """Write what usage is left, for `timeout_s` at most; the journal keeps the rest. Idempotent."""
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
            self._watch = None
        await asyncio.to_thread(self.writer.stop, timeout_s)
        self._journal.close()
        for calls in (self._calls, self._admin_calls):
            if calls is not None:
                calls.close()
        self.store.close()
