from __future__ import annotations

import pytest

from argosy.errors import ConfigError, Unauthorized
from argosy.fleet.gateway.config import GatewayConfig
from argosy.fleet.gateway.config_models import BackendSettings, ModelSettings
from argosy.fleet.gateway.config_tenants import KeySettings, OrganisationSettings, TeamSettings
from argosy.fleet.gateway.exchange import Endpoint, Exchange, Principal
from argosy.fleet.gateway.file_keys import FileKeys, KeyAuthenticator, OpenAuthenticator
from argosy.fleet.gateway.key_hash import KeyHasher
from argosy.fleet.policies.limits import Limits, Scope

SECRETS = {"A": "sk-CANARY-aaaa", "B": "sk-CANARY-bbbb"}
CONFIG = GatewayConfig(
    models=(ModelSettings("m", (BackendSettings("http://127.0.0.1:1"),)),),
    tenants=(
        OrganisationSettings(
            "acme",
            (
                TeamSettings(
                    "blue",
                    (
                        KeySettings("ka", "A", models=("m",), priority="critical", tier="gold", limits=Limits(rpm=1)),
                        KeySettings("kb", "B"),
                    ),
                    Limits(tpm=2),
                ),
            ),
            weight=2.0,
            limits=Limits(max_budget_usd=3.0),
        ),
    ),
)


class OfStore:
    """Knows one key."""

    async def authenticate(self, key: str | None, exchange: Exchange) -> Principal:
        if key != "sk-stored":
            raise Unauthorized("unknown to the store")
        return Principal("stored", "t")


@pytest.fixture
def exchange() -> Exchange:
    return Exchange(Endpoint("/v1/score", "passthrough"), "POST", "/", {}, b"", "r", "e", 0.0)


@pytest.fixture
def file_keys(hasher: KeyHasher) -> FileKeys:
    return FileKeys(CONFIG, SECRETS, hasher)


async def test_a_key_of_the_file_has_what_the_file_says(file_keys: FileKeys, hasher: KeyHasher, exchange: Exchange) -> None:
    principal = await KeyAuthenticator(file_keys, hasher).authenticate(SECRETS["A"], exchange)
    assert principal == Principal(
        key_id="ka",
        tenant="acme",
        team="blue",
        scopes=(
            (Scope("key", "ka"), Limits(rpm=1)),
            (Scope("team", "blue"), Limits(tpm=2)),
            (Scope("org", "acme"), Limits(max_budget_usd=3.0)),
        ),
        models=frozenset({"m"}),
        priority="critical",
        weight=2.0,
        tier="gold",
        cache_salt=hasher.derive("cache_salt", "acme"),
    )
    other = await KeyAuthenticator(file_keys, hasher).authenticate(SECRETS["B"], exchange)
    assert other.models is None
    assert other.cache_salt == principal.cache_salt


async def test_the_file_is_asked_first_then_the_store(file_keys: FileKeys, hasher: KeyHasher, exchange: Exchange) -> None:
    authenticator = KeyAuthenticator(file_keys, hasher, OfStore())
    assert (await authenticator.authenticate(SECRETS["A"], exchange)).key_id == "ka"
    assert (await authenticator.authenticate("sk-stored", exchange)).key_id == "stored"
    with pytest.raises(Unauthorized, match="unknown to the store"):
        await authenticator.authenticate("sk-other", exchange)


async def test_without_a_store_other_keys_are_refused_untold(
    file_keys: FileKeys, hasher: KeyHasher, exchange: Exchange
) -> None:
    authenticator = KeyAuthenticator(file_keys, hasher)
    with pytest.raises(Unauthorized) as caught:
        await authenticator.authenticate("sk-CANARY-aaab", exchange)
    assert "CANARY" not in caught.value.message
    with pytest.raises(Unauthorized) as caught:
        await authenticator.authenticate(None, exchange)
    assert caught.value.code == "missing_api_key"


async def test_a_reload_replaces_all_keys(file_keys: FileKeys, hasher: KeyHasher, exchange: Exchange) -> None:
    authenticator = KeyAuthenticator(file_keys, hasher)
    authenticator.file_keys = FileKeys(CONFIG, {"A": "sk-new", "B": SECRETS["B"]}, hasher)
    assert (await authenticator.authenticate("sk-new", exchange)).key_id == "ka"
    with pytest.raises(Unauthorized):
        await authenticator.authenticate(SECRETS["A"], exchange)


def test_two_keys_with_one_secret_are_refused(hasher: KeyHasher) -> None:
    with pytest.raises(ConfigError, match="'ka' and 'kb'") as caught:
        FileKeys(CONFIG, {"A": "sk-CANARY", "B": "sk-CANARY"}, hasher)
    assert "CANARY" not in caught.value.message


def test_no_secret_stays_in_memory(file_keys: FileKeys) -> None:
    assert "CANARY" not in str(vars(file_keys))
    assert [principal.key_id for principal in file_keys.principals] == ["ka", "kb"]


async def test_an_open_gateway_takes_all_as_one_tenant(exchange: Exchange) -> None:
    found = {(await OpenAuthenticator().authenticate(key, exchange)).tenant for key in (None, "", "sk-x")}
    assert found == {"open"}
