"""Access log, traces and alerts of requests, without a gateway around them."""

import json
import logging

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from argosy.errors import ConfigError
from argosy.fleet.gateway.access_log import AccessLog
from argosy.fleet.gateway.alert_watch import AlertWatch
from argosy.fleet.gateway.config_operations import TracingSettings
from argosy.fleet.gateway.exchange import Endpoint, Exchange, Principal, TokenUsage
from argosy.fleet.gateway.metric_list import METRIC_OF
from argosy.fleet.gateway.tracing import RequestTracing, make_provider
from argosy.fleet.policies.alerts import AlertConfig
from argosy.fleet.policies.outcomes import Outcome

SECRET = "CANARY"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
NOW_S, WALL_S = 100.0, 1_700_000_000.0


class Lines:
    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.num_dropped = 3

    def write(self, line: bytes) -> None:
        self.lines.append(line)


def exchange_of(**fields) -> Exchange:
    headers = {b"authorization": f"Bearer sk-{SECRET}".encode()}
    body = json.dumps({"messages": [{"role": "user", "content": SECRET}]}).encode()
    route = Endpoint("/v1/chat/completions", "chat")
    exchange = Exchange(route, "POST", f"/v1/chat/completions?key={SECRET}", headers, body, "r-1", "gw-1", 98.0)
    exchange.model, exchange.pool, exchange.backend_id, exchange.status = "alias", "m", "b1", 200
    exchange.principal, exchange.outcome = Principal("key-1", "acme", "research"), Outcome.DISPATCHED
    exchange.queued_s, exchange.dispatched_s, exchange.first_byte_s, exchange.finished_s = 98.1, 98.6, 99.0, 100.0
    exchange.usage = TokenUsage(10, 4, 20, is_reported=True)
    for name, value in fields.items():
        setattr(exchange, name, value)
    return exchange


def line_of(exchange: Exchange) -> dict:
    writer = Lines()
    log = AccessLog(writer, lambda: WALL_S)
    log.started(exchange)
    log.first_byte(exchange)
    assert writer.lines == []
    log.finished(exchange)
    (line,) = writer.lines
    assert line.endswith(b"}\n")
    assert SECRET.encode() not in line
    assert {reading.value for reading in log.readings()} == {3.0}
    return json.loads(line)


def test_a_request_is_one_line():
    assert line_of(exchange_of(attempts=2, fallbacks=1, finish_reason="stop", client_address="10.0.0.9")) == {
        "time": "2023-11-14T22:13:20.000Z", "request_id": "r-1", "method": "POST", "route": "/v1/chat/completions",
        "status": 200, "outcome": "dispatched", "model": "alias", "pool": "m", "backend": "b1", "stream": False,
        "input_tokens": 10, "cached_tokens": 4, "output_tokens": 20, "duration_s": 2.0, "queue_s": 0.5, "first_byte_s": 1.0,
        "tenant": "acme", "team": "research", "key": "key-1", "attempts": 2, "fallbacks": 1, "finish_reason": "stop",
        "client_address": "10.0.0.9",
    }  # fmt: skip


def test_a_request_that_was_refused_has_fewer_fields():
    line = line_of(exchange_of(principal=None, outcome=None, queued_s=0.0, dispatched_s=0.0, first_byte_s=0.0, status=401))
    assert not {"tenant", "key", "queue_s", "first_byte_s", "attempts", "trace_id"} & set(line)
    assert line["outcome"] == ""


def test_what_clients_write_freely_is_cut_and_cannot_begin_a_line():
    line = line_of(exchange_of(model="m\n" * 500, request_id="r" * 500, traceparent=f"00-{TRACE}-{SPAN}-01"))
    assert len(line["model"]) == len(line["request_id"]) == 200
    assert line["trace_id"] == TRACE


@pytest.fixture
def traced():
    exporter = InMemorySpanExporter()
    provider = make_provider(TracingSettings("http://collector:4318/v1/traces"), "", "1", exporter)
    tracing = RequestTracing(provider, lambda: NOW_S, lambda: int(WALL_S * 1e9))
    yield tracing, exporter
    provider.shutdown()


def finished_spans(tracing, exporter) -> dict:
    tracing._provider.force_flush()
    return {span.name: span for span in exporter.get_finished_spans()}


