"""Small random checkpoints, each as a Hugging Face folder written by transformers and as a GGUF file with the same weights.

The GGUF writer below follows llama.cpp's converter and takes tensor names from the gguf library's own table, so that
reading is held to something that was not derived from the reader.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFWriter, RopeScalingType, get_tensor_name_map
from gguf.quants import quantize
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

SMALL = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts_per_tok": 2, "norm_topk_prob": True}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "tie_word_embeddings": False},
    "llama_tied": {"model_type": "llama", "tie_word_embeddings": True},
    "llama_bias": {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "head_dim": 24},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": True},
    "gemma3": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 7,
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "sliding_window": 8,
        "tie_word_embeddings": True,
    },
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": False},
    "qwen3_moe": {"model_type": "qwen3_moe", "num_experts": 4, "moe_intermediate_size": 32, **EXPERTS},
}
GGUF_NAMES = {"mixtral": "llama", "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3"}


@dataclass(frozen=True)
class TinyCheckpoint:
    """`tensors` are those of the folder on disk; the GGUF file holds the same numbers."""

    folder: Path
    gguf: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    reference: PreTrainedModel


def random_model(config: Mapping[str, Any]) -> PreTrainedModel:
    """Weights at which every part matters: norms away from their neutral value, biases away from zero."""
    torch.manual_seed(5)
    options = dict(config)
    model_config = AutoConfig.for_model(options.pop("model_type"), **options)
    model = AutoModelForCausalLM.from_config(model_config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if "norm" in name:
                parameter.copy_(noise * 0.2 + (0.0 if "gemma" in config["model_type"] else 1.0))
            else:
                parameter.copy_(noise * (0.3 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5))
    return model


def permute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """The converter's order of the rows of a llama Q or K projection."""
    return weight.reshape(num_heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def stack_experts(tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """One tensor per layer and projection, experts outermost, under the names the gguf library knows."""
    merged: dict[str, np.ndarray] = {}
    groups: dict[str, dict[int, np.ndarray]] = {}
    for name, tensor in tensors.items():
        if ".experts." not in name:
            merged[name] = tensor.float().numpy()
            continue
        prefix, rest = name.split(".experts.")
        expert, projection = rest.split(".", 1)
        if prefix.endswith("block_sparse_moe"):
            layer = prefix.removeprefix("model.").removesuffix("block_sparse_moe")
            key = f"{layer}feed_forward.experts.{projection}"
        else:
            key = f"{prefix}.experts.{projection}"
        groups.setdefault(key, {})[int(expert)] = tensor.float().numpy()
    return merged | {key: np.stack([group[i] for i in range(len(group))]) for key, group in groups.items()}


def add_hyperparameters(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    rope = config["rope_parameters"]
    if config["model_type"] == "gemma3_text":
        writer.add_sliding_window(config["sliding_window"])
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    num_experts = config.get("num_local_experts") or config.get("num_experts")
    if num_experts:
        writer.add_expert_count(num_experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if config["model_type"] == "qwen3_moe":
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def llama3_divisors(config: Mapping[str, Any]) -> np.ndarray:
    """The converter's tensor for Llama 3's rope: what each frequency is divided by."""
    rope = config["rope_parameters"]
    low, high, original = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    divisors = []
    for i in range(0, config["head_dim"], 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / config["head_dim"])
        if wavelength < original / high:
            divisors.append(1.0)
        elif wavelength > original / low:
            divisors.append(rope["factor"])
        else:
            smooth = (original / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(divisors, np.float32)


def write_gguf(
    path: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    extra: Callable[[GGUFWriter], None] = lambda writer: None,
    matrix_type: GGMLQuantizationType = GGMLQuantizationType.F32,
) -> None:
    """Write a Hugging Face checkpoint as GGUF; `extra` adds keys or tensors before the file is closed."""
    model_type = config["model_type"]
    architecture = GGUF_NAMES.get(model_type, model_type)
    names = get_tensor_name_map(
        next(a for a, name in MODEL_ARCH_NAMES.items() if name == architecture), config["num_hidden_layers"]
    )
    writer = GGUFWriter(path, architecture)
    add_hyperparameters(writer, config)
    for name, values in stack_experts(tensors).items():
        for projection, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if architecture == "llama" and f"{projection}." in name:
                values = permute(values, config[heads])
        if model_type == "gemma3_text" and name.endswith("norm.weight"):
            values = values + 1.0
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        stored_type = matrix_type if values.ndim > 1 else GGMLQuantizationType.F32
        writer.add_tensor(stored, quantize(np.ascontiguousarray(values), stored_type), raw_dtype=stored_type)
    if model_type != "gemma3_text" and config["rope_parameters"]["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(config))
    extra(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TinyCheckpoint]:
    """Make the family's checkpoint, with options of its transformers configuration replaced; `extra` as `write_gguf`."""

    def make(
        family: str,
        *,
        extra: Callable[[GGUFWriter], None] = lambda writer: None,
        matrix_type: GGMLQuantizationType = GGMLQuantizationType.F32,
        **options: Any,
    ) -> TinyCheckpoint:
        model = random_model(SMALL | FAMILIES[family] | options)
        folder = tmp_path_factory.mktemp(family)
        model.save_pretrained(folder)
        tensors = load_file(folder / "model.safetensors")
        config = json.loads((folder / "config.json").read_text())
        config.setdefault("head_dim", SMALL["head_dim"])
        write_gguf(folder / f"{family}.gguf", config, tensors, extra=extra, matrix_type=matrix_type)
        return TinyCheckpoint(folder, folder / f"{family}.gguf", config, tensors, model)

    return make


@pytest.fixture(scope="session")
def llama_gguf_bytes(tiny_checkpoint: Callable[..., TinyCheckpoint]) -> bytes:
    """A small llama as the bytes of a GGUF file."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "vocab_size": 16, "head_dim": 8, "num_hidden_layers": 1}
    return tiny_checkpoint("llama", **sizes).gguf.read_bytes()
