"""The weights as stored hold the numbers of the dequantised ones, in their order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import save_file

from argosy.errors import ModelFileError
from argosy.models.architectures.decoder import build_decoder, expected_shapes
from argosy.models.architectures.weights import checkpoint_slots
from argosy.models.checkpoint import load_config
from argosy.models.loader import checkpoint_weights, load_model, open_stored_weights
from argosy.models.stored_weights import StoredWeight, StoredWeights

FAMILIES = ["llama", "llama_tied", "llama_bias", "qwen2", "qwen3", "gemma3", "mixtral", "qwen3_moe"]


def opened(path):
    return load_config(str(path))


def check(checkpoint, offset: float = 0.0) -> None:
    stored, reference = open_stored_weights(checkpoint), dict(checkpoint_weights(checkpoint))
    assert set(stored) == set(reference)
    for name, weight in stored.items():
        values = weight.floats()
        assert values.dtype == np.float32
        expected = reference[name].float() + (offset if weight.includes_offset else 0.0)
        torch.testing.assert_close(torch.from_numpy(values), expected, rtol=0.0, atol=1e-6 if offset else 0.0, msg=name)
        if len(weight.shape) == 2:
            assert weight.read().shape[0] == weight.shape[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_of_a_gguf_file(tiny_checkpoint, family):
    checkpoint = opened(tiny_checkpoint(family).gguf)
    check(checkpoint, offset=1.0 if family == "gemma3" else 0.0)
    offsets = {name for name, weight in open_stored_weights(checkpoint).items() if weight.includes_offset}
    assert offsets == (
        {n for n in open_stored_weights(checkpoint) if n.endswith("norm.weight")} if family == "gemma3" else set()
    )


@pytest.mark.parametrize("matrix_type", ["F16", "BF16", "Q8_0", "Q4_1"])
@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_of_a_gguf_file_in_fewer_bits(tiny_checkpoint, family, matrix_type):
    checkpoint = opened(tiny_checkpoint(family, matrix_type=GGMLQuantizationType[matrix_type]).gguf)
    check(checkpoint)
    projection = open_stored_weights(checkpoint)["model.layers.1.self_attn.k_proj.weight"]
    assert projection.type.name == matrix_type


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3_moe"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_of_a_folder(tiny_checkpoint, tmp_path, family, dtype):
    folder = tiny_checkpoint(family).folder
    for file in folder.iterdir():
        if file.suffix == ".json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = {name: tensor.to(dtype) for name, tensor in tiny_checkpoint(family).tensors.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = opened(tmp_path)
    check(checkpoint)
    assert not any(weight.includes_offset for weight in open_stored_weights(checkpoint).values())
    bits = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
    assert {weight.type.name for weight in open_stored_weights(checkpoint).values()} == {bits[dtype]}


def test_released_pages_are_read_again(tiny_checkpoint):
    stored = open_stored_weights(opened(tiny_checkpoint("llama").gguf))
    weight = stored["model.embed_tokens.weight"]
    before = weight.floats()
    stored.release()
    np.testing.assert_array_equal(weight.floats(), before)


@pytest.mark.parametrize("family", FAMILIES)
def test_expected_shapes_are_those_of_the_decoder(tiny_checkpoint, family):
    config = opened(tiny_checkpoint(family).gguf).config
    decoder = build_decoder(config, dtype=torch.float32, device="cpu")
    assert expected_shapes(config) == {name: tuple(slot.shape) for name, slot in checkpoint_slots(decoder).items()}


def vector(name: str, *numbers: float) -> StoredWeight:
    data = np.array(numbers, dtype=np.float32).view(np.uint8)
    return StoredWeight(name, GGMLQuantizationType.F32, (len(numbers),), lambda: data)


def collected(*weights: StoredWeight, tied_head: bool = False) -> StoredWeights:
    expected = {"a": (2,), "model.embed_tokens.weight": (3,)}
    return StoredWeights(weights, expected=expected, tied_head=tied_head)


A, EMBEDDINGS, HEAD = vector("a", 1, 2), vector("model.embed_tokens.weight", 1, 2, 3), "lm_head.weight"


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ((A,), "lacks model.embed_tokens.weight"),
        ((A, EMBEDDINGS, A), "'a' appears twice"),
        ((A, EMBEDDINGS, vector("b", 1)), "unexpected tensor 'b'"),
        ((vector("a", 1), EMBEDDINGS), r"'a' has shape \[1\], expected \[2\]"),
        ((A, EMBEDDINGS, vector(HEAD, 1, 2, 3)), "unexpected tensor 'lm_head.weight'"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights, message):
    with pytest.raises(ModelFileError, match=message):
        collected(*weights)


def test_a_tied_head_must_be_the_embeddings():
    assert set(collected(A, EMBEDDINGS, vector(HEAD, 1, 2, 3), tied_head=True)) == {"a", EMBEDDINGS.name}
    for head in (vector(HEAD, 1, 2, 4), vector(HEAD, 1, 2)):
        with pytest.raises(ModelFileError, match="tie_word_embeddings"):
            collected(A, EMBEDDINGS, head, tied_head=True)


def test_a_constant_of_old_checkpoints_is_left_out():
    assert set(collected(A, EMBEDDINGS, vector("model.layers.0.self_attn.rotary_emb.inv_freq", 1))) == {"a", EMBEDDINGS.name}


def test_loading_asks_what_to_keep(tiny_checkpoint, monkeypatch):
    monkeypatch.setattr("argosy.models.loader.load_tokenizer", lambda *a, **k: type("T", (), {"eos_token_ids": frozenset()}))
    path, asked = str(tiny_checkpoint("llama").gguf), []

    def keep(checkpoint):
        asked.append(checkpoint.config.architecture)
        return True

    model = load_model(path, keep_stored=keep, max_positions=64)
    assert (asked, model.decoder, model.max_positions) == (["llama"], None, 64)
    assert "model.norm.weight" in model.stored
    other = load_model(path, keep_stored=lambda checkpoint: False)
    assert (other.stored, other.max_positions) == (None, 128)
    assert other.decoder is not None
