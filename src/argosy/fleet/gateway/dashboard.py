"""A Grafana dashboard and Prometheus alert rules, made from the list of metrics so that neither can name one that is not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from argosy.fleet.gateway.metric_list import METRIC_OF
from argosy.fleet.policies.alerts import AlertConfig

_WIDTH, _HEIGHT = 8, 7
_SUFFIXES = ("_bucket", "_sum", "_count")


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph: PromQL expressions with their legends. The unit is the first metric's unless given."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = ""


def rate(metric: str, *by: str, where: str = "") -> str:
    """Events per second, summed by labels."""
    return f"{_sum(by)}(rate({_series(metric, where)}[$__rate_interval]))"


def percentile(fraction: float, metric: str, *by: str) -> str:
    """Of a histogram, by labels."""
    _require(metric, by)
    return f"histogram_quantile({fraction}, {_sum((*by, 'le'))}(rate({metric}_bucket[$__rate_interval])))"


def level(metric: str, *by: str) -> str:
    """Of a gauge, summed by labels, or as it is without any."""
    _require(metric, by)
    return f"{_sum(by)}({metric})" if by else metric


def _series(metric: str, where: str) -> str:
    name = re.sub(r"_(bucket|sum|count)$", "", metric)
    _require(name if name in METRIC_OF else metric, ())
    return f"{metric}{{{where}}}" if where else metric


def _require(metric: str, labels: tuple[str, ...]) -> None:
    unknown = set(labels) - set(METRIC_OF[metric].labels)
    assert not unknown, f"{metric} has no label {', '.join(sorted(unknown))}"


def _sum(by: tuple[str, ...]) -> str:
    return f"sum by ({', '.join(by)}) " if by else "sum "


_MODEL, _OP = "gen_ai_request_model", "gen_ai_operation_name"


def rows() -> Iterator[tuple[str, tuple[Panel, ...]]]:
    """The dashboard's rows: title and panels."""
    duration, ttft = "gen_ai_server_request_duration_seconds", "gen_ai_server_time_to_first_token_seconds"
    tpot, share = "gen_ai_server_time_per_output_token_seconds", "argosy_gateway_tenant_share_ratio"
    yield (
        "Requests",
        (
            Panel("By model", ((rate("argosy_gateway_requests_total", "model"), "{{model}}"),)),
            Panel("By outcome", ((rate("argosy_gateway_requests_total", "outcome"), "{{outcome}}"),)),
            Panel("By status", ((rate("argosy_gateway_requests_total", "status"), "{{status}}"),)),
            Panel("In flight", ((level("argosy_gateway_requests_in_flight"), "in flight"),)),
            Panel(
                "Retries and fallbacks",
                (
                    (rate("argosy_gateway_retries_total", "model"), "retries {{model}}"),
                    (rate("argosy_gateway_fallbacks_total", "model"), "fallbacks {{model}}"),
                ),
            ),
            Panel("Overhead before the backend", _percentiles("argosy_gateway_overhead_seconds")),
        ),
    )
    yield (
        "Latency",
        (
            Panel("Time to first token", _percentiles(ttft, _MODEL)),
            Panel("Time per output token", _percentiles(tpot, _MODEL)),
            Panel("Whole request", _percentiles(duration, _MODEL)),
            Panel("By operation", _percentiles(duration, _OP)),
            Panel("Wait for capacity", _percentiles("argosy_gateway_queue_wait_seconds", "model")),
            Panel(
                "P99 against its target",
                (
                    (level("argosy_gateway_latency_p99_seconds"), "{{model}}"),
                    (level("argosy_gateway_latency_target_seconds"), "target"),
                ),
            ),
        ),
    )
    yield (
        "Tenants",
        (
            Panel("Requests", ((rate("argosy_gateway_tenant_requests_total", "tenant"), "{{tenant}}"),)),
            Panel(
                "Tokens per second", ((rate("argosy_gateway_tenant_tokens_total", "tenant", "type"), "{{tenant}} {{type}}"),)
            ),
            Panel("Tokens per request", _token_means()),
            Panel("Share over fair share", ((level(share), "{{tenant}}"),)),
            Panel(
                "Limits in use", ((f"topk(20, {level('argosy_gateway_quota_used_ratio')})", "{{scope_id}} {{dimension}}"),)
            ),
            Panel("Alerts", ((level("argosy_gateway_alert_firing"), "{{alert}} {{subject}}"),)),
        ),
    )
    yield (
        "Backends",
        (
            Panel(
                "Requests", ((rate("argosy_gateway_backend_requests_total", "backend", "status"), "{{backend}} {{status}}"),)
            ),
            Panel("In flight", ((level("argosy_gateway_backend_in_flight"), "{{backend}}"),)),
            Panel(
                "Ready, and breakers",
                (
                    (level("argosy_gateway_backend_ready"), "ready {{backend}}"),
                    (level("argosy_gateway_breaker_state"), "breaker {{backend}}"),
                ),
            ),
            Panel("Waiting inside", ((level("argosy_gateway_backend_queue"), "{{backend}}"),)),
            Panel("KV pool in use", ((level("argosy_gateway_backend_kv_usage_ratio"), "{{backend}}"),)),
            Panel(
                "Saturation and queue",
                (
                    (level("argosy_gateway_saturation_ratio"), "saturation {{model}}"),
                    (level("argosy_gateway_queue_requests"), "waiting {{priority}}"),
                ),
            ),
        ),
    )
    yield (
        "Prefixes",
        (
            Panel("Prompts matched", ((rate("argosy_gateway_prefix_lookups_total", "model", "by"), "{{model}} by {{by}}"),)),
            Panel(
                "Without tokens",
                ((rate("argosy_gateway_prompts_not_tokenized_total", "model", "reason"), "{{model}} {{reason}}"),),
            ),
            Panel(
                "Known of backends",
                (
                    (level("argosy_gateway_kv_event_blocks"), "blocks {{backend}}"),
                    (level("argosy_gateway_kv_events_trusted"), "trusted {{backend}}"),
                ),
            ),
            Panel("KV event messages", ((rate("argosy_gateway_kv_event_messages_total", "backend"), "{{backend}}"),)),
            Panel(
                "KV events lost",
                (
                    (rate("argosy_gateway_kv_event_gaps_total", "backend"), "gaps {{backend}}"),
                    (rate("argosy_gateway_kv_event_malformed_total", "backend"), "malformed {{backend}}"),
                    (rate("argosy_gateway_kv_event_left_out_blocks_total", "backend"), "blocks left out {{backend}}"),
                ),
            ),
        ),
    )
    yield (
        "The gateway itself",
        (
            Panel("Stores", ((level("argosy_gateway_store_up"), "{{store}}"),)),
            Panel(
                "Shared limits",
                (
                    (level("argosy_gateway_ledger_leases"), "leases"),
                    (level("argosy_gateway_ledger_pending"), "pending"),
                    (rate("argosy_gateway_ledger_decided_without_total"), "decided without, per second"),
                    (rate("argosy_gateway_ledger_losses_total"), "losses per second"),
                    (rate("argosy_gateway_ledger_reaped_leases_total"), "leases reaped per second"),
                ),
            ),
            Panel(
                "Usage records",
                (
                    (level("argosy_gateway_usage_pending_records"), "pending"),
                    (rate("argosy_gateway_usage_lost_total"), "lost per second"),
                ),
            ),
            Panel("Log lines lost", ((rate("argosy_gateway_log_lines_dropped_total", "log"), "{{log}}"),)),
            Panel("Configurations read", ((rate("argosy_gateway_config_reloads_total", "result"), "{{result}}"),)),
            Panel("Configuration in force since", ((level("argosy_gateway_config_loaded_timestamp_seconds"), "read at"),)),
            Panel("Version", ((level("argosy_gateway_build_info"), "{{version}}"),)),
        ),
    )


