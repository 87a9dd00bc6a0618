"""The metrics of an engine: names as dashboards know them, numbers as the work was."""

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from argosy.observe.metrics import EngineMetrics, HttpMetrics, one_two_five_buckets, render
from argosy.observe.stats import RequestStats, StepStats

STEP = StepStats(
    step=1, now_s=1.0, duration_s=0.02, num_running=3, num_waiting=2, kv_blocks_held=25, kv_blocks_cached=10,
    kv_blocks_total=100, num_tokens=40, num_prefill_tokens=37, num_generated_tokens=3, num_preemptions=1,
    num_prefix_queries=37, num_prefix_hits=16, inter_token_latencies_s=(0.03, 0.2),
)  # fmt: skip
REQUEST = RequestStats(
    request_id="r", finish_reasons=("stop", "length"), num_prompt_tokens=30, num_cached_tokens=16,
    num_generated_tokens=12, n=2, max_tokens=100, preemptions=0, e2e_s=1.9, queue_s=0.1, time_to_first_token_s=0.4,
    prefill_s=0.3, decode_s=1.5, time_per_output_token_s=0.3,
)  # fmt: skip
GAUGES = {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info"}
COUNTERS = {
    "prompt_tokens_total", "generation_tokens_total", "prompt_tokens_cached_total", "prompt_tokens_by_source_total",
    "prefix_cache_queries_total", "prefix_cache_hits_total", "num_preemptions_total", "request_success_total",
}  # fmt: skip
HISTOGRAMS = {
    "time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds", "request_queue_time_seconds", "request_inference_time_seconds",
    "request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens",
    "request_generation_tokens", "request_prefill_kv_computed_tokens", "request_params_n",
    "request_params_max_tokens", "iteration_tokens_total",
}  # fmt: skip


@pytest.fixture
def metrics():
    metrics = EngineMetrics("m", max_model_len=2048)
    metrics.set_cache_config(block_size=16, num_gpu_blocks=100)
    return metrics


def samples(metrics):
    text = render(metrics.registry, "")[0].decode()
    families = list(text_string_to_metric_families(text))
    return {(s.name, *sorted(s.labels.items())): s.value for f in families for s in f.samples}


def value(metrics, name, **labels):
    labels = {"model_name": "m", "engine": "0", **labels}
    return samples(metrics)[(name, *sorted(labels.items()))]


def test_names_are_those_dashboards_know(metrics):
    names = {name for name, *_ in samples(metrics) if name.startswith("vllm:") and not name.endswith("_created")}
    suffixes = ("_bucket", "_sum", "_count")
    plain = {n.removeprefix("vllm:") for n in names if not n.endswith(suffixes)}
    histograms = {n.removeprefix("vllm:").removesuffix("_sum") for n in names if n.endswith("_sum")}
    assert plain == GAUGES | COUNTERS
    assert histograms == HISTOGRAMS
    assert {n for n in names if n.endswith(suffixes)} == {f"vllm:{h}{s}" for h in HISTOGRAMS for s in suffixes}


def test_every_engine_metric_has_the_two_labels(metrics):
    for name, *labels in samples(metrics):
        if name.startswith("vllm:"):
            assert {("model_name", "m"), ("engine", "0")} <= set(labels)


def test_state_after_a_step(metrics):
    metrics.on_step(STEP)
    metrics.on_step(replace(STEP, num_running=1, num_waiting=0, kv_blocks_held=50))
    assert value(metrics, "vllm:num_requests_running") == 1
    assert value(metrics, "vllm:num_requests_waiting") == 0
    assert value(metrics, "vllm:kv_cache_usage_perc") == 0.5
    assert value(metrics, "argosy_kv_blocks_cached") == 10


def test_work_of_steps_adds_up(metrics):
    metrics.on_step(STEP)
    metrics.on_step(STEP)
    expected = {
        "vllm:generation_tokens_total": 6, "vllm:num_preemptions_total": 2, "vllm:prefix_cache_queries_total": 74,
        "vllm:prefix_cache_hits_total": 32, "vllm:iteration_tokens_total_sum": 80, "vllm:iteration_tokens_total_count": 2,
        "vllm:inter_token_latency_seconds_count": 4, "vllm:inter_token_latency_seconds_sum": 0.46,
        "argosy_step_duration_seconds_sum": 0.04,
    }  # fmt: skip
    assert {name: value(metrics, name) for name in expected} == pytest.approx(expected)
    assert value(metrics, "argosy_step_tokens_total", kind="prefill") == 74
    assert value(metrics, "argosy_step_tokens_total", kind="decode") == 6


def test_an_empty_step_is_not_an_iteration(metrics):
    metrics.on_step(replace(STEP, num_tokens=0, num_prefill_tokens=0, kv_blocks_total=0))
    assert value(metrics, "vllm:iteration_tokens_total_count") == 0
    assert value(metrics, "vllm:kv_cache_usage_perc") == 0


def test_a_finished_request(metrics):
    metrics.on_request_finished(REQUEST)
    expected = {
        "vllm:prompt_tokens_total": 30, "vllm:prompt_tokens_cached_total": 16, "vllm:request_prompt_tokens_sum": 30,
        "vllm:request_generation_tokens_sum": 12, "vllm:request_prefill_kv_computed_tokens_sum": 14,
        "vllm:request_params_n_sum": 2, "vllm:request_params_max_tokens_sum": 100,
        "vllm:time_to_first_token_seconds_sum": 0.4, "vllm:request_time_per_output_token_seconds_sum": 0.3,
        "vllm:e2e_request_latency_seconds_sum": 1.9, "vllm:request_queue_time_seconds_sum": 0.1,
        "vllm:request_inference_time_seconds_sum": 1.8, "vllm:request_prefill_time_seconds_sum": 0.3,
        "vllm:request_decode_time_seconds_sum": 1.5,
    }  # fmt: skip
    assert {name: value(metrics, name) for name in expected} == pytest.approx(expected)
    reasons = {
        r: value(metrics, "vllm:request_success_total", finished_reason=r) for r in ("stop", "length", "abort", "error")
    }
    assert reasons == {"stop": 1, "length": 1, "abort": 0, "error": 0}
    assert value(metrics, "vllm:prompt_tokens_by_source_total", source="local_compute") == 14
    assert value(metrics, "vllm:prompt_tokens_by_source_total", source="local_cache_hit") == 16


def test_a_request_aborted_in_the_queue_has_no_latencies_and_did_no_work(metrics):
    metrics.on_request_finished(
        replace(
            REQUEST, finish_reasons=("abort",), n=1, num_generated_tokens=0, num_cached_tokens=0, max_tokens=None,
            queue_s=None, time_to_first_token_s=None, prefill_s=None, decode_s=None, time_per_output_token_s=None,
        )
    )  # fmt: skip
    assert value(metrics, "vllm:request_success_total", finished_reason="abort") == 1
    for name in ("prompt_tokens_total", "request_prompt_tokens_count", "time_to_first_token_seconds_count",
                 "request_queue_time_seconds_count", "request_inference_time_seconds_count",
                 "request_params_max_tokens_count"):  # fmt: skip
        assert value(metrics, f"vllm:{name}") == 0, name


def test_cache_config_is_a_gauge_of_one_with_the_settings_as_labels(metrics):
    assert value(metrics, "vllm:cache_config_info", block_size="16", num_gpu_blocks="100") == 1


@pytest.mark.parametrize(
    ("name", "some"),
    [
        ("time_to_first_token_seconds", ("0.001", "0.06", "2560.0")),
        ("inter_token_latency_seconds", ("0.01", "0.075", "80.0")),
        ("e2e_request_latency_seconds", ("0.3", "7680.0")),
        ("request_prompt_tokens", ("1.0", "500.0", "2000.0")),
        ("iteration_tokens_total", ("8.0", "16384.0")),
    ],
)
def test_buckets(metrics, name, some):
    for edge in some:
        assert value(metrics, f"vllm:{name}_bucket", le=edge) == 0


@pytest.mark.parametrize(("limit", "last"), [(1, 1), (3, 2), (512, 500), (2000, 2000), (2048, 2000), (1_000_000, 1_000_000)])
def test_token_buckets_end_at_the_longest_sequence(limit, last):
    buckets = one_two_five_buckets(limit)
    assert buckets[-1] == last
    assert list(buckets) == sorted(set(buckets))


def test_two_engines_do_not_share_numbers():
    first, second = (EngineMetrics("m", max_model_len=16) for _ in range(2))
    first.on_step(STEP)
    assert value(second, "vllm:generation_tokens_total") == 0


def test_http_requests(metrics):
    http = HttpMetrics(metrics.registry, version="1.2")
    for _ in range(3):
        http.started()
    http.finished("POST", "/v1/x", 200, 0.5)
    http.finished("POST", "/v1/x", 499, 0.25)
    found = samples(metrics)
    assert found[("argosy_http_requests_in_flight",)] == 1
    assert found[("argosy_http_client_disconnects_total",)] == 1
    assert found["argosy_http_requests_total", ("method", "POST"), ("route", "/v1/x"), ("status", "499")] == 1
    assert found["argosy_http_request_duration_seconds_sum", ("route", "/v1/x")] == 0.75
    assert any(name == "argosy_build_info" and ("version", "1.2") in labels for name, *labels in found)
