"""Who may come in and how much: keys, limits and the record of use, over the stores that the configuration names."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from argosy.errors import ConfigError, StoreUnavailable
from argosy.fleet.gateway.config import GatewayConfig
from argosy.fleet.gateway.config_operations import RedisSettings
from argosy.fleet.gateway.file_keys import FileKeys, KeyAuthenticator, OpenAuthenticator
from argosy.fleet.gateway.file_models import FileModels
from argosy.fleet.gateway.key_hash import KeyHasher, load_secret
from argosy.fleet.gateway.local_ledger import LocalLedger
from argosy.fleet.gateway.prices import PriceTable
from argosy.fleet.gateway.service_parts import NoUsage
from argosy.fleet.gateway.stages import AdmissionLedger, Authenticator, UsageSink
from argosy.fleet.policies.ledger import Ledger

if TYPE_CHECKING:
    from argosy.fleet.gateway.asgi_mount import AsgiApp
    from argosy.fleet.gateway.budgets import BudgetState
    from argosy.fleet.gateway.store_loss import GuardedLedger
    from argosy.fleet.gateway.store_side import StoreSide


class Admission:
    """Made on the event loop, then `start`, then `close`.

    Attributes:
        authenticator, ledger, sink: stages of the pipeline.
        store: the database's side, None without a database.
        shared: the ledger on Redis, None without Redis.
    """

    def __init__(
        self,
        config: GatewayConfig,
        secrets: Mapping[str, str],
        prices: PriceTable,
        *,
        process_id: str,
        clock: Callable[[], float],
        burst: Callable[[], float],
    ) -> None:
        """Open the stores. Blocks for as long as their timeouts say.

        Raises:
            ConfigError: a setting or a store is not fit.
            StoreUnavailable: the database does not answer.
        """
        self._clock = clock
        self._hasher = KeyHasher(load_secret(Path(config.auth.secret_file)))
        self._file_keys = FileKeys(config, secrets, self._hasher)
        self._models = FileModels(config, prices)
        self._master_key = secrets[config.auth.master_key_env] if config.auth.master_key_env else ""
        self._restoring: set[asyncio.Task[None]] = set()
        ledger = Ledger(unix_offset_s=time.time() - clock())  # budget periods are those of the database
        self._local = LocalLedger(ledger, owner=process_id, burst=burst)
        self.shared = None if config.redis is None else _shared_ledger(config.redis, secrets, owner=process_id, burst=burst)
        self.ledger: AdmissionLedger = self.shared or self._local
        self.store = None if config.store is None else self._open_store(config, secrets, prices)
        self.sink: UsageSink = NoUsage() if self.store is None else self.store.sink
        of_store = None if self.store is None else self.store.authenticator
        self._keys = KeyAuthenticator(self._file_keys, self._hasher, of_store)
        self.authenticator: Authenticator = self._keys if config.auth.mode == "keys" else OpenAuthenticator()

    async def start(self) -> None:
        """Begin to follow the stores, and take over what has been spent of the budgets in the file."""
        if self.shared is not None:
            await self.shared.start()
        if self.store is None:
            return
        self.store.start()
        scopes = {scope: limits for principal in self._file_keys.principals for scope, limits in principal.scopes}
        budgets = [(scope, limits) for scope, limits in scopes.items() if limits.max_budget_usd is not None]
        if budgets:
            self._restore(await asyncio.to_thread(self.store.budget_states, budgets, time.time()))

    def admin_app(self) -> AsgiApp | None:
        """The admin API; None without a database or a master key."""
        if self.store is None or not self._master_key:
            return None
        return self.store.admin_app(self._master_key, self._models)

    def file_keys_of(self, config: GatewayConfig, secrets: Mapping[str, str]) -> FileKeys:
        """The keys of another configuration, for `take_over`. Raises `ConfigError` if they contradict each other."""
        return FileKeys(config, secrets, self._hasher)

    def take_over(self, config: GatewayConfig, file_keys: FileKeys, prices: PriceTable) -> None:
        """Put other keys of the file, and other prices, in force, and show the models of `config`."""
        self._models.config, self._models.prices = config, prices
        self._file_keys = self._keys.file_keys = file_keys
        if self.store is not None:
            self.store.sink.prices = prices

    async def close(self) -> None:
        """Write what usage is left, tell Redis what is left, close both."""
        if self.store is not None:
            await self.store.close()
        if self.shared is not None:
            await self.shared.aclose()

    def _open_store(self, config: GatewayConfig, secrets: Mapping[str, str], prices: PriceTable) -> StoreSide:
        try:
            from argosy.fleet.gateway.store_side import StoreSide
        except ImportError:
            raise ConfigError("a store needs SQLAlchemy: pip install 'argosy[gateway]', or set store: null") from None
        settings = config.store
        assert settings is not None, "there is a store"
        url = secrets[settings.url_env] if settings.url_env else None
        return StoreSide(settings, config.auth, self._hasher, prices, url=url, on_budgets=self._restore)

    def _restore(self, states: Sequence[BudgetState]) -> None:
        """Tell the ledger what the database knows of spending."""
        from argosy.fleet.gateway.budgets import restore_spending

        if self.shared is None:
            restore_spending(self._local.ledger, states, now_s=self._clock(), unix_s=time.time())
        elif states:
            task = asyncio.get_running_loop().create_task(self._restore_shared(self.shared, states))
            self._restoring.add(task)
            task.add_done_callback(self._restoring.discard)

    async def _restore_shared(self, ledger: GuardedLedger, states: Sequence[BudgetState]) -> None:
        # What is lost here is told again when a key is next read; Redis knows what was spent through it in any case.
        with contextlib.suppress(StoreUnavailable):
            for state in states:
                await ledger.shared.restore_spending(state.scope, state.limits, state.spent_usd)


def _shared_ledger(
    settings: RedisSettings, secrets: Mapping[str, str], *, owner: str, burst: Callable[[], float]
) -> GuardedLedger:
    from argosy.fleet.gateway.redis_channel import RedisChannel
    from argosy.fleet.gateway.redis_ledger import RedisLedger
    from argosy.fleet.gateway.store_loss import GuardedLedger, OnLoss

    url = secrets[settings.url_env] if settings.url_env else settings.url
    shared = RedisLedger(RedisChannel(url, timeout_s=settings.timeout_s), owner=owner, prefix=settings.prefix, burst=burst)
    return GuardedLedger(shared, on_loss=cast(OnLoss, settings.on_loss), replicas=settings.replicas)
