from __future__ import annotations

import pytest

from argosy.engine.args import EngineArgs
from argosy.engine.kv_sizing import block_bytes, choose_num_blocks, parse_available_bytes
from argosy.errors import ConfigError
from argosy.models.config import ModelConfig, RopeConfig

# K and V x 2 layers x 3 heads x 8 dimensions x 4 bytes = 384 bytes a token.
CONFIG = ModelConfig("llama", 97, 24, 48, 2, 6, 3, 8, 256, 1e-5, True, RopeConfig(), (None, None))
GIB = 2**30


def choose(available_bytes: int = 10 * GIB, kv_dtype: str = "float32", max_model_len: int = 256, **settings) -> int:
    args = EngineArgs("m", **settings)
    return choose_num_blocks(args, CONFIG, kv_dtype=kv_dtype, max_model_len=max_model_len, available_bytes=available_bytes)


def test_bytes_of_a_block_follow_its_size_and_element_type():
    assert block_bytes(CONFIG, 16, "float32") == 16 * 384
    assert block_bytes(CONFIG, 4, "bfloat16") == 4 * 192


def test_an_override_is_taken_as_it_is():
    assert choose(num_blocks_override=3, available_bytes=0) == 3


@pytest.mark.parametrize(("size", "blocks"), [(16 * 384, 1), (10 * 16 * 384 + 1, 10), (16 * 384 * 10_000, 10_000)])
def test_a_given_size_is_filled_and_not_exceeded(size, blocks):
    assert choose(kv_cache_memory_bytes=size, available_bytes=0) == blocks


def test_by_default_no_more_than_all_sequences_can_fill():
    assert choose(max_num_seqs=4, max_model_len=250) == 4 * 16


def test_by_default_a_quarter_of_what_a_cpu_machine_has():
    assert choose(available_bytes=4 * 100 * 16 * 384) == 100


def test_by_default_no_more_than_2_gib_on_a_cpu():
    assert choose(available_bytes=10_000 * GIB, max_num_seqs=512, max_model_len=10**6) == 2 * GIB // (16 * 384)


def test_by_default_most_of_what_is_free_on_a_device():
    assert choose(device="cuda", available_bytes=1000 * 16 * 384) == 850


@pytest.mark.parametrize("settings", [{"kv_cache_memory_bytes": 16 * 384 - 1}, {"available_bytes": 4 * 16 * 384 - 4}])
def test_less_than_one_block_is_refused_with_both_numbers(settings):
    with pytest.raises(ConfigError, match=r"6143 bytes, but one KV block of 16 tokens takes 6144"):
        choose(**settings)


def test_available_memory_is_read_in_kib():
    assert parse_available_bytes("MemTotal: 100 kB\nMemAvailable:   7 kB\n") == 7168
    with pytest.raises(ConfigError, match="set kv_cache_memory_bytes"):
        parse_available_bytes("MemTotal: 100 kB\n")
