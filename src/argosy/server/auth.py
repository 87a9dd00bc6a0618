"""API keys: kept as digests, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping


def digest_key(key: str) -> bytes:
    """SHA-256 of a key; keys are random, so a slow hash would add nothing."""
    return hashlib.sha256(key.encode()).digest()


def presented_key(headers: Mapping[str, str]) -> str | None:
    """The key of `Authorization: Bearer`, else of `x-api-key`, else of `api-key`; None if there is none."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        return credentials.strip()
    return headers.get("x-api-key") or headers.get("api-key") or None


def is_known_key(key: str, digests: Iterable[bytes]) -> bool:
    """Whether `key` has one of `digests`. All are compared, so that the time does not tell which one matched."""
    presented = digest_key(key)
    matches = [hmac.compare_digest(presented, known) for known in digests]
    return any(matches)
