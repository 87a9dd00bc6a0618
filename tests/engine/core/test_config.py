"""Settings out of range are refused by name."""

import pytest

from argosy.engine.core.config import SchedulerConfig
from argosy.errors import ConfigError


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("num_blocks", 0),
        ("block_size", 0),
        ("max_model_len", 1),
        ("max_num_seqs", 0),
        ("max_num_seqs", 65),
        ("max_num_batched_tokens", 0),
        ("max_waiting", 0),
        ("prefill_share", 0.0),
        ("prefill_share", 1.01),
        ("watermark", -0.1),
        ("watermark", 1.0),
        ("max_preemptions", -1),
        ("chunk_alignment", -1),
        ("chunk_alignment", 65),
        ("scheduling_policy", "lifo"),
        ("eviction_policy", "random"),
    ],
)
def test_a_setting_out_of_range_is_named(setting, value):
    fields = {"num_blocks": 8, "max_num_batched_tokens": 64, setting: value}
    with pytest.raises(ConfigError, match=setting):
        SchedulerConfig(**fields)


def test_a_pool_that_holds_no_sequence_is_refused():
    with pytest.raises(ConfigError, match="cannot hold a sequence of 2 tokens"):
        SchedulerConfig(num_blocks=1, block_size=1)


def test_the_longest_sequence_is_capped_by_model_and_pool():
    assert SchedulerConfig(num_blocks=4, block_size=16, max_model_len=128).effective_max_len == 64
    assert SchedulerConfig(num_blocks=4, block_size=16, max_model_len=50).effective_max_len == 50
