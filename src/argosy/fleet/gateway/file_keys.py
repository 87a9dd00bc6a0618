"""Keys that stand in the configuration file, and how they and those of the database are asked in turn."""

from __future__ import annotations

from collections.abc import Mapping

from argosy.errors import ConfigError, Unauthorized
from argosy.fleet.gateway.config import GatewayConfig
from argosy.fleet.gateway.config_tenants import KeySettings, OrganisationSettings, TeamSettings
from argosy.fleet.gateway.exchange import Exchange, Principal
from argosy.fleet.gateway.key_hash import KeyHasher
from argosy.fleet.gateway.stages import Authenticator
from argosy.fleet.policies.limits import Scope

OPEN_PRINCIPAL_ID = "open"


class FileKeys:
    """Keys of the file by the digest of their secret: no secret stays in memory. Replaced as a whole on a reload."""

    def __init__(self, config: GatewayConfig, secrets: Mapping[str, str], hasher: KeyHasher) -> None:
        """`secrets` are the environment variables that the file names (`read_secrets`).

        Raises:
            ConfigError: two keys have the same secret.
        """
        self._principals: dict[str, Principal] = {}
        for organisation in config.tenants:
            for team in organisation.teams:
                for key in team.keys:
                    digest = hasher.digest(secrets[key.key_env])
                    if digest in self._principals:
                        both = f"{self._principals[digest].key_id!r} and {key.id!r}"
                        raise ConfigError(f"the keys {both} have the same secret; each needs its own")
                    self._principals[digest] = _principal(organisation, team, key, hasher)

    def find(self, digest: str) -> Principal | None:
        """Whose key has `digest`."""
        return self._principals.get(digest)

    @property
    def principals(self) -> tuple[Principal, ...]:
        """All of them."""
        return tuple(self._principals.values())


class KeyAuthenticator:
    """The pipeline's `Authenticator`: keys of the file, then those of the database if there is one."""

    def __init__(self, file_keys: FileKeys, hasher: KeyHasher, of_store: Authenticator | None = None) -> None:
        """`file_keys` may be replaced while running."""
        self.file_keys = file_keys
        self._hasher, self._of_store = hasher, of_store

    async def authenticate(self, key: str | None, exchange: Exchange) -> Principal:
        """The principal that `key` belongs to.

        Raises:
            Unauthorized: no key or an unknown one; as the database's authenticator, where there is one.
        """
        if key:
            principal = self.file_keys.find(self._hasher.digest(key))
            if principal is not None:
                return principal
        if self._of_store is not None:
            return await self._of_store.authenticate(key, exchange)
        if not key:
            raise Unauthorized("an API key is needed: send it as Authorization: Bearer sk-…", code="missing_api_key")
        raise Unauthorized(f"the API key {self._hasher.describe(key)} is not known; check it, or ask for one")


class OpenAuthenticator:
    """Takes every request for one tenant, whatever key it brings."""

    async def authenticate(self, key: str | None, exchange: Exchange) -> Principal:
        """The one principal."""
        del key, exchange
        return Principal(key_id=OPEN_PRINCIPAL_ID, tenant=OPEN_PRINCIPAL_ID)


def _principal(organisation: OrganisationSettings, team: TeamSettings, key: KeySettings, hasher: KeyHasher) -> Principal:
    return Principal(
        key_id=key.id,
        tenant=organisation.id,
        team=team.id,
        scopes=(
            (Scope("key", key.id), key.limits),
            (Scope("team", team.id), team.limits),
            (Scope("org", organisation.id), organisation.limits),
        ),
        models=frozenset(key.models) if key.models else None,
        priority=key.priority,
        weight=organisation.weight,
        tier=key.tier,
        cache_salt=hasher.derive("cache_salt", organisation.id),
    )
