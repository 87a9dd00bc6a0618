import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

from argosy.fleet.gateway.engine_metrics import FIELD_OF, MAX_SAMPLES, EngineReport, parse_engine_metrics
from argosy.observe.metrics import EngineMetrics
from argosy.observe.stats import StepStats

VLLM = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a/b"} 3.0
vllm:num_requests_running{engine="1",model_name="a/b"} 4.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="a/b"} 1.0
vllm:num_requests_waiting{engine="1",model_name="a/b"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 77.0
vllm:kv_cache_usage_perc{engine="0",model_name="a/b"} 0.2
vllm:kv_cache_usage_perc{engine="1",model_name="a/b"} 0.4
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000",sliding_window="None"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="1000",sliding_window="None"} 1.0
vllm:lora_requests_info{max_lora="8",running_lora_adapters="old",waiting_lora_adapters=""} 1.7e+09
vllm:lora_requests_info{max_lora="8",running_lora_adapters="x,y",waiting_lora_adapters="z"} 1.8e+09
vllm:e2e_request_latency_seconds_bucket{le="0.3"} 12.0
"""


def test_vllm_with_two_ranks_and_adapters():
    report = parse_engine_metrics(VLLM)
    assert report == EngineReport(
        num_waiting=1,
        num_running=7,
        kv_used_fraction=pytest.approx(0.3),
        block_tokens=16,
        num_blocks=2000,
        adapters=frozenset({"x", "y", "z"}),
        max_adapters=8,
    )
    load = report.load(5.0)
    assert (load.at_s, load.num_running, load.num_waiting, load.active_tokens) == (5.0, 7, 1, 9600)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            b'sglang:num_queue_reqs{model_name="m"} 5.0\nsglang:num_running_reqs{model_name="m"} 6.0\n'
            b'sglang:token_usage{model_name="m"} 0.28\nsglang:num_used_tokens{model_name="m"} 123859.0\n'
            b'sglang:cache_config_info{page_size="1",num_pages="400000"} 1\nsglang:num_grammar_queue_reqs 9\n',
            EngineReport(5, 6, 0.28, 123859, 1, 400_000),
        ),
        (
            b"llamacpp:requests_processing 2\nllamacpp:requests_deferred 3\nllamacpp:kv_cache_usage_ratio 0.75\n",
            EngineReport(3, 2, 0.75),
        ),
        (b"tgi_queue_size 4\ntgi_batch_current_size 8\ntgi_batch_current_max_tokens 900\n", EngineReport(4, 8)),
        (
            b"trtllm_num_requests_waiting 1\ntrtllm_num_requests_running 2\ntrtllm_kv_cache_utilization 0.5\n"
            b"trtllm_kv_cache_tokens_per_block 32\ntrtllm_kv_cache_max_blocks 10\n",
            EngineReport(1, 2, 0.5, None, 32, 10),
        ),
        (b"vllm:num_requests_running 1 1700000000000\r\nvllm:num_requests_waiting\t2\r\n", EngineReport(2, 1)),
        (b"vllm:num_requests_running{} 1", EngineReport(None, 1)),
    ],
)
def test_every_engine_in_its_own_words(text, expected):
    assert parse_engine_metrics(text) == expected


def test_our_own_engine_is_read_as_it_speaks():
    metrics = EngineMetrics("m", max_model_len=4096)
    metrics.set_cache_config(block_size=16, num_gpu_blocks=200)
    fields = dict.fromkeys(StepStats.__dataclass_fields__, 0)
    fields |= {"num_running": 3, "num_waiting": 4, "kv_blocks_held": 50, "kv_blocks_total": 200}
    fields["inter_token_latencies_s"] = ()
    metrics.on_step(StepStats(**fields))
    report = parse_engine_metrics(generate_latest(metrics.registry))
    assert report == EngineReport(4, 3, 0.25, block_tokens=16, num_blocks=200)
    assert report.kv_capacity_tokens == 3200


def test_labels_may_contain_anything():
    text = rb'vllm:num_requests_running{model_name="a\"b} 9\\n\n",engine="0"} 3' + b"\n"
    assert parse_engine_metrics(text).num_running == 3
    lora = rb'vllm:lora_requests_info{running_lora_adapters="q\"u,\\o",max_lora="x"} 1' + b"\n"
    report = parse_engine_metrics(lora)
    assert report.adapters == {'q"u', "\\o"}
    assert report.max_adapters is None
    lines = VLLM.splitlines(keepends=True)
    assert parse_engine_metrics(b"".join(reversed(lines))) == parse_engine_metrics(VLLM), "the latest of them counts"


@pytest.mark.parametrize("value", [b"NaN", b"+Inf", b"-1", b"abc", b"1e999"])
def test_values_that_make_no_sense_are_counted_and_not_used(value):
    report = parse_engine_metrics(b"vllm:num_requests_running " + value + b"\nvllm:num_requests_waiting 2\n")
    assert (report.num_running, report.num_waiting, report.num_ignored) == (None, 2, 1)
    assert parse_engine_metrics(b"vllm:kv_cache_usage_perc 37\n").kv_used_fraction is None
    assert parse_engine_metrics(b"vllm:kv_cache_usage_perc 1.0000000002\n").kv_used_fraction == 1.0


def test_what_is_not_there_is_not_made_up():
    report = parse_engine_metrics(
        b"process_cpu_seconds_total 3\nxvllm:num_requests_running 4\nvllm:num_requests_runningx 4\n"
    )
    assert report == EngineReport()
    assert not report.says_load
    assert report.kv_capacity_tokens is None


def test_a_page_without_end_is_read_in_part():
    page = b"vllm:num_requests_running 1\n" * (2 * MAX_SAMPLES)
    assert parse_engine_metrics(page).num_running == MAX_SAMPLES
    assert parse_engine_metrics(b"vllm:num_requests_running{" + b'"' * 200_001 + b"} 1\n") == EngineReport()


@given(st.binary(max_size=300), st.sampled_from(sorted(FIELD_OF)))
def test_nothing_it_is_sent_makes_it_raise(noise, name):
    parse_engine_metrics(noise)
    parse_engine_metrics(name + noise)
    parse_engine_metrics(name + b'{a="' + noise + b'"} 1\n')
