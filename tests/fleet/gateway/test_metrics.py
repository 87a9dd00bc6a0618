import platform
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from argosy.fleet.gateway.exchange import Endpoint, Exchange, Principal, TokenUsage
from argosy.fleet.gateway.label_values import LabelValues
from argosy.fleet.gateway.metric_list import METRIC_OF, METRICS
from argosy.fleet.gateway.metrics import GatewayMetrics, Reading
from argosy.fleet.policies.outcomes import Outcome
from argosy.observe.metrics import render

CHAT = Endpoint("/v1/chat/completions", "chat")


def exchange_of(model: str = "m", tenant: str = "acme", **fields) -> Exchange:
    exchange = Exchange(CHAT, "POST", CHAT.route, {}, b"", "r-1", "gw-1", 10.0)
    exchange.model = exchange.pool = model
    exchange.principal = Principal("key-1", tenant) if tenant else None
    exchange.outcome, exchange.status, exchange.backend_id = Outcome.DISPATCHED, 200, "b1"
    exchange.queued_s, exchange.dispatched_s, exchange.first_byte_s, exchange.finished_s = 10.001, 10.251, 10.5, 12.5
    exchange.stream, exchange.attempts = True, 1
    exchange.usage = TokenUsage(100, 40, 21, is_reported=True)
    for name, value in fields.items():
        setattr(exchange, name, value)
    return exchange


