"""The configuration file of a gateway.

Keys are strict: one that is unknown is refused with the nearest known name, and a message begins with the file and the line.
Secrets do not stand in the file; it names the environment variables that hold them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from argosy.errors import ConfigError
from argosy.fleet.gateway.config_models import BackendSettings, ModelSettings
from argosy.fleet.gateway.config_operations import (
    MIN_KEY_CHARACTERS,
    MIN_MASTER_KEY_CHARACTERS,
    AuthSettings,
    ListenSettings,
    ObservabilitySettings,
    QueueSettings,
    RedisSettings,
    ResilienceSettings,
    StoreSettings,
)
from argosy.fleet.gateway.config_tenants import KeySettings, OrganisationSettings
from argosy.settings.schema import from_mapping, nearest
from argosy.settings.yaml_file import YamlFile, read_yaml


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """What a configuration file says.

    Attributes:
        models: one or more; names and aliases are unique.
        tenants: those of the file; see `config_tenants`.
        store: None keeps nothing: no keys but those of the file, and no record of usage.
        redis: None keeps limits in this process.
    """

    models: tuple[ModelSettings, ...]
    listen: ListenSettings = field(default_factory=ListenSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)
    tenants: tuple[OrganisationSettings, ...] = ()
    queue: QueueSettings = field(default_factory=QueueSettings)
    resilience: ResilienceSettings = field(default_factory=ResilienceSettings)
    store: StoreSettings | None = field(default_factory=StoreSettings)
    redis: RedisSettings | None = None
    observability: ObservabilitySettings = field(default_factory=ObservabilitySettings)

    def __post_init__(self) -> None:
        """Raise `ConfigError` naming what is impossible beside something else in the file."""
        if not self.models:
            raise ConfigError("models must hold at least one model")
        self._check_names()
        self._check_references()
        self._check_tenants()

    @property
    def model_of(self) -> dict[str, ModelSettings]:
        """By name and alias."""
        return {name: model for model in self.models for name in (model.name, *model.aliases)}

    def file_keys(self) -> Iterator[tuple[str, str, KeySettings]]:
        """(organisation, team, key) of every key in the file."""
        for organisation in self.tenants:
            for team in organisation.teams:
                for key in team.keys:
                    yield organisation.id, team.id, key

    def secret_names(self) -> Iterator[tuple[str, str]]:
        """(path in the file, environment variable) of everything that must be set for the gateway to start."""
        if self.auth.master_key_env:
            yield "auth.master_key_env", self.auth.master_key_env
        for path, backend in self._backends():
            if backend.api_key_env:
                yield f"{path}.api_key_env", backend.api_key_env
        for number, organisation in enumerate(self.tenants):
            for place, team in enumerate(organisation.teams):
                for position, key in enumerate(team.keys):
                    yield f"tenants[{number}].teams[{place}].keys[{position}].key_env", key.key_env
        if self.store is not None and self.store.url_env:
            yield "store.url_env", self.store.url_env
        if self.redis is not None and self.redis.url_env:
            yield "redis.url_env", self.redis.url_env
        tracing = self.observability.tracing
        if tracing is not None and tracing.headers_env:
            yield "observability.tracing.headers_env", tracing.headers_env

    def _backends(self) -> Iterator[tuple[str, BackendSettings]]:
        for number, model in enumerate(self.models):
            for place, backend in enumerate(model.backends):
                yield f"models[{number}].backends[{place}]", backend

    def _check_names(self) -> None:
        seen: dict[str, str] = {}
        for number, model in enumerate(self.models):
            for place, name in enumerate((model.name, *model.aliases)):
                path = f"models[{number}].name" if place == 0 else f"models[{number}].aliases[{place - 1}]"
                if name in seen:
                    raise ConfigError(f"{path}: {name!r} is taken by {seen[name]}", param=path)
                seen[name] = path
        backends: dict[tuple[str, str], str] = {}
        for path, backend in self._backends():
            key = (path.partition(".")[0], backend.name)
            if key in backends:
                raise ConfigError(f"{path}: {backend.name!r} is there already; give it a name of its own", param=path)
            backends[key] = path

    def _check_references(self) -> None:
        known = self.model_of
        for number, model in enumerate(self.models):
            path = f"models[{number}]"
            asked = [(f"{path}.fallbacks[{place}]", name) for place, name in enumerate(model.fallbacks)]
            asked += [(f"{path}.rules[{place}].model", rule.model) for place, rule in enumerate(model.rules)]
            if model.degradation is not None and model.degradation.smaller_model is not None:
                asked.append((f"{path}.degradation.smaller_model", model.degradation.smaller_model))
            for where, name in asked:
                if name not in known:
                    raise ConfigError(f"{where}: there is no model {name!r}: {nearest(name, known)}", param=where)
                if known[name] is model:
                    raise ConfigError(f"{where}: {name!r} is this model itself", param=where)

    def _check_tenants(self) -> None:
        if self.auth.mode == "open" and self.tenants:
            raise ConfigError('tenants have no effect with auth.mode "open"; leave one of the two out', param="tenants")
        if self.auth.mode == "keys" and self.store is None and not any(True for _ in self.file_keys()):
            raise ConfigError('no request could pass: there is no key and no store; add tenants or set auth.mode "open"')
        known = self.model_of
        ids: dict[tuple[str, str], str] = {}
        for number, organisation in enumerate(self.tenants):
            path = f"tenants[{number}]"
            _claim(ids, "organisation", organisation.id, path)
            for place, team in enumerate(organisation.teams):
                _claim(ids, "team", team.id, f"{path}.teams[{place}]")
                for position, key in enumerate(team.keys):
                    where = f"{path}.teams[{place}].keys[{position}]"
                    _claim(ids, "key", key.id, where)
                    _claim(ids, "environment variable", key.key_env, where)
                    for name in key.models:
                        if name not in known:
                            what = f"{where}.models: there is no model {name!r}: {nearest(name, known)}"
                            raise ConfigError(what, param=f"{where}.models")


def _claim(seen: dict[tuple[str, str], str], kind: str, name: str, path: str) -> None:
    if (kind, name) in seen:
        raise ConfigError(f"{path}: the {kind} {name!r} is used by {seen[kind, name]} already", param=path)
    seen[kind, name] = path


def load_config(path: Path) -> GatewayConfig:
    """The configuration in the file at `path`.

    Raises:
        ConfigFileError: it cannot be read, or says something impossible; names the file and the line.
    """
    return parse_config(read_yaml(path, if_empty="docs/gateway.md shows one to begin with"))


def parse_config(file: YamlFile) -> GatewayConfig:
    """As `load_config`, of a file that is read."""
    try:
        return from_mapping(GatewayConfig, file.values, "")
    except ConfigError as error:
        raise file.located(error) from None


def read_secrets(config: GatewayConfig, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment variables that `config` names, by name; `environment` is this process's unless given.

    Raises:
        ConfigError: one is not set or is blank, or a key could be guessed or sent by no client; names it and who wants it.
    """
    source = os.environ if environment is None else environment
    secrets: dict[str, str] = {}
    for path, name in config.secret_names():
        value = source.get(name, "")
        if not value.strip():
            raise ConfigError(f"{path}: the environment variable {name} is not set", param=path)
        secrets[name] = value.strip()
        if path.endswith(".key_env"):
            _check_key(path, name, secrets[name])
    master = config.auth.master_key_env
    if master is not None and len(secrets[master]) < MIN_MASTER_KEY_CHARACTERS:
        least = f"at least {MIN_MASTER_KEY_CHARACTERS} characters"
        raise ConfigError(f"auth.master_key_env: the key in {master} must have {least}", param="auth.master_key_env")
    return secrets


def _check_key(path: str, name: str, key: str) -> None:
    if len(key) < MIN_KEY_CHARACTERS or not key.isascii() or not key.isprintable() or " " in key:
        form = f"at least {MIN_KEY_CHARACTERS} printable ASCII characters and no spaces"
        raise ConfigError(f"{path}: the key in {name} must have {form}; make one with: openssl rand -hex 24", param=path)
