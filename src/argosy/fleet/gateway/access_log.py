"""One JSON object per request, as it ends. Never a prompt, an answer or a secret."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import orjson

from argosy.fleet.gateway.exchange import Exchange
from argosy.fleet.gateway.line_writer import LineWriter
from argosy.fleet.gateway.metrics import Reading

_LONGEST = 200


class AccessLog:
    """An `ExchangeObserver` that writes lines to `writer`, which never waits.

    What clients write freely (names of models, request ids) is cut to 200 characters.
    """

    def __init__(self, writer: LineWriter, wall_clock_s: Callable[[], float]) -> None:
        self._writer = writer
        self._wall_clock_s = wall_clock_s
        self._utc = _UtcText()

    def started(self, exchange: Exchange) -> None:
        """Nothing: a request is told when it is over."""

    def first_byte(self, exchange: Exchange) -> None:
        """Nothing."""

    def finished(self, exchange: Exchange) -> None:
        """Write the line."""
        self._writer.write(orjson.dumps(self._event(exchange), default=str) + b"\n")

    def readings(self) -> Iterable[Reading]:
        """Lines that the reader of this log lost."""
        yield Reading("argosy_gateway_log_lines_dropped_total", ("access",), float(self._writer.num_dropped))

    def _event(self, exchange: Exchange) -> dict[str, object]:
        principal, usage = exchange.principal, exchange.usage
        event: dict[str, object] = {
            "time": self._utc.of(self._wall_clock_s()),
            "request_id": exchange.request_id[:_LONGEST],
            "method": exchange.method,
            "route": exchange.endpoint.route,
            "status": exchange.status,
            "outcome": "" if exchange.outcome is None else exchange.outcome.value,
            "model": exchange.model[:_LONGEST],
            "pool": exchange.pool,
            "backend": exchange.backend_id,
            "stream": exchange.stream,
            "input_tokens": usage.input_tokens,
            "cached_tokens": usage.cached_tokens,
            "output_tokens": usage.output_tokens,
            "duration_s": round(exchange.finished_s - exchange.received_s, 6),
        }
        if principal is not None:
            event.update(tenant=principal.tenant, team=principal.team, key=principal.key_id)
        if exchange.queued_s and exchange.dispatched_s:
            event["queue_s"] = round(exchange.dispatched_s - exchange.queued_s, 6)
        if exchange.first_byte_s:
            event["first_byte_s"] = round(exchange.first_byte_s - exchange.received_s, 6)
        if exchange.attempts > 1:
            event["attempts"] = exchange.attempts
        if exchange.fallbacks:
            event["fallbacks"] = exchange.fallbacks
        for name in ("finish_reason", "client_address", "detail"):
            if value := getattr(exchange, name):
                event[name] = value
        if exchange.traceparent:
            event["trace_id"] = exchange.traceparent[3:35]
        return event


class _UtcText:
    """Times as RFC 3339 writes them, to the millisecond; what changes once a second is made once a second."""

    __slots__ = ("_second", "_text")

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def of(self, wall_s: float) -> str:
        """The text of a Unix time."""
        second = int(wall_s)
        if second != self._second:
            self._second, self._text = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._text}.{int((wall_s - second) * 1000):03d}Z"
