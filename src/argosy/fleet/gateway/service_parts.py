"""What a gateway is put together from, made from its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from secrets import token_bytes

from argosy.errors import ConfigError
from argosy.fleet.gateway.backend_kinds import profile_of
from argosy.fleet.gateway.client_connection import ServerLimits
from argosy.fleet.gateway.config import GatewayConfig
from argosy.fleet.gateway.config_models import BackendSettings, ModelSettings, PriceSettings
from argosy.fleet.gateway.exchange import Exchange
from argosy.fleet.gateway.file_keys import FileKeys
from argosy.fleet.gateway.key_hash import KeyHasher
from argosy.fleet.gateway.kv_checks import check_precise
from argosy.fleet.gateway.pipeline import PipelineSettings
from argosy.fleet.gateway.prices import Price, PriceTable
from argosy.fleet.gateway.stages import Upstream
from argosy.fleet.gateway.upstream import UpstreamLimits, UpstreamPool

_FIXED_IN_RESILIENCE = ("breaker", "health", "bulkhead", "drain")


class NoUsage:
    """A usage sink for a gateway without a store: nothing is kept."""

    def record(self, exchange: Exchange) -> None:
        """Nothing."""


def pool_backends(model: ModelSettings) -> Sequence[BackendSettings]:
    """A model's backends under ids that are unique in the whole gateway: one server may serve several models."""
    return [
        replace(backend, name=backend_id(model, backend), model=backend.model or model.name) for backend in model.backends
    ]


def backend_id(model: ModelSettings, backend: BackendSettings) -> str:
    """How metrics, logs and usage name a backend."""
    return f"{model.name}/{backend.name}"


def connect_upstream(settings: BackendSettings, config: GatewayConfig, key: str) -> Upstream:
    """The connections of a backend; `key` is sent to it, "" for none. Nothing is opened yet."""
    bulkhead = config.resilience.bulkhead
    limits = replace(
        upstream_limits(config),
        max_connections=max(bulkhead.connections_per_backend, settings.max_in_flight or 0),
    )
    pool = UpstreamPool(settings.url, limits)
    return Upstream(
        settings.name,
        pool,
        model=settings.model or "",
        authorization=f"Bearer {key}".encode("latin-1") if key else b"",
        path_prefix=pool.path_prefix,
        takes_cache_salt=profile_of(settings.kind).takes_cache_salt,
    )


def upstream_limits(config: GatewayConfig) -> UpstreamLimits:
    """Timeouts of every backend."""
    timeouts = config.resilience.timeouts
    return UpstreamLimits(
        max_connections=config.resilience.bulkhead.connections_per_backend,
        connect_timeout_s=timeouts.connect_s,
        first_byte_timeout_s=timeouts.first_byte_s,
        idle_timeout_s=timeouts.idle_s,
    )


def server_limits(config: GatewayConfig) -> ServerLimits:
    """What clients may send."""
    listen = config.listen
    return ServerLimits(
        max_head_bytes=listen.max_header_bytes,
        max_body_bytes=listen.max_body_bytes,
        max_connections=listen.max_connections,
        head_timeout_s=listen.header_timeout_s,
        body_timeout_s=listen.body_timeout_s,
        keep_alive_s=listen.keep_alive_timeout_s,
        stall_timeout_s=listen.write_timeout_s,
    )


def pipeline_settings(config: GatewayConfig) -> PipelineSettings:
    """What the pipeline decides itself."""
    return PipelineSettings(config.resilience.retries.policy(), config.resilience.timeouts.total_s)


def price_table(config: GatewayConfig) -> PriceTable:
    """Prices of every model, and of the backends that have their own."""
    by_model = {model.name: _price(model.price) for model in config.models if model.price is not None}
    by_backend = {
        backend_id(model, backend): _price(backend.price)
        for model in config.models
        for backend in model.backends
        if backend.price is not None
    }
    return PriceTable(by_model, by_backend)


def check_routing(config: GatewayConfig) -> None:
    """Raise `ConfigError` for a policy that a gateway cannot follow."""
    for number, model in enumerate(config.models):
        check_precise(number, model)


def check_start(config: GatewayConfig, secrets: Mapping[str, str]) -> None:
    """Raise `ConfigError` for what would keep a gateway from starting, as far as that shows without opening anything.

    Args:
        secrets: the environment variables that `config` names, from `read_secrets`.
    """
    from argosy.fleet.gateway.store import check_folder, parse_url

    check_routing(config)
    FileKeys(config, secrets, KeyHasher(token_bytes(32)))
    if config.store is not None:
        check_folder(parse_url(secrets[config.store.url_env] if config.store.url_env else config.store.url))
    log = config.observability.access_log
    if log is not None and log != "-" and not Path(log).absolute().parent.is_dir():
        raise ConfigError(f"observability.access_log: there is no folder for {log}", param="observability.access_log")


def check_fixed(old: GatewayConfig, new: GatewayConfig) -> None:
    """Raise `ConfigError` for a change that parts which run already would not see."""
    pairs: list[tuple[str, object, object]] = [
        ("queue", old.queue, new.queue),
        ("observability", old.observability, new.observability),
    ]
    pairs += [
        (f"resilience.{name}", getattr(old.resilience, name), getattr(new.resilience, name)) for name in _FIXED_IN_RESILIENCE
    ]
    for name, before, after in pairs:
        if before != after:
            raise ConfigError(f"{name} cannot change while the gateway runs; restart it", param=name)


def _price(settings: PriceSettings) -> Price:
    return Price(settings.input_usd_per_million, settings.output_usd_per_million, settings.cached_input_usd_per_million)
