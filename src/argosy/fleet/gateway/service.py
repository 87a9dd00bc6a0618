"""A gateway made from its configuration: every stage put together, started, changed while it runs, drained and closed."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from random import Random

from argosy.errors import ConfigError
from argosy.fleet.gateway.admission import Admission
from argosy.fleet.gateway.asgi_mount import AsgiMount
from argosy.fleet.gateway.backends import BackendPools, PoolLimits
from argosy.fleet.gateway.config import GatewayConfig
from argosy.fleet.gateway.config_models import BackendSettings, ModelSettings
from argosy.fleet.gateway.dispatch import PoolDispatchers, queue_settings
from argosy.fleet.gateway.drain import Drain
from argosy.fleet.gateway.estimator import QuantileEstimator
from argosy.fleet.gateway.gateway_app import GatewayApp
from argosy.fleet.gateway.http_server import HttpServer
from argosy.fleet.gateway.kv_routing import DEFAULT_BLOCK_TOKENS, KvRoutes
from argosy.fleet.gateway.live_readings import ledger_readings, store_readings
from argosy.fleet.gateway.model_chooser import ConfiguredModels
from argosy.fleet.gateway.observability import Observability
from argosy.fleet.gateway.pipeline import Pipeline, Stages
from argosy.fleet.gateway.prompt_prefix import prompt_prefix
from argosy.fleet.gateway.service_parts import (
    check_fixed,
    check_routing,
    connect_upstream,
    pipeline_settings,
    pool_backends,
    price_table,
    server_limits,
    upstream_limits,
)
from argosy.fleet.gateway.stages import Upstream
from argosy.fleet.gateway.watch import BackendWatch
from argosy.fleet.policies.estimates import OutputQuantile
from argosy.fleet.policies.retries import RetryBudget
from argosy.fleet.policies.soft_quota import SoftQuota
from argosy.observe.logs import log_event

_LOGGER = logging.getLogger("argosy.gateway")
_FIRST_ROUND_S = 5.0
_BURST_AGE_S = 0.05  # that a look at the fleet's load is good for
# New objects between two collections of each generation. A request leaves no cycles, and makes enough objects for Python's
# own 700 to be reached several times within it; a collection of 10 000 takes less than a millisecond.
_GC_THRESHOLDS = (10_000, 20, 50)


class GatewayService:
    """One gateway process. `start` it on its event loop, then `drain` or `close` it there.

    Attributes:
        config: in force.
        pipeline, pools, dispatcher, drainer, health, observability, admission: parts that tools and tests look at.
    """

    def __init__(
        self, config: GatewayConfig, secrets: Mapping[str, str], *, version: str, rng: Random | None = None
    ) -> None:
        """Open stores and put the stages together. Blocks for as long as the stores' timeouts say.

        Args:
            secrets: the environment variables that `config` names, from `read_secrets`.
            version: of this program, for metrics and traces.
            rng: jitters retries, breaks ties of routing; seeded by the system unless given.

        Raises:
            ConfigError: a setting is impossible.
            StoreUnavailable: the store does not answer.
        """
        check_routing(config)
        self.config = config
        self._secrets = dict(secrets)
        self._soft_quota = SoftQuota()
        self._burst_factor, self._burst_until_s = 1.0, float("-inf")
        self._rng = rng or Random()  # noqa: S311, no secret comes from it
        self._clock = time.monotonic
        process_id = f"{os.getpid()}-{self._rng.getrandbits(32):08x}"
        resilience = config.resilience
        self.watch = BackendWatch(resilience.health, rng=self._stream(), clock=self._clock)
        self.health = self.watch.health
        self.health.serve_on_store_loss = config.store is None or config.store.serve_on_store_loss
        self.pools = BackendPools(
            self._connect,
            self._stream(),
            PoolLimits(
                resilience.breaker,
                resilience.bulkhead.connections_per_backend,
                resilience.bulkhead.tenant_share,
            ),
            watcher=self.watch,
            on_gone=self._disconnect,
            on_change=self._on_pool_change,
        )
        queue, saturation = queue_settings(
            config.queue,
            connections_per_backend=resilience.bulkhead.connections_per_backend,
            has_one_tenant=config.auth.mode == "open",
        )
        self.dispatcher = PoolDispatchers(self.pools, self._clock, queue, saturation)
        self._prices = price_table(config)
        self.admission = Admission(
            config, self._secrets, self._prices, process_id=process_id, clock=self._clock, burst=self._burst
        )
        self.observability = Observability(config, self._secrets, clock=self._clock, version=version)
        self._estimator = QuantileEstimator(OutputQuantile(), self._prices, self._backends_of)
        stages = Stages(
            self.admission.authenticator,
            ConfiguredModels(config.models, self.pools, self._clock),
            self._estimator,
            self.admission.ledger,
            self.dispatcher,
            self.pools,
            self.admission.sink,
            self.observability.observers,
        )
        self.drainer = Drain(resilience.drain)
        retries = resilience.retries
        self.pipeline = Pipeline(
            stages,
            pipeline_settings(config),
            rng=self._stream(),
            budget=RetryBudget(retries.budget_ratio, retries.budget_credits),
            clock=self._clock,
            process_id=process_id,
            drain=self.drainer,
        )
        admin = self.admission.admin_app()
        self._server = HttpServer(
            GatewayApp(
                self.pipeline,
                self.health,
                self.observability.render,
                admin=None if admin is None else AsgiMount(admin),
                created_unix_s=int(time.time()),
            ),
            server_limits(config),
        )
        self._upstreams: set[Upstream] = set()
        self._routed: dict[str, tuple[object, ...]] = {}
        self.kv_routes = KvRoutes()
        self._tasks: list[asyncio.Task[None]] = []
        self.health_port: int | None = None
        self._gc_thresholds = gc.get_threshold()

    @property
    def port(self) -> int:
        """The port that requests come to."""
        return self._server.port

    async def start(self, *, reuse_port: bool = False) -> None:
        """Listen, and begin to watch backends. Returns when their health is known, or after a few seconds.

        Args:
            reuse_port: whether further processes may listen on the same port.

        Raises:
            ConfigError: the address cannot be bound.
        """
        listen = self.config.listen
        await self.watch.start(self.pools)
        self._set_models(self.config.models)
        await self.admission.start()
        self.observability.add_pools(self.pools, self.dispatcher, self._pool_names)
        self.observability.metrics.add_source(self.kv_routes.readings)
        store = self.admission.store
        if store is not None:
            self.observability.metrics.add_source(lambda: store_readings(store))
        shared = self.admission.shared
        if shared is not None:
            self.observability.metrics.add_source(lambda: ledger_readings(shared))
        self._tasks = [asyncio.create_task(self.observability.alerts.run()), asyncio.create_task(self._look_at_store())]
        await self.watch.first_round(_FIRST_ROUND_S)
        try:
            await self._server.start(listen.host, listen.port, reuse_port=reuse_port)
        except OSError as error:
            # The event loop's own text repeats the address.
            reason = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror
            raise ConfigError(
                f"cannot listen on {listen.host}:{listen.port}: {reason}; choose another listen.host or listen.port",
                param="listen",
            ) from None
        if listen.health_port is not None:
            self.health_port = await self.watch.serve_health(listen.host, listen.health_port)
        # What is there by now stays: a full collection over it would stop every stream.
        gc.collect()
        gc.freeze()
        self._gc_thresholds = gc.get_threshold()
        gc.set_threshold(*_GC_THRESHOLDS)
        log_event(_LOGGER, logging.INFO, "listening", host=listen.host, port=self.port, models=self._pool_names())

    def apply(self, config: GatewayConfig, secrets: Mapping[str, str]) -> None:
        """Put another configuration in force, all of it or nothing. Requests in flight end as they began.

        Raises:
            ConfigError: it is impossible, or changes what cannot change while the gateway runs.
        """
        check_routing(config)
        check_fixed(self.config, config)
        chooser = ConfiguredModels(config.models, self.pools, self._clock)
        file_keys = self.admission.file_keys_of(config, secrets)
        self._secrets = dict(secrets)
        self._prices = price_table(config)
        self._estimator.prices = self._prices
        self.admission.take_over(config, file_keys, self._prices)
        self.pipeline.stages = replace(self.pipeline.stages, chooser=chooser)
        self.pipeline.settings = pipeline_settings(config)
        self.config = config
        self._set_models(config.models)
        for upstream in self._upstreams:
            own = upstream.pool.limits.max_connections
            upstream.pool.limits = replace(upstream_limits(config), max_connections=own)
        self.dispatcher.keep_only([model.name for model in config.models])

    async def run_drain(self) -> bool:
        """Leave in order: not ready at once, then no new requests, then the end of those in flight, one way or another.

        Returns whether every request was completed.
        """
        self.health.is_draining = True
        complete = await self.drainer.begin(self._server.stop_accepting)
        self.dispatcher.close()
        return complete

    async def close(self) -> None:
        """Cut off what is left, write what usage is left, and end everything that was started."""
        await self._server.close()
        await self.pipeline.settle_down()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.watch.stop()
        await self.kv_routes.close()
        for upstream in self._upstreams:
            await upstream.pool.close()
        await self.admission.close()
        await asyncio.to_thread(self.observability.close)
        gc.set_threshold(*self._gc_thresholds)
        gc.unfreeze()

    # --- parts that call back ----------------------------------------------------------------------------------------

    def _connect(self, settings: BackendSettings) -> Upstream:
        key = self._secrets[settings.api_key_env] if settings.api_key_env else ""
        upstream = connect_upstream(settings, self.config, key)
        self._upstreams.add(upstream)
        return upstream

    def _disconnect(self, upstream: Upstream) -> None:
        self._upstreams.discard(upstream)
        self.pipeline.in_background(upstream.pool.close())

    def _set_models(self, models: tuple[ModelSettings, ...]) -> None:
        wanted = {model.name for model in models}
        for name in {settings.pool for settings in self.pools.statuses(self._clock())} - wanted:
            self.kv_routes.remove(name)
            self.pools.remove_pool(name)
        routed: dict[str, tuple[object, ...]] = {}
        for model in models:
            # Another router would know nothing of who holds which prefix; only another policy is worth that.
            how = routed[model.name] = (model.routing, model.split, model.tokenizer)
            if not self.pools.has_pool(model.name) or self._routed.get(model.name) != how:
                self._set_pool(model)
            self.pools.reconcile(model.name, pool_backends(model))
            self.kv_routes.set_backends(model.name, pool_backends(model))
        self._routed = routed

    def _set_pool(self, model: ModelSettings) -> None:
        policy = model.routing.make(block_tokens=DEFAULT_BLOCK_TOKENS)
        tokens = self.kv_routes.set_route(model, policy)
        self.pools.set_pool(
            model.name,
            policy if tokens is None else tokens.policy,
            by_conversation=model.split == "conversation",
            prefix=prompt_prefix if policy.prefix_matcher is not None else None,
            tokens=tokens,
        )

    def _stream(self) -> Random:
        """Random numbers for one part, which do not depend on what the others draw."""
        return Random(self._rng.random())  # noqa: S311

    def _on_pool_change(self, pool: str) -> None:
        self.dispatcher.poke(pool)

    def _backends_of(self, pool: str) -> tuple[str, ...]:
        return tuple(replica.replica_id for replica in self.pools.replicas(pool))

    def _pool_names(self) -> list[str]:
        return [model.name for model in self.config.models]

    def _burst(self) -> float:
        """Factor on soft limits, by the fullest model: a burst must not take what another one needs."""
        now_s = self._clock()
        if now_s >= self._burst_until_s:
            load = max((self.dispatcher.saturation(name) for name in self._pool_names()), default=0.0)
            self._burst_factor = self._soft_quota.burst(load)
            self._burst_until_s = now_s + _BURST_AGE_S
        return self._burst_factor

    async def _look_at_store(self) -> None:
        while True:
            store = self.admission.store
            self.health.store_is_up = store is None or not store.is_lost
            await asyncio.sleep(0.5)
