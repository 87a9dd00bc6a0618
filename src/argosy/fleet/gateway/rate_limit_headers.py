"""`x-ratelimit-*`: where a client stands, in the names and forms that OpenAI's clients read."""

from __future__ import annotations

import math

from argosy.fleet.policies.ledger import Denial, Lease
from argosy.fleet.policies.limits import Dimension

_HEADERS = {
    dimension: (f"x-ratelimit-limit-{word}", f"x-ratelimit-remaining-{word}", f"x-ratelimit-reset-{word}")
    for dimension, word in ((Dimension.REQUESTS, "requests"), (Dimension.TOKENS, "tokens"))
}


def rate_limit_headers(answer: Lease | Denial, now_s: float) -> dict[str, str]:
    """Headers for a granted or denied request, to be sent at `now_s`.

    Of a lease, requests and tokens each of the scope that has least left. Of a denial, those of the limit that denied, and
    none where it is not one per minute: headers that describe another limiter send clients back at the wrong time.
    """
    headers: dict[str, str] = {}
    if isinstance(answer, Denial):
        if answer.dimension in _HEADERS:
            _add(headers, answer.dimension, answer.limit, answer.remaining, answer.retry_after_s or 0.0)
        return headers
    for status in (answer.requests, answer.tokens):
        if status is not None:
            reset_s = status.reset_s - (now_s - answer.acquired_s)
            _add(headers, status.dimension, status.limit, status.remaining, reset_s)
    return headers


def _add(headers: dict[str, str], dimension: Dimension, limit: float, remaining: float, reset_s: float) -> None:
    limit_name, remaining_name, reset_name = _HEADERS[dimension]
    headers[limit_name] = str(int(limit))
    headers[remaining_name] = str(int(remaining))
    headers[reset_name] = go_duration(reset_s)


def go_duration(duration_s: float) -> str:
    """A duration as Go prints it, rounded up to milliseconds: `20ms`, `1.5s`, `6m0s`, `1h0m30s`."""
    milliseconds = max(0, math.ceil(duration_s * 1000.0 - 1e-6))
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    whole_s, rest_ms = divmod(milliseconds, 1000)
    minutes, seconds = divmod(whole_s, 60)
    fraction = f".{rest_ms:03}".rstrip("0") if rest_ms else ""
    if minutes == 0:
        return f"{seconds}{fraction}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{seconds}{fraction}s" if hours else f"{minutes}m{seconds}{fraction}s"
