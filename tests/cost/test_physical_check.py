import dataclasses

import pytest

from argosy.cost.catalogue import find_device, find_model
from argosy.cost.deployment import Deployment
from argosy.cost.device import Precision
from argosy.cost.parallel import ParallelPlan, Precisions
from argosy.cost.physical_check import ServedLatency, check_possible, decode_bound_s
from argosy.errors import ConfigError

H100 = find_device("H100 SXM")
FP8 = Precisions(weights=Precision.FP8, compute=Precision.FP8, kv=Precision.FP8)
LLAMA = Deployment(find_model("Llama-3.1-70B"), ParallelPlan(tensor=4), FP8)
POSSIBLE = ServedLatency(1024, 1024, 16, ttft_s=0.12, tpot_s=0.0132)


def test_a_plausible_measurement_passes():
    check_possible(POSSIBLE, LLAMA, H100)


def test_decode_is_bound_by_weights_and_kv_by_hand():
    # 70.55e9 parameters less the embedding table at one byte, the head at two; fp8 KV of 163840 bytes a token; 4 devices.
    head = 128256 * 8192
    weights = (70.554e9 - 2 * head + 2 * head) / 4
    decoding = POSSIBLE.decoding
    kv = decoding * 1024 * 163840 / 4
    assert decoding == pytest.approx(16 * 1023 * 0.0132 / (0.12 + 1023 * 0.0132))
    assert decode_bound_s(POSSIBLE, LLAMA, H100) == pytest.approx((weights + kv) / 3.35e12, rel=5e-3)


@pytest.mark.parametrize(
    ("changes", "bound"),
    [
        ({"tpot_s": 0.004}, "TPOT of 4 ms is below .* reading weights and the KV of 15.5 requests"),
        ({"ttft_s": 0.015}, "TTFT of 15 ms is below .* one prompt at peak"),
        ({"output_tokens": 2, "concurrency": 64}, "request time of .* 64 requests at peak"),
    ],
)
def test_what_undercuts_a_bound_is_refused_by_name(changes, bound):
    with pytest.raises(ConfigError, match=bound):
        check_possible(dataclasses.replace(POSSIBLE, **changes), LLAMA, H100)


def test_weights_that_do_not_fit():
    one = Deployment(LLAMA.spec, ParallelPlan(), Precisions())
    with pytest.raises(ConfigError, match=r"weights of 141\.1 GB a device do not fit in 85\.9 GB"):
        check_possible(POSSIBLE, one, H100)


def test_only_the_experts_of_one_token_must_be_read():
    deployment = Deployment(find_model("gpt-oss-120b"), ParallelPlan(tensor=2))
    few = dataclasses.replace(POSSIBLE, concurrency=1)
    many = dataclasses.replace(POSSIBLE, concurrency=8)
    kv_alone = decode_bound_s(many, deployment, H100) - decode_bound_s(few, deployment, H100)
    assert 0 < kv_alone < 0.2 * decode_bound_s(few, deployment, H100)
