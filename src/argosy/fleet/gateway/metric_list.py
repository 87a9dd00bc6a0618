"""Every metric of the gateway: one list, from which collectors, dashboard and alert rules are made.

Names of the OpenTelemetry semantic conventions for generative AI are written as its Prometheus exporter writes them (dots
become underscores, the unit becomes a suffix); ours begin with `argosy_gateway_`.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from argosy.observe.metrics import TPOT_BUCKETS_S, TTFT_BUCKETS_S

# https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/ advises these.
TOKEN_BUCKETS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
DURATION_BUCKETS_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
OVERHEAD_BUCKETS_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)
WAIT_BUCKETS_S = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric.

    Attributes:
        name: as it is exposed; a counter's ends in `_total`, a histogram's has no `_bucket`.
        unit: of the dashboard's axis, in Grafana's words; "" for a plain number.
        is_live: read from its owner when somebody asks (`GatewayMetrics.add_source`), not kept here.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    unit: str = ""
    is_live: bool = False


def _counter(name: str, text: str, *labels: str, unit: str = "", is_live: bool = False) -> MetricSpec:
    return MetricSpec(name, "counter", text, labels, unit=unit, is_live=is_live)


def _gauge(name: str, text: str, *labels: str, unit: str = "", is_live: bool = True) -> MetricSpec:
    return MetricSpec(name, "gauge", text, labels, unit=unit, is_live=is_live)


def _seconds(name: str, text: str, *labels: str, buckets: tuple[float, ...]) -> MetricSpec:
    return MetricSpec(name, "histogram", text, labels, buckets, "s")


_GEN_AI = ("gen_ai_operation_name", "gen_ai_request_model")

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "gen_ai_client_token_usage",
        "histogram",
        "Tokens of a request, by type (input, output).",
        (*_GEN_AI, "gen_ai_token_type"),
        TOKEN_BUCKETS,
    ),
    _seconds(
        "gen_ai_server_request_duration_seconds",
        "From the request's arrival to its last byte.",
        *_GEN_AI,
        "error_type",
        buckets=DURATION_BUCKETS_S,
    ),
    _seconds(
        "gen_ai_server_time_to_first_token_seconds",
        "From the request's arrival to the first byte of the answer.",
        *_GEN_AI,
        buckets=TTFT_BUCKETS_S,
    ),
    _seconds(
        "gen_ai_server_time_per_output_token_seconds",
        "Mean time per token after the first, of streams.",
        *_GEN_AI,
        buckets=TPOT_BUCKETS_S,
    ),
    _counter("argosy_gateway_requests_total", "Requests ended.", "route", "model", "status", "outcome", unit="reqps"),
    _gauge("argosy_gateway_requests_in_flight", "Requests being answered.", is_live=False),
    _counter("argosy_gateway_retries_total", "Calls of a backend beyond a request's first.", "model", unit="reqps"),
    _counter("argosy_gateway_fallbacks_total", "Models given up for another one.", "model", unit="reqps"),
    _seconds("argosy_gateway_queue_wait_seconds", "Wait for capacity.", "model", buckets=WAIT_BUCKETS_S),
    _seconds(
        "argosy_gateway_overhead_seconds",
        "Time before a backend is called, less the wait for capacity.",
        buckets=OVERHEAD_BUCKETS_S,
    ),
    _counter("argosy_gateway_tenant_requests_total", "Requests ended.", "tenant", "outcome", unit="reqps"),
    _counter("argosy_gateway_tenant_tokens_total", "Tokens, by type (input, cached, output).", "tenant", "type"),
    _gauge(
        "argosy_gateway_tenant_share_ratio", "Share of the served tokens of the last minute over its fair share.", "tenant"
    ),
    _gauge(
        "argosy_gateway_quota_used_ratio",
        "Part of a limit in use, highest of its kind.",
        "scope",
        "scope_id",
        "dimension",
        unit="percentunit",
    ),
    _gauge("argosy_gateway_latency_p99_seconds", "99th percentile of the last minute's requests.", "model", unit="s"),
    _gauge("argosy_gateway_latency_target_seconds", "What the 99th percentile is to stay below.", unit="s"),
    _gauge("argosy_gateway_alert_firing", "1 while an alert holds.", "alert", "subject"),
    _counter("argosy_gateway_backend_requests_total", "Requests answered, by backend.", "backend", "status", unit="reqps"),
    _gauge("argosy_gateway_backend_in_flight", "Requests at a backend.", "backend"),
    _gauge(
        "argosy_gateway_backend_ready",
        "1 if a backend takes requests; one that is not probed does until its breaker opens.",
        "backend",
    ),
    _gauge("argosy_gateway_breaker_state", "0 closed, 1 open, 2 half-open.", "backend"),
    _gauge("argosy_gateway_backend_queue", "Requests that wait inside a backend, as it tells.", "backend"),
    _gauge("argosy_gateway_backend_kv_usage_ratio", "KV pool in use, as a backend tells.", "backend", unit="percentunit"),
    _gauge("argosy_gateway_kv_events_trusted", "1 while a backend's KV events say what it holds.", "backend"),
    _gauge("argosy_gateway_kv_event_blocks", "KV blocks known of a backend by its events.", "backend"),
    _counter("argosy_gateway_kv_event_messages_total", "KV event messages taken in.", "backend", is_live=True),
    _counter("argosy_gateway_kv_event_gaps_total", "Times that KV events were missing for good.", "backend", is_live=True),
    _counter("argosy_gateway_kv_event_malformed_total", "KV event messages not understood.", "backend", is_live=True),
    _counter("argosy_gateway_kv_event_left_out_blocks_total", "KV blocks not remembered.", "backend", is_live=True),
    _counter(
        "argosy_gateway_prefix_lookups_total", "Prompts matched by events or by what was sent.", "model", "by", is_live=True
    ),
    _counter(
        "argosy_gateway_prompts_not_tokenized_total", "Prompts matched without tokens.", "model", "reason", is_live=True
    ),
    _gauge("argosy_gateway_queue_requests", "Requests that wait for capacity.", "priority"),
    _gauge("argosy_gateway_saturation_ratio", "Saturation; 1 and above holds requests back.", "model"),
    _gauge("argosy_gateway_store_up", "1 if a store answers.", "store"),
    _counter("argosy_gateway_ledger_losses_total", "Times that the shared ledger was lost.", is_live=True),
    _counter("argosy_gateway_ledger_decided_without_total", "Requests decided without the shared ledger.", is_live=True),
    _counter("argosy_gateway_ledger_reaped_leases_total", "Leases of dead gateways that were ended.", is_live=True),
    _gauge("argosy_gateway_ledger_leases", "Leases that requests of this gateway hold, over the shared ledger."),
    _gauge("argosy_gateway_ledger_pending", "What the shared ledger has yet to be told."),
    _gauge("argosy_gateway_usage_pending_records", "Usage records not yet in the store."),
    _counter(
        "argosy_gateway_usage_lost_total", "Usage records that neither the store, nor disk, nor memory took.", is_live=True
    ),
    _counter("argosy_gateway_log_lines_dropped_total", "Lines that a slow reader of the log lost.", "log", is_live=True),
    _counter("argosy_gateway_config_reloads_total", "Configurations read while running.", "result"),
    _gauge("argosy_gateway_config_loaded_timestamp_seconds", "When the configuration in force was read.", is_live=False),
    _gauge("argosy_gateway_build_info", "Version of this gateway.", "version", "python", is_live=False),
)

METRIC_OF = MappingProxyType({spec.name: spec for spec in METRICS})