def samples(metrics: GatewayMetrics) -> dict[str, float]:
    """By name{label=value,…}, as a scraper reads them."""
    text, _ = render(metrics.registry, "")
    return {
        f"{sample.name}{{{','.join(f'{name}={value}' for name, value in sorted(sample.labels.items()))}}}": sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


@pytest.fixture
def metrics() -> GatewayMetrics:
    return GatewayMetrics(version="1.2", models=("m",))


def test_a_request_is_counted_under_the_names_of_the_conventions(metrics):
    exchange = exchange_of()
    metrics.started(exchange)
    assert samples(metrics)["argosy_gateway_requests_in_flight{}"] == 1
    metrics.first_byte(exchange)
    metrics.finished(exchange)
    found = samples(metrics)
    labels = "gen_ai_operation_name=chat,gen_ai_request_model=m"
    assert found["argosy_gateway_requests_in_flight{}"] == 0
    assert found["argosy_gateway_requests_total{model=m,outcome=dispatched,route=/v1/chat/completions,status=200}"] == 1
    assert found[f"gen_ai_server_request_duration_seconds_sum{{error_type=,{labels}}}"] == pytest.approx(2.5)
    assert found[f"gen_ai_server_request_duration_seconds_bucket{{error_type=,{labels},le=2.56}}"] == 1
    assert found[f"gen_ai_server_request_duration_seconds_bucket{{error_type=,{labels},le=1.28}}"] == 0
    assert found[f"gen_ai_server_time_to_first_token_seconds_sum{{{labels}}}"] == pytest.approx(0.5)
    assert found[f"gen_ai_server_time_per_output_token_seconds_sum{{{labels}}}"] == pytest.approx(0.1)
    assert found[f"gen_ai_client_token_usage_sum{{{labels},gen_ai_token_type=input}}"] == 100
    assert found[f"gen_ai_client_token_usage_sum{{{labels},gen_ai_token_type=output}}"] == 21
    assert found["argosy_gateway_queue_wait_seconds_sum{model=m}"] == pytest.approx(0.25)
    assert found["argosy_gateway_overhead_seconds_sum{}"] == pytest.approx(0.001)
    assert found["argosy_gateway_tenant_tokens_total{tenant=acme,type=cached}"] == 40
    assert found["argosy_gateway_backend_requests_total{backend=b1,status=200}"] == 1
    assert found[f"argosy_gateway_build_info{{python={platform.python_version()},version=1.2}}"] == 1


def test_retries_and_fallbacks(metrics):
    metrics.started(exchange := exchange_of(attempts=3, fallbacks=1))
    metrics.finished(exchange)
    found = samples(metrics)
    assert found["argosy_gateway_retries_total{model=m}"] == 2
    assert found["argosy_gateway_fallbacks_total{model=m}"] == 1


def test_what_never_reached_a_backend_has_no_latency(metrics):
    refused = exchange_of(
        tenant="", pool="", backend_id="", dispatched_s=0.0, first_byte_s=0.0, status=429, outcome=Outcome.REJECTED_RATE
    )
    refused.usage = TokenUsage()
    metrics.started(refused)
    metrics.finished(refused)
    found = samples(metrics)
    assert (
        found["argosy_gateway_requests_total{model=other,outcome=rejected_rate,route=/v1/chat/completions,status=429}"] == 1
    )
    assert not any(name.startswith(("gen_ai", "argosy_gateway_queue_wait", "argosy_gateway_tenant")) for name in found)


def test_failed_answers_have_a_duration_by_status_and_no_time_to_first_token(metrics):
    metrics.started(exchange := exchange_of(status=502))
    metrics.finished(exchange)
    found = samples(metrics)
    assert any("gen_ai_server_request_duration_seconds_count" in name and "error_type=502" in name for name in found)
    assert not any("time_to_first_token" in name for name in found)


def test_ten_thousand_names_become_a_thousand_and_other():
    metrics = GatewayMetrics(version="1", max_label_values=1000)
    for number in range(10_000):
        exchange = exchange_of(f"model-{number}", f"tenant-{number}", backend_id=f"b-{number}", status=100 + number % 900)
        metrics.started(exchange)
        metrics.finished(exchange)
    for spec in METRICS:
        if spec.is_live:
            continue
        series = tuple(metrics._families[spec.name]._series)
        for place, label in enumerate(spec.labels):
            values = {labels[place] for labels in series}
            assert len(values - {"other"}) <= 1000, (spec.name, label)
    assert len(metrics._children) <= sum(len(family._series) for family in metrics._families.values())
    by_tenant = {
        labels[0]: one.value for labels, one in metrics._families["argosy_gateway_tenant_requests_total"]._series.items()
    }
    assert by_tenant["other"] == 9000
    assert sum(by_tenant.values()) == 10_000


def test_configured_models_keep_their_names_whatever_comes_first():
    metrics = GatewayMetrics(version="1", max_label_values=2, models=("mine",))
    for name in ("a", "b", "c", "mine"):
        metrics.started(exchange := exchange_of(name))
        metrics.finished(exchange)
    found = samples(metrics)
    assert found["argosy_gateway_queue_wait_seconds_count{model=mine}"] == 1
    assert found["argosy_gateway_queue_wait_seconds_count{model=a}"] == 1
    assert found["argosy_gateway_queue_wait_seconds_count{model=other}"] == 2


def test_readings_are_taken_at_every_scrape(metrics):
    depth = [3.0]
    metrics.add_source(lambda: [Reading("argosy_gateway_queue_requests", ("standard",), depth[0])])
    assert samples(metrics)["argosy_gateway_queue_requests{priority=standard}"] == 3
    depth[0] = 0.0
    assert samples(metrics)["argosy_gateway_queue_requests{priority=standard}"] == 0


def test_of_readings_that_share_a_series_the_highest_is_told():
    metrics = GatewayMetrics(version="1", max_label_values=1)
    metrics.add_source(
        lambda: [Reading("argosy_gateway_quota_used_ratio", ("key", f"k{n}", "tokens"), n / 10) for n in range(5)]
    )
    found = samples(metrics)
    assert found["argosy_gateway_quota_used_ratio{dimension=tokens,scope=key,scope_id=k0}"] == 0
    assert found["argosy_gateway_quota_used_ratio{dimension=tokens,scope=key,scope_id=other}"] == pytest.approx(0.4)


def test_reloads(metrics):
    metrics.on_reload("applied", 1000.0)
    metrics.on_reload("refused")
    found = samples(metrics)
    assert found["argosy_gateway_config_reloads_total{result=applied}"] == 1
    assert found["argosy_gateway_config_reloads_total{result=refused}"] == 1
    assert found["argosy_gateway_config_loaded_timestamp_seconds{}"] == 1000


def test_a_scrape_in_a_thread_meets_whole_series():
    metrics, stop, faults = GatewayMetrics(version="1"), threading.Event(), []

    def scrape() -> None:
        while not stop.is_set():
            try:
                samples(metrics)
            except Exception as error:
                faults.append(error)

    thread = threading.Thread(target=scrape)
    thread.start()
    for number in range(200):
        metrics.started(exchange := exchange_of(f"m{number}"))
        metrics.finished(exchange)
    stop.set()
    thread.join()
    assert faults == []


def test_names_follow_the_rules_of_prometheus():
    for spec in METRICS:
        assert METRIC_OF[spec.name] is spec
        assert spec.name.endswith("_total") == (spec.kind == "counter"), spec.name
        assert bool(spec.buckets) == (spec.kind == "histogram"), spec.name
        assert list(spec.buckets) == sorted(set(spec.buckets)), spec.name
        if spec.unit == "s":
            assert spec.name.endswith("_seconds"), spec.name
    assert len(METRIC_OF) == len(METRICS)


def test_label_values_that_were_admitted_stay():
    values = LabelValues(2, known=("a",))
    assert [values.bounded(name) for name in ("b", "c", "a", "b", "x" * 300)] == ["b", "other", "a", "b", "other"]
    assert len(values) == 2
