"""Prometheus metrics of one engine and of the HTTP server in front of it.

Engine metrics carry the names, labels and buckets of vLLM (prefix `vllm:`), because dashboards and the Gateway API
Inference Extension read those; ours have the prefix `argosy_`. Every label has a bounded set of values.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder

from argosy.observe.stats import RequestStats, StepStats

TTFT_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
TPOT_BUCKETS_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_BUCKETS_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0,
    7680.0,
)  # fmt: skip
STEP_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
STEP_TOKENS_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
N_BUCKETS = (1, 2, 5, 10, 20)
FINISH_REASONS = ("stop", "length", "abort", "error")


def one_two_five_buckets(limit: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50, … up to `limit` inclusive."""
    buckets: list[int] = []
    scale = 1
    while scale <= limit:
        buckets += [mantissa * scale for mantissa in (1, 2, 5) if mantissa * scale <= limit]
        scale *= 10
    return tuple(buckets) or (1,)


class EngineMetrics:
    """A `StatsSink` that keeps Prometheus metrics in a registry of its own.

    Thread-safe: the engine's thread writes while the event loop renders. Label children are resolved once, so that a step
    costs a few additions.
    """

    def __init__(self, model_name: str, *, max_model_len: int, engine_index: int = 0) -> None:
        """`model_name` and `engine_index` become the labels `model_name` and `engine`; `max_model_len` bounds buckets."""
        self.registry = CollectorRegistry()
        self._labels = {"model_name": model_name, "engine": str(engine_index)}
        self._add_gauges()
        self._add_counters()
        self._add_histograms(one_two_five_buckets(max_model_len))

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, tuple(self._labels), registry=self.registry).labels(**self._labels)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, tuple(self._labels), registry=self.registry).labels(**self._labels)

    def _counter_by(self, name: str, text: str, label: str, values: Sequence[str]) -> dict[str, Counter]:
        family = Counter(name, text, (*self._labels, label), registry=self.registry)
        return {value: family.labels(**self._labels, **{label: value}) for value in values}

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        family = Histogram(name, text, tuple(self._labels), registry=self.registry, buckets=buckets)
        return family.labels(**self._labels)

    def _add_gauges(self) -> None:
        self._running = self._gauge("vllm:num_requests_running", "Sequences running.")
        self._waiting = self._gauge("vllm:num_requests_waiting", "Sequences waiting to run.")
        self._kv_usage = self._gauge("vllm:kv_cache_usage_perc", "Part of the KV blocks held by sequences, 0 to 1.")
        self._kv_cached = self._gauge("argosy_kv_blocks_cached", "KV blocks held by the prefix cache alone.")

    def _add_counters(self) -> None:
        self._prompt = self._counter("vllm:prompt_tokens", "Prompt tokens of finished requests, cached ones included.")
        self._generated = self._counter("vllm:generation_tokens", "Tokens generated.")
        self._prompt_cached = self._counter("vllm:prompt_tokens_cached", "Prompt tokens found in the prefix cache.")
        self._prompt_by_source = self._counter_by(
            "vllm:prompt_tokens_by_source", "Prompt tokens by source.", "source", ("local_compute", "local_cache_hit")
        )
        self._prefix_queries = self._counter("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache.")
        self._prefix_hits = self._counter("vllm:prefix_cache_hits", "Tokens found in the prefix cache.")
        self._preemptions = self._counter("vllm:num_preemptions", "Preemptions.")
        self._success = self._counter_by(
            "vllm:request_success", "Sequences finished, by reason.", "finished_reason", FINISH_REASONS
        )
        self._step_tokens = self._counter_by(
            "argosy_step_tokens", "Tokens computed, by kind.", "kind", ("prefill", "decode")
        )

    def _add_histograms(self, token_buckets: Sequence[int]) -> None:
        def seconds(name: str, text: str, buckets: Sequence[float] = REQUEST_BUCKETS_S) -> Histogram:
            return self._histogram(f"vllm:{name}_seconds", text, buckets)

        self._ttft = seconds("time_to_first_token", "Arrival to first token.", TTFT_BUCKETS_S)
        self._itl = seconds("inter_token_latency", "Between two tokens of a sequence.", TPOT_BUCKETS_S)
        self._tpot = seconds("request_time_per_output_token", "Mean time per token after the first.", TPOT_BUCKETS_S)
        self._e2e = seconds("e2e_request_latency", "Arrival to last token.")
        self._queue = seconds("request_queue_time", "Arrival to first scheduling.")
        self._inference = seconds("request_inference_time", "First scheduling to last token.")
        self._prefill = seconds("request_prefill_time", "First scheduling to first token.")
        self._decode = seconds("request_decode_time", "First token to last token.")
        self._prompt_size = self._histogram("vllm:request_prompt_tokens", "Prompt length.", token_buckets)
        self._output_size = self._histogram("vllm:request_generation_tokens", "Tokens generated.", token_buckets)
        self._computed_size = self._histogram(
            "vllm:request_prefill_kv_computed_tokens", "Prompt tokens not found in the cache.", token_buckets
        )
        self._n = self._histogram("vllm:request_params_n", "Parameter n.", N_BUCKETS)
        self._max_tokens = self._histogram("vllm:request_params_max_tokens", "Parameter max_tokens.", token_buckets)
        self._iteration = self._histogram("vllm:iteration_tokens_total", "Tokens computed per step.", STEP_TOKENS_BUCKETS)
        self._step_duration = self._histogram("argosy_step_duration_seconds", "Duration of a step.", STEP_BUCKETS_S)

    def set_cache_config(self, **settings: str | int | float | bool) -> None:
        """Publish `vllm:cache_config_info` (value 1) with one label per setting; once per engine.

        `block_size` and `num_gpu_blocks` are read by gateways; the latter is the pool's size on any device.
        """
        labels = {**self._labels, **{name: str(value) for name, value in settings.items()}}
        family = Gauge("vllm:cache_config_info", "Settings of the KV cache.", tuple(labels), registry=self.registry)
        family.labels(**labels).set(1)

    def on_step(self, stats: StepStats) -> None:
        """Take over the state after a step and count what happened in it."""
        self._running.set(stats.num_running)
        self._waiting.set(stats.num_waiting)
        self._kv_usage.set(stats.kv_blocks_held / stats.kv_blocks_total if stats.kv_blocks_total else 0.0)
        self._kv_cached.set(stats.kv_blocks_cached)
        self._generated.inc(stats.num_generated_tokens)
        self._preemptions.inc(stats.num_preemptions)
        self._prefix_queries.inc(stats.num_prefix_queries)
        self._prefix_hits.inc(stats.num_prefix_hits)
        if stats.num_tokens:
            self._step_tokens["prefill"].inc(stats.num_prefill_tokens)
            self._step_tokens["decode"].inc(stats.num_tokens - stats.num_prefill_tokens)
            self._iteration.observe(stats.num_tokens)
            self._step_duration.observe(stats.duration_s)
        for latency_s in stats.inter_token_latencies_s:
            self._itl.observe(latency_s)

    def on_request_finished(self, stats: RequestStats) -> None:
        """Count a finished request. Its prompt counts only if it was scheduled at all."""
        for reason in stats.finish_reasons:
            self._success[reason].inc()
        self._e2e.observe(stats.e2e_s)
        self._n.observe(stats.n)
        self._output_size.observe(stats.num_generated_tokens)
        if stats.max_tokens is not None:
            self._max_tokens.observe(stats.max_tokens)
        if stats.queue_s is not None:
            computed = stats.num_prompt_tokens - stats.num_cached_tokens
            self._prompt.inc(stats.num_prompt_tokens)
            self._prompt_cached.inc(stats.num_cached_tokens)
            self._prompt_by_source["local_compute"].inc(computed)
            self._prompt_by_source["local_cache_hit"].inc(stats.num_cached_tokens)
            self._prompt_size.observe(stats.num_prompt_tokens)
            self._computed_size.observe(computed)
        inference_s = None if stats.prefill_s is None else stats.prefill_s + (stats.decode_s or 0.0)
        for histogram, value_s in (
            (self._ttft, stats.time_to_first_token_s),
            (self._tpot, stats.time_per_output_token_s),
            (self._queue, stats.queue_s),
            (self._prefill, stats.prefill_s),
            (self._decode, stats.decode_s),
            (self._inference, inference_s),
        ):
            if value_s is not None:
                histogram.observe(value_s)


