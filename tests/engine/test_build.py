from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from argosy.engine import build
from argosy.engine.args import EngineArgs
from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.llm import LLM
from argosy.errors import ConfigError
from argosy.models.architectures.decoder import build_decoder
from argosy.models.config import ModelConfig, RopeConfig
from argosy.models.loaded import LoadedModel

CONFIG = ModelConfig("llama", 300, 32, 48, 2, 4, 2, 8, 256, 1e-5, True, RopeConfig(), (None, None), attention_scale=8**-0.5)


@pytest.fixture
def loads(monkeypatch, byte_tokenizer) -> list[dict]:
    """Replaces loading by a small random decoder, and keeps what was asked for."""
    asked: list[dict] = []

    def load_model(name, **options):
        assert callable(options.pop("keep_stored"))
        asked.append({"name": name, **options})
        limit = options["max_positions"]
        if limit is not None and limit > CONFIG.max_positions:
            raise ConfigError(f"max_positions must be within [1, 256] for {name}, got {limit}", param="max_positions")
        dtype = torch.bfloat16 if options["dtype"] == "bfloat16" else torch.float32
        decoder = build_decoder(CONFIG, dtype=dtype, device="cpu", max_positions=limit)
        generator = torch.Generator().manual_seed(0)
        for parameter in decoder.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
        suggested = {"temperature": 0.0}
        path = Path("toy.gguf")
        return LoadedModel(
            name, path, CONFIG, byte_tokenizer, decoder, 1, frozenset({256}), suggested, decoder.max_positions
        )

    monkeypatch.setattr(build, "load_model", load_model)
    return asked


def test_every_setting_arrives_where_it_is_used(loads, tmp_path):
    progress = object()
    args = EngineArgs(
        "toy",
        dtype="bfloat16",
        kv_cache_dtype="float16",
        device="cpu",
        max_model_len=96,
        max_num_seqs=7,
        max_num_batched_tokens=64,
        block_size=8,
        kv_cache_memory_bytes=8 * 64 * 2 * 30,
        enable_prefix_caching=False,
        max_waiting=5,
        deterministic=True,
        chat_template="{{ messages }}",
        offline=True,
        cache_dir=tmp_path,
    )
    parts = build.build_parts(args, progress=progress)
    assert loads == [
        {
            "name": "toy",
            "dtype": "bfloat16",
            "device": "cpu",
            "cache_dir": tmp_path,
            "offline": True,
            "progress": progress,
            "chat_template": "{{ messages }}",
            "max_positions": 96,
        }
    ]
    info = parts.info
    assert (info.model_name, info.model_path, info.dtype, info.kv_dtype) == ("toy", "toy.gguf", "bfloat16", "float16")
    assert (info.num_blocks, info.block_size, info.max_model_len, info.logits_width) == (30, 8, 96, 300)
    assert (info.max_num_seqs, info.max_num_batched_tokens, info.deterministic) == (7, 64, True)
    assert (info.enable_prefix_caching, info.device, info.default_sampling) == (False, "cpu", {"temperature": 0.0})
    assert parts.step_loop.scheduler.config == args.scheduler_config(num_blocks=30, max_model_len=96, kv_dtype="float16")
    assert parts.admission.eos_token_ids == {256}
    assert (info.max_waiting, info.follows_priority) == (5, False)
    parts.step_loop.close()


def test_torch_uses_as_many_threads_as_asked(loads):
    before = torch.get_num_threads()
    try:
        build.build_parts(EngineArgs("toy", threads=before + 1, num_blocks_override=4)).step_loop.close()
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_the_models_own_length_is_the_default_and_the_pool_caps_it_aloud(loads, caplog):
    caplog.set_level(logging.INFO, "argosy.engine.build")
    assert build.build_parts(EngineArgs("toy")).info.max_model_len == 256
    assert "max_model_len is" not in caplog.text
    assert build.build_parts(EngineArgs("toy", num_blocks_override=4)).info.max_model_len == 64
    assert "max_model_len is 64 instead of 256" in caplog.text


def test_a_length_beyond_the_model_is_refused_by_the_name_of_the_setting(loads):
    with pytest.raises(ConfigError, match="max_model_len must be within") as caught:
        build.build_parts(EngineArgs("toy", max_model_len=257))
    assert caught.value.param == "max_model_len"


def generate(args: EngineArgs, prompts, params) -> list:
    with LLM.from_parts(build.build_parts(args)) as llm:
        return [[c.token_ids for c in o.completions] for o in llm.generate(prompts, params)]


def test_the_engines_seed_makes_unseeded_sampling_reproducible(loads):
    params = SamplingParams(n=3, max_tokens=12)
    args = EngineArgs("toy", num_blocks_override=64, seed=5)
    first = generate(args, ["one", "two"], params)
    assert generate(args, ["one", "two"], params) == first
    assert generate(replace(args, seed=6), ["one", "two"], params) != first
    assert generate(replace(args, seed=None), ["one"], params) != generate(replace(args, seed=None), ["one"], params)


@pytest.mark.parametrize("num_blocks", [400, 14])
def test_seeded_sampling_is_the_same_alone_in_a_batch_and_after_preemption(loads, num_blocks):
    prompts = [bytes(97 + (i * 7 + j) % 26 for j in range(3 + i % 9)).decode() for i in range(32)]
    params = [SamplingParams(seed=i, temperature=1.5, top_p=0.95, max_tokens=20) for i in range(32)]
    args = EngineArgs("toy", num_blocks_override=num_blocks, block_size=4, max_num_seqs=32, max_model_len=40, watermark=0.0)
    with LLM.from_parts(build.build_parts(args)) as llm:
        batch = [o.completions[0].token_ids for o in llm.generate(prompts, params)]
        scheduler = llm._parts.step_loop.scheduler
        assert (scheduler.num_preemptions > 0) == (num_blocks == 14)
        for i in (0, 13, 31):
            (alone,) = llm.generate(prompts[i], params[i])
            assert alone.completions[0].token_ids == batch[i]


def test_deterministic_greedy_does_not_depend_on_company_chunks_or_cache(loads):
    prompt = "the same prompt, which is longer than two chunks of sixteen tokens"
    others = ["short", "another prompt of some length", "x" * 100]
    params = SamplingParams(temperature=0.0, max_tokens=30, logprobs=2, ignore_eos=True)

    def logprobs(args: EngineArgs, prompts: list[str]):
        with LLM.from_parts(build.build_parts(args)) as llm:
            llm.generate(prompts[:1], params)
            return llm.generate(prompts, params)[0].completions[0].logprobs

    args = EngineArgs("toy", num_blocks_override=200, deterministic=True)
    alone = logprobs(replace(args, enable_prefix_caching=False), [prompt])
    assert logprobs(args, [prompt, *others]) == alone
    assert logprobs(replace(args, max_num_batched_tokens=16, max_num_seqs=4), [prompt, *others]) == alone


@pytest.mark.parametrize("prompt_length", [62, 63])
def test_prompts_at_the_edge_of_the_context(loads, prompt_length):
    args = EngineArgs("toy", max_model_len=64, num_blocks_override=8)
    (output,) = generate(args, [[1] * prompt_length], SamplingParams(ignore_eos=True))
    assert [len(ids) for ids in output] == [64 - prompt_length]
