from dataclasses import MISSING, fields

import pytest

from argosy.engine.core.config import SchedulerConfig
from argosy.errors import ConfigError
from argosy.sim.config.engine import EngineSettings

LEFT_OPEN = {"num_blocks", "max_model_len"}


def test_the_settings_are_the_engines_own():
    own = {field.name: field.default for field in fields(SchedulerConfig) if field.name != "kv_dtype"}
    ours = {field.name: field.default for field in fields(EngineSettings)}
    assert ours.keys() == own.keys()
    for name in own.keys() - LEFT_OPEN:
        assert ours[name] == own[name], name
    assert own["num_blocks"] is MISSING


@pytest.mark.parametrize("field", [field.name for field in fields(EngineSettings)])
def test_every_setting_arrives(field):
    other = {
        "enable_prefix_caching": False,
        "scheduling_policy": "priority",
        "eviction_policy": "size",
        "prefill_share": 0.25,
        "watermark": 0.125,
        "num_blocks": 777,
        "block_size": 32,
        "max_model_len": 555,
        "max_num_seqs": 33,
        "max_num_batched_tokens": 4096,
        "max_waiting": 44,
        "max_preemptions": 7,
        "chunk_alignment": 8,
    }[field]
    config = EngineSettings(**{field: other}).scheduler_config(1000, 2000, "bf16")
    assert getattr(config, field) == other
    assert config.kv_dtype == "bf16"


def test_memory_and_model_stand_in_for_what_is_left_open():
    config = EngineSettings().scheduler_config(1000, 2000, "bf16")
    assert (config.num_blocks, config.max_model_len) == (1000, 2000)


def test_faults_are_told_before_the_pool_is_known():
    with pytest.raises(ConfigError, match="prefill_share must be within"):
        EngineSettings(prefill_share=0.0)
    with pytest.raises(ConfigError, match="num_blocks must be at least 1"):
        EngineSettings(num_blocks=-1)