class HttpMetrics:
    """What the HTTP server counts, in the registry of its engine. `route` is a path template, never a raw path."""

    def __init__(self, registry: CollectorRegistry, *, version: str) -> None:
        build = Gauge("argosy_build_info", "Version of this server.", ("version", "python"), registry=registry)
        build.labels(version=version, python=platform.python_version()).set(1)
        self._requests = Counter(
            "argosy_http_requests", "HTTP requests answered.", ("method", "route", "status"), registry=registry
        )
        self._duration = Histogram(
            "argosy_http_request_duration_seconds",
            "From the request's head to the response's last byte.",
            ("route",),
            registry=registry,
            buckets=TTFT_BUCKETS_S,
        )
        self._in_flight = Gauge("argosy_http_requests_in_flight", "HTTP requests being answered.", registry=registry)
        self._disconnects = Counter(
            "argosy_http_client_disconnects", "Requests whose client left before the answer.", registry=registry
        )

    def started(self) -> None:
        """A request's head has arrived."""
        self._in_flight.inc()

    def finished(self, method: str, route: str, status: int, duration_s: float) -> None:
        """A request is over; status 499 means that its client left."""
        self._in_flight.dec()
        self._requests.labels(method=method, route=route, status=str(status)).inc()
        self._duration.labels(route=route).observe(duration_s)
        if status == 499:
            self._disconnects.inc()


def render(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """The exposition of all metrics and its content type, in the format the `Accept` header asks for."""
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type
