"""Calls of the gateway's admin API: over the network, or on a database in this process. One way of checking and telling
for both: without a gateway, the same application answers without a socket."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from argosy.errors import ArgosyError, ConfigError, InvalidRequest

LOCAL_URL = "http://argosy.local"
TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class AdminTarget:
    """Where to administer: a running gateway (`url`), the configuration file of one, or its database.

    Attributes:
        master_key_env: environment variable with the key of a running gateway's admin API.
        secret_file: holds the secret of the keys, beside a `store`.
    """

    url: str | None = None
    config: Path | None = None
    store: str | None = None
    secret_file: Path | None = None
    master_key_env: str = "ARGOSY_MASTER_KEY"

    def __post_init__(self) -> None:
        """Raise `ConfigError` unless exactly one place is named."""
        num_places = sum(place is not None for place in (self.url, self.config, self.store))
        if num_places != 1:
            ask = "name one place only" if num_places else "say where"
            raise ConfigError(f"{ask}: --config FILE of the gateway, --url of a running one, or --store URL of a database")
        if (self.store is None) != (self.secret_file is None):
            raise ConfigError("--store and --secret-file go together: keys are hashed with that secret")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"--url must be http://HOST:PORT or https://HOST:PORT, got {self.url[:100]!r}")


def call_admin(
    target: AdminTarget,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    query: Mapping[str, Any] | None = None,
) -> Any:
    """The JSON that a call of the admin API answers with.

    Raises:
        InvalidRequest: it was refused; the message is the API's.
        ArgosyError: it failed, or the gateway cannot be reached.
        ConfigError: the target cannot be opened.
    """
    return asyncio.run(_call_at(target, method, path, body, query or {}))


async def _call_at(
    target: AdminTarget, method: str, path: str, body: Mapping[str, Any] | None, query: Mapping[str, Any]
) -> Any:
    if target.url is not None:
        key = os.environ.get(target.master_key_env, "").strip()
        if not key:
            raise ConfigError(f"the environment variable {target.master_key_env} is not set; it must hold the master key")
        return await _send(httpx.AsyncClient(base_url=target.url, timeout=TIMEOUT_S), key, method, path, body, query)
    return await _call_store(target, method, path, body, query)


async def _call_store(
    target: AdminTarget, method: str, path: str, body: Mapping[str, Any] | None, query: Mapping[str, Any]
) -> Any:
    from argosy.fleet.gateway.admin_api import Admin, create_admin_app
    from argosy.fleet.gateway.key_hash import KeyHasher, load_secret
    from argosy.fleet.gateway.store import Store, StoreConfig
    from argosy.fleet.gateway.store_calls import StoreCalls
    from argosy.fleet.gateway.tenancy_groups import GroupRecords
    from argosy.fleet.gateway.tenancy_keys import KeyRecords

    url, secret_file, timeout_s = _place_of(target)
    hasher = KeyHasher(load_secret(secret_file))
    store = Store(StoreConfig(url, timeout_s))
    calls = StoreCalls(store)
    key = secrets.token_urlsafe(32)
    try:
        store.open(hasher.fingerprint())
        app = create_admin_app(Admin(calls, KeyRecords(store, hasher), GroupRecords(store), hasher, key))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        return await _send(httpx.AsyncClient(base_url=LOCAL_URL, transport=transport), key, method, path, body, query)
    finally:
        calls.close()
        store.close()


def _place_of(target: AdminTarget) -> tuple[str, Path, float]:
    """URL of the database, file with the secret, timeout."""
    if target.config is None:
        assert target.store is not None
        assert target.secret_file is not None
        return target.store, target.secret_file, 10.0
    from argosy.fleet.gateway.config import load_config

    config = load_config(target.config)
    if config.store is None:
        raise ConfigError(f"{target.config} has no store: its keys stand in the file")
    url = config.store.url
    if config.store.url_env is not None:
        url = os.environ.get(config.store.url_env, "").strip()
        if not url:
            raise ConfigError(f"store.url_env: the environment variable {config.store.url_env} is not set")
    return url, Path(config.auth.secret_file), config.store.timeout_s


async def _send(
    client: httpx.AsyncClient,
    key: str,
    method: str,
    path: str,
    body: Mapping[str, Any] | None,
    query: Mapping[str, Any],
) -> Any:
    async with client:
        try:
            headers = {"authorization": f"Bearer {key}"}
            response = await client.request(method, path, json=body, params=query, headers=headers)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise ArgosyError(f"no gateway answers at {str(client.base_url).rstrip('/')}: {reason}") from None
    try:
        document = response.json()
    except ValueError:
        raise ArgosyError(f"{path} answered status {response.status_code} without JSON: is that a gateway?") from None
    if response.status_code < 400:
        return document
    refusal = document.get("error", {})
    if refusal.get("code") == "not_found" and refusal.get("param") is None:  # no record, but the path
        raise ArgosyError("no admin API answers there: the gateway needs auth.master_key_env, and a store")
    message = str(refusal.get("message", f"status {response.status_code}"))
    raise InvalidRequest(message) if response.status_code in (400, 404, 413) else ArgosyError(message)