def _percentiles(metric: str, *by: str) -> tuple[tuple[str, str], ...]:
    legend = "".join(f" {{{{{label}}}}}" for label in by)
    return tuple((percentile(fraction, metric, *by), f"p{fraction * 100:g}{legend}") for fraction in (0.5, 0.9, 0.99))


def _token_means() -> tuple[tuple[str, str], ...]:
    by = ("gen_ai_token_type",)
    total, count = (f"gen_ai_client_token_usage{suffix}" for suffix in ("_sum", "_count"))
    return ((f"{rate(total, *by)} / {rate(count, *by)}", "{{gen_ai_token_type}}"),)


def metrics_in(expression: str) -> set[str]:
    """Names of metrics that a PromQL expression of ours reads, without the suffixes of histograms."""
    found = re.findall(r"\b(?:argosy_gateway|gen_ai)_\w+", expression)
    names = {name for name in found if name not in _label_names()}
    return {
        next((name.removesuffix(end) for end in _SUFFIXES if name.removesuffix(end) in METRIC_OF), name) for name in names
    }


def _label_names() -> set[str]:
    return {label for spec in METRIC_OF.values() for label in spec.labels}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it; the Prometheus to read is asked for then."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in rows():
        panels.append({"type": "row", "title": title, "gridPos": {"h": 1, "w": 24, "x": 0, "y": top}, "panels": []})
        for number, panel in enumerate(row):
            column, line = number % 3, number // 3
            place = {"h": _HEIGHT, "w": _WIDTH, "x": column * _WIDTH, "y": top + 1 + line * _HEIGHT}
            panels.append(_graph(panel, place))
        top += 1 + _HEIGHT * ((len(row) + 2) // 3)
    for number, made in enumerate(panels, start=1):
        made["id"] = number
    return {
        "title": "Argosy gateway",
        "uid": "argosy-gateway",
        "schemaVersion": 39,
        "version": 1,
        "tags": ["argosy"],
        "timezone": "browser",
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]},
        "panels": panels,
    }


