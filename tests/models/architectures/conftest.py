"""Small random checkpoints written by transformers, and decoders read back from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from argosy.models.architectures.attention import SingleSequenceAttention
from argosy.models.architectures.decoder import Decoder, build_decoder
from argosy.models.hf_config import model_config_from_hf


class Pair(NamedTuple):
    """The same weights twice: in transformers and in a decoder, and the checkpoint's tensors between them."""

    reference: PreTrainedModel
    decoder: Decoder
    tensors: dict[str, Tensor]


def randomize(model: PreTrainedModel) -> None:
    """Weights at which every part matters: norms far from 1, biases far from 0, attention sharp enough to see positions."""
    torch.manual_seed(11)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                centre = 0.0 if "gemma" in model.config.model_type else 1.0
                parameter.copy_(centre + 0.3 * torch.randn_like(parameter))
            elif name.endswith("bias"):
                parameter.copy_(0.5 * torch.randn_like(parameter))
            elif "embed" in name or "lm_head" in name:
                parameter.copy_(0.2 * torch.randn_like(parameter))
            else:
                parameter.copy_(1.5 * torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)


@pytest.fixture
def make_pair(tmp_path: Path) -> Callable[..., Pair]:
    """Build both models from a transformers configuration, by way of a checkpoint on disk."""

    def make(config: PreTrainedConfig, dtype: torch.dtype = torch.float32) -> Pair:
        reference = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=dtype).eval()
        randomize(reference)
        reference.save_pretrained(tmp_path)
        tensors = load_file(tmp_path / "model.safetensors")
        decoder = build_decoder(
            model_config_from_hf(json.loads((tmp_path / "config.json").read_text())), dtype=dtype, device="cpu"
        )
        decoder.load_weights(tensors.items())
        return Pair(reference, decoder, tensors)

    return make


@pytest.fixture
def run_whole() -> Callable[[Decoder, Tensor], Tensor]:
    """Logits of one sequence computed in one pass, without a cache."""

    def run(decoder: Decoder, token_ids: Tensor) -> Tensor:
        with torch.inference_mode():
            hidden = decoder(token_ids, torch.arange(len(token_ids)), SingleSequenceAttention())
            return decoder.logits(hidden)

    return run


@pytest.fixture
def run_reference() -> Callable[[PreTrainedModel, Tensor], Tensor]:
    """Logits of one sequence by transformers."""

    def run(model: PreTrainedModel, token_ids: Tensor) -> Tensor:
        with torch.inference_mode():
            return model(token_ids[None], use_cache=False).logits[0].float()

    return run
