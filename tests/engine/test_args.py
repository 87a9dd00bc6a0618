from __future__ import annotations

import pytest

from argosy.engine.args import EngineArgs
from argosy.errors import ConfigError


def test_what_is_given_is_kept_and_the_rest_has_defaults():
    args = EngineArgs.from_mapping({"model": "m", "max_num_seqs": 3, "seed": 9})
    assert (args.model, args.max_num_seqs, args.seed, args.block_size, args.max_waiting) == ("m", 3, 9, 16, 1024)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", ""),
        ("threads", 0),
        ("threads", 4097),
        ("max_model_len", 2**31),
        ("max_num_seqs", 2**31),
        ("max_num_batched_tokens", 2**31),
        ("max_waiting", 10**30),
        ("num_blocks_override", 10**30),
        ("block_size", 10**30),
        ("max_preemptions", 10**30),
        ("kv_cache_memory_bytes", 2**63),
        ("threads", 10**20),
        ("max_model_len", 1),
        ("max_model_len", -5),
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", 0),
        ("block_size", 0),
        ("kv_cache_memory_bytes", 0),
        ("num_blocks_override", 0),
        ("prefill_share", 0.0),
        ("prefill_share", 1.1),
        ("watermark", 1.0),
        ("watermark", -0.1),
        ("max_preemptions", -1),
        ("max_waiting", 0),
        ("scheduling_policy", "random"),
        ("eviction_policy", "random"),
        ("kv_cache_dtype", "int3"),
        ("seed", 2**64),
        ("seed", -(2**63) - 1),
    ],
)
def test_a_value_out_of_range_is_refused_by_name_before_any_model_is_looked_for(name, value):
    with pytest.raises(ConfigError, match=name):
        EngineArgs.from_mapping({"model": "m"} | {name: value})


def test_a_budget_below_the_number_of_sequences_or_the_deterministic_chunk_is_refused():
    with pytest.raises(ConfigError, match="max_num_seqs"):
        EngineArgs("m", max_num_seqs=64, max_num_batched_tokens=32)
    with pytest.raises(ConfigError, match="max_num_batched_tokens must be at least 16 in deterministic mode"):
        EngineArgs("m", max_num_seqs=4, max_num_batched_tokens=8, deterministic=True)


def test_two_sizes_for_one_pool_are_refused():
    with pytest.raises(ConfigError, match="not both"):
        EngineArgs("m", kv_cache_memory_bytes=2**20, num_blocks_override=4)


def test_an_unknown_setting_names_the_nearest_known_one():
    with pytest.raises(ConfigError, match="did you mean max_num_seqs"):
        EngineArgs.from_mapping({"model": "m", "max_num_seq": 4})
    with pytest.raises(ConfigError, match="known are model, dtype"):
        EngineArgs.from_mapping({"model": "m", "qqqq": 4})
    with pytest.raises(ConfigError, match="model must be named"):
        EngineArgs.from_mapping({"seed": 1})


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        ({}, 256),
        ({"device": "cuda"}, 8192),
        ({"max_num_seqs": 1000}, 1000),
        ({"max_num_batched_tokens": 100}, 100),
    ],
)
def test_the_step_budget_follows_the_device_and_covers_every_sequence(settings, tokens):
    assert EngineArgs("m", **settings).step_budget_tokens == tokens


def test_every_setting_of_the_scheduler_reaches_it():
    settings = {
        "block_size": 8,
        "max_num_seqs": 5,
        "max_num_batched_tokens": 77,
        "prefill_share": 0.25,
        "watermark": 0.125,
        "max_preemptions": 7,
        "enable_prefix_caching": False,
        "scheduling_policy": "priority",
        "eviction_policy": "size",
    }
    args = EngineArgs("m", max_waiting=10, deterministic=True, **settings)
    config = args.scheduler_config(num_blocks=9, max_model_len=50, kv_dtype="float16")
    assert {name: getattr(config, name) for name in settings} == settings
    assert (config.num_blocks, config.max_model_len, config.kv_dtype, config.chunk_alignment) == (9, 50, "float16", 16)
    assert config.max_waiting == 10 + 5


@pytest.mark.parametrize(
    ("settings", "message", "param"),
    [
        ({"executor": "kernel"}, "executor must be auto, kernels, torch, got 'kernel'", "executor"),
        ({"executor": "kernels", "device": "cuda"}, "executor kernels runs on device cpu, got 'cuda'", "executor"),
        ({"executor": "kernels", "dtype": "bfloat16"}, "so dtype must be auto, got 'bfloat16'", "dtype"),
        ({"weights": "int4"}, "weights must be auto, stored, int8, got 'int4'", "weights"),
        ({"weights": "int8"}, "set executor to kernels", "weights"),
        ({"refine_outliers": True}, "set executor to kernels", "refine_outliers"),
        ({"refine_outliers": True, "executor": "kernels", "weights": "int8"}, "rotated away", "refine_outliers"),
        ({"weights": "stored", "executor": "torch"}, "set executor to kernels", "weights"),
    ],
)
def test_executor_and_weights(settings, message, param):
    with pytest.raises(ConfigError, match=message) as caught:
        EngineArgs("m", **settings)
    assert caught.value.param == param
    EngineArgs("m", executor="kernels", weights="int8")
    EngineArgs("m", executor="kernels", refine_outliers=True)
