"""Watches an answer that is not a stream of events and is too large to be held: its usage is looked for near its end."""

from __future__ import annotations

import re

import orjson

from argosy.fleet.gateway.exchange import TokenUsage
from argosy.fleet.gateway.sse_observer import find_usage

_USAGE = re.compile(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')
_TAIL_BYTES = 4096


class PassThrough:
    """Passes every byte on at once.

    Attributes:
        is_done: never before the end.
    """

    is_done = False

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: bytes) -> bytes:
        """`data`, unchanged."""
        self._tail = data[-_TAIL_BYTES:] if len(data) >= _TAIL_BYTES else (self._tail + data)[-_TAIL_BYTES:]
        return data

    def flush(self) -> bytes:
        """Nothing is held."""
        return b""

    @property
    def usage(self) -> TokenUsage | None:
        """What the end of the answer reports, or None."""
        found = _USAGE.findall(self._tail)
        if not found:
            return None
        try:
            return find_usage({"usage": orjson.loads(found[-1])})
        except orjson.JSONDecodeError:
            return None
