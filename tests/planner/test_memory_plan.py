import json

import pytest

from argosy.cost.device import Precision
from argosy.cost.formats import WeightFormat
from argosy.errors import ConfigError
from argosy.planner.memory_plan import plan_memory


def test_weights_and_kv_of_70_billion_over_two_devices():
    answer = plan_memory("Llama-3.1-70B", "H100 SXM", tokens=4096, sequences=8, tensor=2)
    assert answer.fits
    assert answer.breakdown.weight_bytes == pytest.approx(70.554e9, rel=1e-3)
    assert answer.kv_token_bytes == 160 * 1024
    assert answer.breakdown.kv_bytes == 8 * 4096 * 160 * 1024
    assert answer.sequence_bytes == 4096 * 160 * 1024
    assert answer.admissible >= 8


def test_what_does_not_fit_says_by_how_much():
    answer = plan_memory("Llama-3.1-70B", "H100 SXM", tokens=4096)
    assert not answer.fits
    assert "out of memory by" in answer.why_not
    assert answer.admissible == 0
    assert answer.breakdown.free_bytes < 0


def test_windows_cap_what_is_kept():
    """Half of gpt-oss-120b's 36 layers keep 128 tokens: 36 + 36 x 128/131072 KiB per token in bf16."""
    answer = plan_memory("gpt-oss-120b", "B200 SXM", tokens=131072, weights=WeightFormat.FP4)
    assert answer.sequence_bytes == pytest.approx((36 + 36 * 128 / 131072) * 1024 * 131072)


def test_latent_kv_is_the_same_on_every_tensor_rank():
    one, eight = (
        plan_memory("DeepSeek-V3", "H200 SXM", tokens=1024, tensor=tensor, weights=WeightFormat.FP8) for tensor in (1, 8)
    )
    assert one.kv_token_bytes == eight.kv_token_bytes
    assert eight.breakdown.weight_bytes < one.breakdown.weight_bytes


def test_formats_and_drafts_change_their_parts():
    plain = plan_memory("Llama-3.1-8B", "H100 SXM", tokens=1024)
    small = plan_memory("Llama-3.1-8B", "H100 SXM", tokens=1024, weights=WeightFormat.FP8, kv=Precision.FP8)
    drafted = plan_memory("Llama-3.1-8B", "H100 SXM", tokens=1024, draft="Llama-3.2-1B")
    assert small.kv_token_bytes == plain.kv_token_bytes / 2
    assert small.breakdown.weight_bytes < plain.breakdown.weight_bytes
    assert drafted.breakdown.draft_weight_bytes == pytest.approx(1.236e9 * 2, rel=0.01)
    assert drafted.kv_token_bytes == plain.kv_token_bytes + 32 * 1024
    json.dumps(drafted.to_json())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tokens": 0}, "tokens"),
        ({"tokens": 10, "sequences": 0}, "sequences"),
        ({"tokens": 10, "tensor": 3}, "tensor parallelism 3"),
        ({"tokens": 10, "pipeline": 99}, "99 pipeline stages"),
        ({"tokens": 10, "weights": WeightFormat.FP4}, "fp4"),
        ({"tokens": 10, "chunk_tokens": 0}, "chunk_tokens"),
        ({"tokens": float("nan")}, "tokens"),
    ],
)
def test_nonsense_is_refused(arguments, words: str):
    with pytest.raises(ConfigError, match=words):
        plan_memory("Llama-3.1-8B", "H100 SXM", **arguments)


def test_unknown_devices_are_refused_with_near_ones():
    with pytest.raises(ConfigError, match="H100"):
        plan_memory("Llama-3.1-8B", "H100", tokens=10)
