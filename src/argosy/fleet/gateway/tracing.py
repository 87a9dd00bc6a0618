"""OpenTelemetry spans of requests: one for the request, below it queue, route and backend.

The SDK is an optional dependency (`pip install 'argosy[gateway]'`), imported when tracing is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from argosy.errors import ConfigError
from argosy.fleet.gateway.config_operations import TracingSettings
from argosy.fleet.gateway.exchange import Exchange

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

_MOST_OPEN = 100_000


class RequestTracing:
    """An `ExchangeObserver` that makes spans. Sets `exchange.traceparent`, so that the engine's spans join the trace."""

    def __init__(self, provider: TracerProvider, clock_s: Callable[[], float], wall_clock_ns: Callable[[], int]) -> None:
        """Spans go where `provider` sends them.

        Args:
            clock_s: the clock of an exchange's times, which has no meaning outside; wall_clock_ns: the one of spans.
        """
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("argosy.gateway")
        self._propagator = TraceContextTextMapPropagator()
        self._trace = trace
        self._clock_s = clock_s
        self._wall_clock_ns = wall_clock_ns
        self._open: dict[str, Span] = {}

    def started(self, exchange: Exchange) -> None:
        """Begin the request's span, below the client's if it sent a `traceparent`, and name it to the backend."""
        if len(self._open) >= _MOST_OPEN:
            return
        carrier = {"traceparent": exchange.traceparent, "tracestate": exchange.tracestate}
        parent = self._propagator.extract({name: value for name, value in carrier.items() if value})
        span = self._tracer.start_span(
            exchange.endpoint.route,
            context=parent,
            kind=self._trace.SpanKind.SERVER,
            start_time=self._wall_ns(exchange.received_s),
        )
        self._open[exchange.exchange_id] = span
        named: dict[str, str] = {}
        self._propagator.inject(named, self._trace.set_span_in_context(span))
        exchange.traceparent = named.get("traceparent", "")
        exchange.tracestate = named.get("tracestate", "")

    def first_byte(self, exchange: Exchange) -> None:
        """Mark it."""
        span = self._open.get(exchange.exchange_id)
        if span is not None:
            span.add_event("first_byte", timestamp=self._wall_ns(exchange.first_byte_s))

    def finished(self, exchange: Exchange) -> None:
        """End the request's span and make those below it, whose times are known by then."""
        span = self._open.pop(exchange.exchange_id, None)
        if span is None:
            return
        if span.is_recording():
            self._describe(span, exchange)
            self._add_stages(span, exchange)
        span.end(end_time=self._wall_ns(exchange.finished_s))

    def close(self, timeout_s: float = 2.0) -> None:
        """Send what is left, for at most `timeout_s`, and stop."""
        self._provider.force_flush(int(timeout_s * 1000))
        self._provider.shutdown()

    def _wall_ns(self, time_s: float) -> int:
        return self._wall_clock_ns() - round((self._clock_s() - time_s) * 1e9)

    def _describe(self, span: Span, exchange: Exchange) -> None:
        usage, principal = exchange.usage, exchange.principal
        attributes: dict[str, str | int | bool] = {
            "http.request.method": exchange.method,
            "http.route": exchange.endpoint.route,
            "http.response.status_code": exchange.status,
            "gen_ai.operation.name": exchange.endpoint.kind,
            "gen_ai.request.model": exchange.model[:200],
            "gen_ai.response.model": exchange.pool,
            "gen_ai.usage.input_tokens": usage.input_tokens,
            "gen_ai.usage.output_tokens": usage.output_tokens,
            "argosy.request_id": exchange.request_id[:200],
            "argosy.outcome": "" if exchange.outcome is None else exchange.outcome.value,
            "argosy.attempts": exchange.attempts,
            "argosy.fallbacks": exchange.fallbacks,
        }
        if principal is not None:
            attributes["argosy.tenant"], attributes["argosy.key"] = principal.tenant, principal.key_id
        span.set_attributes(attributes)
        if exchange.status >= 500:
            span.set_status(self._trace.StatusCode.ERROR, exchange.detail or None)

    def _add_stages(self, span: Span, exchange: Exchange) -> None:
        """Queue, route and backend, as far as the request came."""
        below = self._trace.set_span_in_context(span)
        queued_s = exchange.queued_s or exchange.dispatched_s or exchange.finished_s
        self._add("admission", below, exchange.received_s, queued_s)
        if exchange.queued_s:
            self._add("queue", below, exchange.queued_s, exchange.dispatched_s or exchange.finished_s)
        if exchange.dispatched_s:
            attributes = {"argosy.backend": exchange.backend_id, "argosy.pool": exchange.pool}
            self._add("upstream", below, exchange.dispatched_s, exchange.finished_s, attributes)

    def _add(
        self, name: str, context: Any, begin_s: float, end_s: float, attributes: Mapping[str, str] | None = None
    ) -> None:
        kind = self._trace.SpanKind.CLIENT if attributes else self._trace.SpanKind.INTERNAL
        stage = self._tracer.start_span(
            name, context=context, kind=kind, attributes=attributes, start_time=self._wall_ns(begin_s)
        )
        stage.end(end_time=self._wall_ns(end_s))


def make_provider(
    settings: TracingSettings, headers: str, version: str, exporter: SpanExporter | None = None
) -> TracerProvider:
    """A provider that sends spans to the collector of `settings` in batches from a thread of its own; a full one drops.

    Args:
        headers: `name=value,…` for the collector, "" for none.
        exporter: takes the place of the one that sends.

    Raises:
        ConfigError: the OpenTelemetry SDK is not installed, or `headers` are of another form.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    except ImportError:
        raise ConfigError("observability.tracing needs the OpenTelemetry SDK: pip install 'argosy[gateway]'") from None
    resource = Resource.create({"service.name": settings.service_name, "service.version": version})
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio)), resource=resource, shutdown_on_exit=False
    )
    made = exporter or OTLPSpanExporter(endpoint=settings.endpoint, headers=_header_pairs(headers), timeout=5)
    provider.add_span_processor(BatchSpanProcessor(made))
    return provider


def _header_pairs(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if any(not separator or not name.strip() for name, separator, _ in pairs):
        raise ConfigError("headers of observability.tracing must be name=value, separated by commas")
    return {name.strip().lower(): value.strip() for name, _, value in pairs}
