"""Prometheus metrics of one gateway: requests as they end, and readings of what its parts know of themselves."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry

from argosy.fleet.gateway.exchange import Exchange
from argosy.fleet.gateway.label_values import OTHER, LabelValues
from argosy.fleet.gateway.metric_list import METRIC_OF, METRICS, MetricSpec
from argosy.fleet.gateway.series import Family, SeriesCollector, Single

# Labels whose values come from outside: clients name models, administrators make tenants, configurations name backends.
_OPEN_LABELS = ("model", "gen_ai_request_model", "tenant", "backend", "scope_id", "subject", "status", "error_type")
_OPERATIONS = {"completion": "text_completion", "embedding": "embeddings", "responses": "chat", "messages": "chat"}


class Reading(NamedTuple):
    """One value of a metric that is read when somebody asks; `labels` in the order of its `MetricSpec`."""

    name: str
    labels: tuple[str, ...]
    value: float


Source = Callable[[], Iterable[Reading]]


class GatewayMetrics:
    """An `ExchangeObserver` that counts. Everything is in `registry`, which belongs to this gateway alone.

    Every label holds a bounded number of values: `max_label_values` and "other".
    """

    def __init__(self, *, version: str, max_label_values: int = 1000, models: Iterable[str] = ()) -> None:
        """Make the collectors.

        Args:
            models: names of the configuration, which are told by name whatever comes first.
        """
        self.registry = CollectorRegistry()
        known = tuple(models)
        self._values = {
            label: LabelValues(max_label_values, known if label in ("model", "gen_ai_request_model") else ())
            for label in _OPEN_LABELS
        }
        self._families = {spec.name: Family(spec) for spec in METRICS if not spec.is_live}
        self._children: dict[tuple[str, ...], Any] = {}
        self._sources: list[Source] = []
        self.registry.register(SeriesCollector(self._all_families))
        self._in_flight = self._child("argosy_gateway_requests_in_flight")
        self._overhead = self._child("argosy_gateway_overhead_seconds")
        self._child("argosy_gateway_build_info", version, platform.python_version()).value = 1.0

    def add_source(self, source: Source) -> None:
        """Read `source` at every scrape. What it yields must be metrics of the list that are `is_live`."""
        self._sources.append(source)

    def started(self, exchange: Exchange) -> None:  # noqa: ARG002, the signature is the protocol's
        """A request has arrived."""
        self._in_flight.value += 1

    def first_byte(self, exchange: Exchange) -> None:
        """Counted at the end, when it is known what the request came to."""

    def finished(self, exchange: Exchange) -> None:
        """Count a request that is over."""
        self._in_flight.value -= 1
        model, status = exchange.pool or OTHER, str(exchange.status)
        outcome = "" if exchange.outcome is None else exchange.outcome.value
        self._child("argosy_gateway_requests_total", exchange.endpoint.route, model, status, outcome).value += 1
        tenant = exchange.principal.tenant if exchange.principal is not None else ""
        if tenant:
            self._child("argosy_gateway_tenant_requests_total", tenant, outcome).value += 1
        if exchange.dispatched_s:
            waited_s = exchange.dispatched_s - exchange.queued_s if exchange.queued_s else 0.0
            self._child("argosy_gateway_queue_wait_seconds", model).observe(waited_s)
            self._overhead.observe(max(0.0, exchange.dispatched_s - exchange.received_s - waited_s))
        if exchange.backend_id:
            self._child("argosy_gateway_backend_requests_total", exchange.backend_id, status).value += 1
        if exchange.attempts > 1:
            self._child("argosy_gateway_retries_total", model).value += exchange.attempts - 1
        if exchange.fallbacks:
            self._child("argosy_gateway_fallbacks_total", model).value += exchange.fallbacks
        self._count_tokens(exchange, model, tenant)
        self._observe_times(exchange, model, status)

    def on_reload(self, result: str, now_s: float | None = None) -> None:
        """A configuration was read; `result` is "applied" or "refused", `now_s` the wall clock if it is in force."""
        self._child("argosy_gateway_config_reloads_total", result).value += 1
        if now_s is not None:
            self._child("argosy_gateway_config_loaded_timestamp_seconds").value = now_s

    def _count_tokens(self, exchange: Exchange, model: str, tenant: str) -> None:
        usage, operation = exchange.usage, _operation(exchange)
        counted = (("input", usage.input_tokens), ("output", usage.output_tokens))
        for kind, tokens in counted:
            if tokens:
                self._child("gen_ai_client_token_usage", operation, model, kind).observe(tokens)
        if tenant:
            for kind, tokens in (*counted, ("cached", usage.cached_tokens)):
                if tokens:
                    self._child("argosy_gateway_tenant_tokens_total", tenant, kind).value += tokens

    def _observe_times(self, exchange: Exchange, model: str, status: str) -> None:
        if not exchange.backend_id:
            return
        operation, error = _operation(exchange), status if exchange.status >= 400 else ""
        duration_s = exchange.finished_s - exchange.received_s
        self._child("gen_ai_server_request_duration_seconds", operation, model, error).observe(duration_s)
        if error or not exchange.first_byte_s:
            return
        first_s = exchange.first_byte_s - exchange.received_s
        self._child("gen_ai_server_time_to_first_token_seconds", operation, model).observe(first_s)
        num_more = exchange.usage.output_tokens - 1
        if exchange.stream and num_more > 0:
            each_s = (exchange.finished_s - exchange.first_byte_s) / num_more
            self._child("gen_ai_server_time_per_output_token_seconds", operation, model).observe(each_s)

    def _child(self, name: str, *labels: str) -> Any:
        """The series of these label values, each bounded. Looked up by the values as given, so that this is one step."""
        found = self._children.get((name, *labels))
        if found is None:
            bounded = self._bounded(METRIC_OF[name], labels)
            found = self._families[name].series(bounded)
            if bounded == labels:
                self._children[(name, *labels)] = found
        return found

    def _bounded(self, spec: MetricSpec, labels: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(
            self._values[label].bounded(value) if label in self._values else value
            for label, value in zip(spec.labels, labels, strict=True)
        )

    def _all_families(self) -> Iterator[Family]:
        """Those kept here, and those read from their owners; of several readings of one series the highest counts."""
        yield from self._families.values()
        read = {spec.name: Family(spec) for spec in METRICS if spec.is_live}
        for source in self._sources:
            for reading in source():
                series = read[reading.name].series(self._bounded(METRIC_OF[reading.name], reading.labels))
                assert isinstance(series, Single), "what is read live is no histogram"
                series.value = max(series.value, reading.value)
        yield from read.values()


def _operation(exchange: Exchange) -> str:
    kind = exchange.endpoint.kind
    return _OPERATIONS.get(kind, kind)
