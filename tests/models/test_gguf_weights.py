"""A GGUF file gives the configuration and the weights of the Hugging Face folder it was made from."""

import dataclasses
import json

import pytest
import torch
from gguf import GGMLQuantizationType

from argosy.errors import UnsupportedModel
from argosy.models.gguf_config import model_config_from_gguf
from argosy.models.gguf_file import GgufFile
from argosy.models.gguf_weights import unpermute, weights_from_gguf
from argosy.models.hf_config import model_config_from_hf

FAMILIES = ["llama", "llama_tied", "llama_bias", "qwen2", "qwen3", "gemma3", "mixtral", "qwen3_moe"]


def read(path):
    file = GgufFile(path)
    config = model_config_from_gguf(file)
    return config, dict(weights_from_gguf(file, config))


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_those_of_the_folder(tiny_checkpoint, family):
    checkpoint = tiny_checkpoint(family)
    _, weights = read(checkpoint.gguf)
    assert set(weights) == set(checkpoint.tensors)
    for name, tensor in checkpoint.tensors.items():
        # Gemma's norms are stored as 1 + weight, which rounds.
        tolerance = 1.2e-7 if family == "gemma3" and "norm" in name else 0.0
        torch.testing.assert_close(weights[name], tensor, rtol=0.0, atol=tolerance, msg=name)


YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}


@pytest.mark.parametrize(("family", "rope"), [(f, None) for f in FAMILIES] + [("llama", YARN), ("qwen2", LINEAR)])
def test_configuration_is_that_of_the_folder(tiny_checkpoint, family, rope):
    checkpoint = tiny_checkpoint(family, **({} if rope is None else {"rope_parameters": rope}))
    config, _ = read(checkpoint.gguf)
    expected = model_config_from_hf(json.loads((checkpoint.folder / "config.json").read_text()))
    rounded = dataclasses.replace(config, norm_eps=round(config.norm_eps, 9))
    for field in dataclasses.fields(config):
        assert getattr(rounded, field.name) == getattr(expected, field.name), field.name


@pytest.mark.parametrize(
    ("matrix_type", "dtype", "relative_error"),
    [("F16", "float16", 1e-3), ("BF16", "bfloat16", 8e-3), ("Q8_0", "float32", 2e-2), ("Q5_1", "float32", 0.1)],
)
def test_matrices_in_fewer_bits(tiny_checkpoint, matrix_type, dtype, relative_error):
    checkpoint = tiny_checkpoint("mixtral", matrix_type=GGMLQuantizationType[matrix_type])
    config, weights = read(checkpoint.gguf)
    assert config.dtype == dtype
    for name, tensor in checkpoint.tensors.items():
        error = (weights[name] - tensor).norm() / tensor.norm()
        assert error <= (relative_error if tensor.ndim > 1 else 0.0), name


def test_unpermute_undoes_what_the_drawing_shows():
    stored = torch.tensor([0.0, 2.0, 1.0, 3.0, 10.0, 12.0, 11.0, 13.0])
    assert unpermute(stored, 2).tolist() == [0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0]
    assert unpermute(stored[:, None].expand(8, 3), 2)[:, 2].tolist() == unpermute(stored, 2).tolist()


def test_experts_stored_one_by_one_are_read(tiny_checkpoint, tmp_path):
    """The way files were written before the experts were stacked."""

    def separate(writer):
        for tensors in writer.tensors:
            for name in [n for n in tensors if "_exps." in n]:
                info = tensors.pop(name)
                for expert, values in enumerate(info.tensor):
                    writer.add_tensor(name.replace("_exps.", f".{expert}."), values.copy())

    checkpoint = tiny_checkpoint("mixtral", extra=separate)
    assert "blk.0.ffn_gate.3.weight" in GgufFile(checkpoint.gguf).tensors
    _, weights = read(checkpoint.gguf)
    assert set(weights) == set(checkpoint.tensors)
    assert all(torch.equal(weights[name], tensor) for name, tensor in checkpoint.tensors.items())


@pytest.mark.parametrize(
    "name", ["blk.0.attn_sinks.weight", "blk.0.ffn_gate_shexp.weight", "cls.weight", "blk.0.attn_q.0.weight"]
)
def test_tensor_the_architecture_lacks_is_refused_by_name(tiny_checkpoint, name):
    checkpoint = tiny_checkpoint("llama", extra=lambda w: w.add_tensor(name, torch.zeros(4).numpy()))
    with pytest.raises(UnsupportedModel, match=name):
        read(checkpoint.gguf)