def test_spans_of_a_request_join_the_trace_of_its_client_and_go_on_to_the_engine(traced):
    tracing, exporter = traced
    exchange = exchange_of(traceparent=f"00-{TRACE}-{SPAN}-01", tracestate="vendor=1")
    tracing.started(exchange)
    version, trace_id, span_id, flags = exchange.traceparent.split("-")
    assert (version, trace_id, flags) == ("00", TRACE, "01")
    assert span_id != SPAN
    assert exchange.tracestate == "vendor=1"
    tracing.first_byte(exchange)
    tracing.finished(exchange)
    spans = finished_spans(tracing, exporter)
    assert set(spans) == {"/v1/chat/completions", "admission", "queue", "upstream"}
    top = spans["/v1/chat/completions"]
    assert f"{top.context.span_id:016x}" == span_id
    assert f"{top.parent.span_id:016x}" == SPAN
    assert {f"{span.context.trace_id:032x}" for span in spans.values()} == {TRACE}
    assert all(span.parent.span_id == top.context.span_id for name, span in spans.items() if span is not top)
    times = {
        name: ((span.start_time - WALL_S * 1e9) / 1e9, (span.end_time - WALL_S * 1e9) / 1e9) for name, span in spans.items()
    }
    assert times["/v1/chat/completions"] == pytest.approx((-2.0, 0.0), abs=1e-6)
    assert times["admission"] == pytest.approx((-2.0, -1.9), abs=1e-6)
    assert times["queue"] == pytest.approx((-1.9, -1.4), abs=1e-6)
    assert times["upstream"] == pytest.approx((-1.4, 0.0), abs=1e-6)
    assert top.attributes["gen_ai.response.model"] == "m"
    assert top.attributes["argosy.tenant"] == "acme"
    assert spans["upstream"].attributes["argosy.backend"] == "b1"
    assert [event.name for event in top.events] == ["first_byte"]
    assert SECRET not in "".join(span.to_json() for span in spans.values())
    assert not tracing._open


def test_a_trace_that_the_client_does_not_record_is_passed_on_unrecorded(traced):
    tracing, exporter = traced
    exchange = exchange_of(traceparent=f"00-{TRACE}-{SPAN}-00")
    tracing.started(exchange)
    assert exchange.traceparent.startswith(f"00-{TRACE}-")
    assert exchange.traceparent.endswith("-00")
    tracing.finished(exchange)
    assert finished_spans(tracing, exporter) == {}


def test_without_a_client_s_trace_one_begins(traced):
    tracing, exporter = traced
    exchange = exchange_of(status=502, detail="the backend cut the answer", dispatched_s=0.0, queued_s=0.0)
    tracing.started(exchange)
    tracing.finished(exchange)
    spans = finished_spans(tracing, exporter)
    top = spans["/v1/chat/completions"]
    assert top.parent is None
    assert top.status.description == "the backend cut the answer"
    assert set(spans) == {"/v1/chat/completions", "admission"}
    tracing.finished(exchange)


def test_headers_for_the_collector():
    settings = TracingSettings("http://collector:4318/v1/traces")
    provider = make_provider(settings, "authorization=Bearer x, tenant=a", "1")
    provider.shutdown()
    with pytest.raises(ConfigError, match="must be name=value"):
        make_provider(settings, SECRET, "1")


def test_alerts_are_told_once_and_are_there_to_be_read(caplog, monkeypatch):
    now_s, quotas = [0.0], {}
    config = AlertConfig(latency_target_s=1.0, hold_s=10.0)
    watch = AlertWatch(config, lambda: now_s[0], lambda: quotas)
    monkeypatch.setattr(logging.getLogger("argosy"), "propagate", True)
    with caplog.at_level(logging.INFO, "argosy.gateway.alerts"):
        for second in range(0, 30, 5):
            now_s[0] = float(second)
            loud = exchange_of(finished_s=now_s[0], received_s=now_s[0] - 2.0)
            light = exchange_of(finished_s=now_s[0], received_s=now_s[0] - 2.0, usage=TokenUsage(1, 0, 0))
            others = [
                exchange_of(principal=Principal("k", f"t{n}"), usage=light.usage, finished_s=now_s[0]) for n in range(5)
            ]
            refused = exchange_of(backend_id="", principal=Principal("k", "refused"), finished_s=now_s[0])
            failed = exchange_of(status=500, pool="failing", finished_s=now_s[0], received_s=-100.0)
            for exchange in (loud, *others, refused, failed):
                watch.started(exchange)
                watch.first_byte(exchange)
                watch.finished(exchange)
            watch.judge(now_s[0])
        quotas["key", "k", "tokens"] = 0.95
        watch.judge(now_s[0])
    told = [(record.message, record.fields["alert"], record.fields["subject"]) for record in caplog.records]
    assert sorted(told) == [
        ("alert", "latency", "m"), ("alert", "noisy_neighbour", "acme"), ("alert", "quota", "key/k/tokens")
    ]  # fmt: skip
    readings = {(reading.name, reading.labels): reading.value for reading in watch.readings()}
    assert all(METRIC_OF[name].is_live and len(labels) == len(METRIC_OF[name].labels) for name, labels in readings)
    assert readings["argosy_gateway_alert_firing", ("latency", "m")] == 1
    assert readings["argosy_gateway_latency_p99_seconds", ("m",)] == pytest.approx(2.0, rel=0.03)
    assert readings["argosy_gateway_latency_target_seconds", ()] == 1.0
    assert readings["argosy_gateway_tenant_share_ratio", ("acme",)] > 2
    assert ("argosy_gateway_tenant_share_ratio", ("refused",)) not in readings
    assert ("argosy_gateway_latency_p99_seconds", ("failing",)) not in readings
    assert readings["argosy_gateway_quota_used_ratio", ("key", "k", "tokens")] == 0.95
    quotas.clear()
    now_s[0] = 1000.0
    watch.judge(1000.0)
    assert not [reading for reading in watch.readings() if reading.name == "argosy_gateway_alert_firing"]
