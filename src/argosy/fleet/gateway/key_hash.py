"""Keys of tenants: made, shown once, and kept only as a keyed hash and their last four characters.

A key carries 256 random bits, so nothing can be guessed from its hash and a slow password hash would only add time to
each request. The hash is keyed (HMAC-SHA-256, RFC 2104) with a secret that lies outside the database: who reads the
database alone can neither test a key against it nor place one there.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from argosy.errors import ConfigError, InvalidRequest

KEY_PREFIX = "sk-"
MIN_KEY_CHARACTERS = 32
MAX_KEY_CHARACTERS = 256
SECRET_BYTES = 32
_KEY = re.compile(r"sk-[A-Za-z0-9_-]+", re.ASCII)
_KEY_IN_TEXT = re.compile(r"sk-[^\s\"',;:]{6,}")


def new_key() -> str:
    """A key with 256 random bits, as `sk-` and 43 characters of base64url."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def check_key(key: str) -> str:
    """`key` if an administrator may give it to a tenant: long enough that a fast hash protects it.

    Raises:
        InvalidRequest: what a key must look like; the message does not repeat the key.
    """
    if _KEY.fullmatch(key) is None or not MIN_KEY_CHARACTERS <= len(key) <= MAX_KEY_CHARACTERS:
        raise InvalidRequest(
            f"key must be {MIN_KEY_CHARACTERS} to {MAX_KEY_CHARACTERS} letters, digits, - and _ that begin with sk-; "
            "leave it out to have a random one made",
            param="key",
        )
    return key


def last_four(key: str) -> str:
    """The characters of a key by which people recognise it."""
    return key[-4:] if len(key) >= MIN_KEY_CHARACTERS else ""


def redacted(text: str) -> str:
    """`text` without what looks like a key: a caller's mistake may have put one anywhere."""
    return _KEY_IN_TEXT.sub("sk-…", text)


@dataclass(frozen=True, slots=True)
class KeyHasher:
    """Turns keys into what the database holds.

    Attributes:
        secret: at least 32 random bytes, the same in every process that shares a database.
    """

    secret: bytes = field(repr=False)
    _keyed: hmac.HMAC = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a secret that is too short to protect anything."""
        if len(self.secret) < SECRET_BYTES:
            raise ConfigError(f"the secret of the keys must have at least {SECRET_BYTES} bytes, got {len(self.secret)}")
        object.__setattr__(self, "_keyed", hmac.new(self.secret, digestmod="sha256"))

    def digest(self, key: str) -> str:
        """HMAC-SHA-256 of `key` as 64 hexadecimal digits."""
        # A copy of the keyed state: `hmac.digest` lets go of the interpreter for each request, and then waits for it.
        mac = self._keyed.copy()
        mac.update(key.encode())
        return mac.hexdigest()

    def matches(self, key: str, digest: str) -> bool:
        """Whether `digest` is that of `key`, compared in constant time."""
        return hmac.compare_digest(self.digest(key), digest)

    def fingerprint(self) -> str:
        """Tells one secret from another without giving it away; the database keeps it."""
        return hmac.digest(self.secret, b"argosy key secret", "sha256").hex()[:16]

    def derive(self, purpose: str, *parts: str) -> str:
        """A value that only holders of the secret can compute from `parts`, such as the cache salt of a tenant.

        Each part is preceded by its length, so that ("org_1", "2345") and ("org_12345", "") differ.
        """
        framed = b"".join(f"{len(part.encode())}:".encode() + part.encode() for part in (purpose, *parts))
        return hmac.digest(self.secret, b"argosy derive\0" + framed, "sha256").hex()

    def describe(self, key: str) -> str:
        """How a log or an error may speak of a presented key: the first digits of its hash and its last four characters."""
        return f"{self.digest(key)[:8]}…{last_four(key)}"


def load_secret(path: Path) -> bytes:
    """The secret kept in `path`; a missing file is made with a random one, readable by its owner only (mode 0600).

    Processes that start together end up with one secret: the file appears complete or not at all.

    Raises:
        ConfigError: others may read the file, or it does not hold a secret.
    """
    if not path.exists():
        _make_secret(path)
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"{path} holds the secret of the keys and others may read it; run: chmod 600 {path}")
    try:
        secret = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except ValueError:
        secret = b""
    if len(secret) < SECRET_BYTES:
        raise ConfigError(
            f"{path} does not hold the secret of the keys ({2 * SECRET_BYTES} hexadecimal digits); restore it from a "
            "backup: with another one, no key that was given out is known"
        )
    return secret


def _make_secret(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, secrets.token_hex(SECRET_BYTES).encode() + b"\n")
        os.fsync(descriptor)
        os.link(draft, path)
    except FileExistsError:
        pass  # another process was first, and its secret is the one
    finally:
        os.close(descriptor)
        os.unlink(draft)