def _graph(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    names = [name for query, _ in panel.queries for name in sorted(metrics_in(query))]
    unit = panel.unit or METRIC_OF[names[0]].unit or "short"
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": " ".join(dict.fromkeys(METRIC_OF[name].text for name in names)),
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": query, "legendFormat": legend, "datasource": source}
            for number, (query, legend) in enumerate(panel.queries)
        ],
    }


def dashboard_json() -> str:
    """The dashboard as text."""
    return json.dumps(dashboard(), indent=2) + "\n"


def alert_rules(config: AlertConfig | None = None) -> dict[str, Any]:
    """Prometheus rules with the thresholds of `config`: slow answers, quotas nearly used up, noisy neighbours."""
    settings = config or AlertConfig()
    hold = f"{round(settings.hold_s)}s"
    p99, target = level("argosy_gateway_latency_p99_seconds"), level("argosy_gateway_latency_target_seconds")
    quota, share = level("argosy_gateway_quota_used_ratio"), level("argosy_gateway_tenant_share_ratio")
    rules = [
        _rule(
            "ArgosyLatencyAboveTarget",
            f"{p99} > on (instance, job) group_left () {settings.latency_factor:g} * {target}",
            hold,
            "P99 latency of {{ $labels.model }} is {{ $value | humanizeDuration }}, above its target",
        ),
        _rule(
            "ArgosyQuotaNearlyUsed",
            f"{quota} >= {settings.quota_ratio:g}",
            "0s",
            "{{ $labels.scope }} {{ $labels.scope_id }} has used {{ $value | humanizePercentage }} of its "
            "{{ $labels.dimension }}",
        ),
        _rule(
            "ArgosyNoisyNeighbour",
            f"{share} > {settings.fair_share_factor:g}",
            hold,
            "tenant {{ $labels.tenant }} takes {{ $value | humanize }} times its fair share",
        ),
        _rule(
            "ArgosyBackendNotReady",
            f"{level('argosy_gateway_backend_ready')} == 0",
            "1m",
            "backend {{ $labels.backend }} takes no requests",
        ),
        _rule(
            "ArgosyStoreAway", f"{level('argosy_gateway_store_up')} == 0", "1m", "store {{ $labels.store }} does not answer"
        ),
    ]
    return {"groups": [{"name": "argosy-gateway", "rules": rules}]}


def _rule(name: str, expression: str, hold: str, summary: str) -> dict[str, Any]:
    return {
        "alert": name,
        "expr": expression,
        "for": hold,
        "labels": {"severity": "warning"},
        "annotations": {"summary": summary},
    }


def alert_rules_yaml(config: AlertConfig | None = None) -> str:
    """The rules as text."""
    return yaml.safe_dump(alert_rules(config), sort_keys=False, width=1000)
