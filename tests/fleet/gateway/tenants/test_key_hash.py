from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from argosy.errors import ConfigError, InvalidRequest
from argosy.fleet.gateway.key_hash import KeyHasher, check_key, last_four, load_secret, new_key


def test_keys_are_random_and_long_enough_to_be_given_out() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(check_key(key) == key and len(key) == 46 for key in keys)


@pytest.mark.parametrize("key", ["sk-short", "pk-" + "a" * 40, "sk-" + "a" * 300, "sk-" + "ä" * 40, "sk-" + "a" * 40 + "\n"])
def test_weak_keys_are_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(InvalidRequest, match="begin with sk-") as caught:
        check_key(key)
    assert key not in caught.value.message


def test_digests_depend_on_key_and_secret(hasher: KeyHasher) -> None:
    other = KeyHasher(bytes(32))
    key = new_key()
    assert hasher.matches(key, hasher.digest(key))
    assert not hasher.matches(key + "x", hasher.digest(key))
    assert hasher.digest(key) != other.digest(key)
    assert hasher.fingerprint() != other.fingerprint()


def test_a_key_is_described_without_being_told(hasher: KeyHasher) -> None:
    key = new_key()
    described = hasher.describe(key)
    assert described.endswith(last_four(key))
    assert key[3:-4] not in described
    assert hasher.describe("sk-mistyped").endswith("…"), "of a short text four characters would be a large part"


def test_derived_values_tell_where_parts_end(hasher: KeyHasher) -> None:
    salts = {
        hasher.derive("cache_salt", "org_1", "2345"),
        hasher.derive("cache_salt", "org_12345", ""),
        hasher.derive("cache_salt", "org_12345"),
        hasher.derive("other", "org_12345"),
    }
    assert len(salts) == 4


def test_a_secret_is_made_once_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "secret"
    start = threading.Barrier(8)
    found: list[bytes] = []

    def load() -> None:
        start.wait()
        found.append(load_secret(path))

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["secret"]


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    load_secret(path)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_secret(path)


@pytest.mark.parametrize("content", ["", "abcd", "zz" * 32])
def test_a_damaged_secret_is_refused_and_kept(tmp_path: Path, content: str) -> None:
    path = tmp_path / "secret"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="restore it"):
        load_secret(path)
    assert path.read_text() == content
