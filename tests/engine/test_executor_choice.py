"""Which executor runs a checkpoint, on real files."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize

from argosy.engine import build
from argosy.engine.args import EngineArgs
from argosy.engine.core.sampling_params import SamplingParams
from argosy.engine.executor_choice import chooses_kernels
from argosy.engine.executors.cpu_executor import CpuExecutor
from argosy.engine.executors.torch_executor import TorchExecutor
from argosy.engine.llm import LLM
from argosy.errors import ConfigError
from argosy.models.checkpoint import load_config

WIDTH, MLP_WIDTH, VOCAB, HEAD_DIM = 64, 96, 288, 16


def write_model(path: Path, matrix_type: str = "Q8_0", *, head_dim: int = HEAD_DIM) -> Path:
    """A random llama of two layers."""
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(2)
    writer.add_feed_forward_length(MLP_WIDTH)
    writer.add_head_count(WIDTH // head_dim)
    writer.add_head_count_kv(WIDTH // head_dim // 2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_eos_token_id(256)
    random = np.random.default_rng(3)

    def add(name: str, *shape: int) -> None:
        values = (random.standard_normal(shape) * 0.2 + (1.0 if len(shape) == 1 else 0.0)).astype(np.float32)
        stored_type = GGMLQuantizationType[matrix_type if len(shape) > 1 else "F32"]
        writer.add_tensor(name, quantize(values, stored_type), raw_dtype=stored_type)

    add("token_embd.weight", VOCAB, WIDTH)
    add("output_norm.weight", WIDTH)
    for layer in range(2):
        for name, shape in {
            "attn_norm": (WIDTH,),
            "ffn_norm": (WIDTH,),
            "attn_q": (WIDTH, WIDTH),
            "attn_k": (WIDTH // 2, WIDTH),
            "attn_v": (WIDTH // 2, WIDTH),
            "attn_output": (WIDTH, WIDTH),
            "ffn_gate": (MLP_WIDTH, WIDTH),
            "ffn_up": (MLP_WIDTH, WIDTH),
            "ffn_down": (WIDTH, MLP_WIDTH),
        }.items():
            add(f"blk.{layer}.{name}.weight", *shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def _byte_tokens(monkeypatch, byte_tokenizer):
    monkeypatch.setattr("argosy.models.loader.load_tokenizer", lambda *_, **__: byte_tokenizer)


@pytest.fixture
def torch_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def build_parts(path: Path, **settings):
    return build.build_parts(EngineArgs(str(path), **({"num_blocks_override": 64, "threads": 2} | settings)))


@pytest.mark.usefixtures("_byte_tokens", "torch_threads")
def test_a_quantised_file_runs_on_the_kernels_as_stored(tmp_path):
    parts = build_parts(write_model(tmp_path / "m.gguf"))
    executor = parts.step_loop._executor
    assert isinstance(executor, CpuExecutor)
    assert (executor.num_threads, executor.kv_dtype, executor.num_blocks) == (2, "float16", 64)
    assert (parts.info.dtype, parts.info.kv_dtype, parts.info.num_blocks) == ("q8_0", "float16", 64)
    assert parts.step_loop.scheduler.config.kv_dtype == "float16"
    assert torch.get_num_threads() == 1
    parts.step_loop.close()


@pytest.mark.usefixtures("_byte_tokens", "torch_threads")
@pytest.mark.parametrize(
    ("settings", "kind", "dtype"),
    [
        ({"executor": "torch"}, TorchExecutor, "float32"),
        ({"dtype": "bfloat16"}, TorchExecutor, "bfloat16"),
        ({"executor": "kernels", "kv_cache_dtype": "bfloat16"}, CpuExecutor, "q8_0"),
        ({"executor": "kernels", "weights": "int8"}, CpuExecutor, "int8"),
        ({"executor": "kernels", "refine_outliers": True}, CpuExecutor, "q8_0"),
        ({"executor": "kernels", "weights": "stored", "deterministic": True}, CpuExecutor, "q8_0"),
    ],
)
def test_settings_choose(tmp_path, settings, kind, dtype):
    parts = build_parts(write_model(tmp_path / "m.gguf"), **settings)
    assert type(parts.step_loop._executor) is kind
    assert parts.info.dtype == dtype
    assert parts.info.kv_dtype == settings.get("kv_cache_dtype", "float16" if kind is CpuExecutor else dtype)
    parts.step_loop.close()


@pytest.mark.usefixtures("_byte_tokens", "torch_threads")
def test_what_the_kernels_cannot_run_goes_to_torch_aloud_or_is_refused(tmp_path, caplog):
    path = write_model(tmp_path / "m.gguf", head_dim=4)
    with caplog.at_level(logging.WARNING):
        parts = build_parts(path)
    assert isinstance(parts.step_loop._executor, TorchExecutor)
    assert "heads of 4 elements are not a multiple of 8; it runs on torch, slower" in caplog.text
    parts.step_loop.close()
    with pytest.raises(ConfigError, match=r"heads of 4 elements .* set executor to torch"):
        build_parts(path, executor="kernels")


def test_a_type_or_an_architecture_without_kernels(tmp_path, monkeypatch):
    args, checkpoint = EngineArgs("m", executor="kernels"), load_config(str(write_model(tmp_path / "m.gguf")))
    assert chooses_kernels(args, checkpoint)
    experts = replace(checkpoint, config=replace(checkpoint.config, architecture="mixtral"))
    with pytest.raises(ConfigError, match="none for the architecture mixtral"):
        chooses_kernels(args, experts)
    monkeypatch.setattr("argosy.engine.executors.cpu_support.PACKINGS", {})
    with pytest.raises(ConfigError, match=r"none for weights of type Q8_0 \(token_embd.weight\)"):
        chooses_kernels(args, checkpoint)


@pytest.mark.usefixtures("_byte_tokens", "torch_threads")
@pytest.mark.parametrize("settings", [{}, {"deterministic": True}, {"executor": "kernels", "weights": "int8"}])
def test_answers_do_not_depend_on_company_chunks_cache_or_threads(tmp_path, settings):
    path = write_model(tmp_path / "m.gguf")
    prompt = "the same prompt, which is longer than two chunks of sixteen tokens"
    others = ["short", "another prompt of some length", "x" * 100]
    params = SamplingParams(temperature=0.0, max_tokens=30, logprobs=2, ignore_eos=True)

    def logprobs(prompts: list[str], **more):
        with LLM.from_parts(build_parts(path, **(settings | more))) as llm:
            llm.generate(prompts[:1], params)
            return llm.generate(prompts, params)[0].completions[0].logprobs

    alone = logprobs([prompt], enable_prefix_caching=False, threads=1)
    assert logprobs([prompt, *others]) == alone
    assert logprobs([prompt, *others], max_num_batched_tokens=16, max_num_seqs=4, threads=3) == alone
