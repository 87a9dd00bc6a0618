"""Filling a decoder from a checkpoint: everything once, nothing else."""

from __future__ import annotations

import json
import re

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    LlamaConfig,
    MixtralConfig,
    SiglipVisionConfig,
)

from argosy.errors import ModelFileError
from argosy.models.architectures.decoder import build_decoder
from argosy.models.architectures.weights import checkpoint_slots
from argosy.models.hf_config import model_config_from_hf

SMALL = {
    "vocab_size": 31,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": None,
}
KEY = "model.layers.1.self_attn.k_proj.weight"


@pytest.fixture
def pair(make_pair):
    return make_pair(LlamaConfig(**SMALL, attention_bias=True))


@pytest.fixture
def tied(make_pair):
    return make_pair(LlamaConfig(**SMALL, tie_word_embeddings=True))


@pytest.fixture
def fresh(pair):
    return build_decoder(pair.decoder.config, dtype=torch.float32, device="cpu")


@pytest.mark.parametrize("config", [LlamaConfig(**SMALL, attention_bias=True), MixtralConfig(**SMALL, num_local_experts=3)])
def test_the_slots_are_the_checkpoints_tensors(config, make_pair):
    pair = make_pair(config)
    slots = checkpoint_slots(pair.decoder)
    assert slots.keys() == pair.tensors.keys()
    assert all(torch.equal(slots[name], tensor) for name, tensor in pair.tensors.items())
    assert sum(p.numel() for p in pair.decoder.parameters()) == sum(t.numel() for t in pair.tensors.values())


def test_weights_are_converted_to_the_decoders_dtype(pair):
    decoder = build_decoder(pair.decoder.config, dtype=torch.bfloat16, device="cpu")
    decoder.load_weights((name, tensor.double()) for name, tensor in pair.tensors.items())
    slots = checkpoint_slots(decoder)
    assert all(torch.equal(slots[name], tensor.bfloat16()) for name, tensor in pair.tensors.items())


def test_every_missing_tensor_is_noticed(pair, fresh):
    for missing in pair.tensors:
        with pytest.raises(ModelFileError, match=f"lacks {missing}$"):
            fresh.load_weights((name, tensor) for name, tensor in pair.tensors.items() if name != missing)


def test_many_missing_tensors_make_a_short_message(fresh):
    with pytest.raises(ModelFileError, match=r"lacks [^ ]+, [^ ]+, [^ ]+ and \d+ more$"):
        fresh.load_weights([])


@pytest.mark.parametrize(
    "name", ["model.layers.2.mlp.up_proj.weight", "model.layers.0.self_attn.qkv_proj.weight", "score.weight"]
)
def test_an_unknown_tensor_is_refused(name, pair, fresh):
    with pytest.raises(ModelFileError, match=f"unexpected tensor '{name}'"):
        fresh.load_weights([*pair.tensors.items(), (name, torch.zeros(2))])


def test_a_tensor_that_comes_twice_is_refused(pair, fresh):
    with pytest.raises(ModelFileError, match=f"'{KEY}' appears twice"):
        fresh.load_weights([*pair.tensors.items(), (KEY, pair.tensors[KEY])])


def test_a_wrong_shape_is_refused_even_if_it_would_broadcast(pair, fresh):
    with pytest.raises(ModelFileError, match=rf"'{KEY}' has shape \[1, 16\], expected \[8, 16\]"):
        fresh.load_weights({**pair.tensors, KEY: pair.tensors[KEY][:1]}.items())


def test_quantised_integers_are_not_taken_for_weights(pair, fresh):
    with pytest.raises(ModelFileError, match=f"'{KEY}' is of torch.uint8"):
        fresh.load_weights({**pair.tensors, KEY: pair.tensors[KEY].to(torch.uint8)}.items())


def test_stored_rotary_frequencies_are_ignored(pair, fresh):
    fresh.load_weights([*pair.tensors.items(), ("model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(2))])


@pytest.mark.parametrize("first", [True, False])
def test_an_output_head_stored_beside_tied_embeddings_must_equal_them(first, tied):
    head = ("lm_head.weight", tied.tensors["model.embed_tokens.weight"].clone())
    order = [head, *tied.tensors.items()] if first else [*tied.tensors.items(), head]
    tied.decoder.load_weights(order)
    head[1][3, 5] += 1.0
    with pytest.raises(ModelFileError, match=r"'lm_head\.weight' differs"):
        tied.decoder.load_weights(order)


@pytest.mark.parametrize("nested", ["language_model.model.", "model.language_model."])
def test_the_text_side_of_a_vision_and_text_checkpoint(nested, tmp_path, run_whole):
    text = Gemma3TextConfig(**SMALL, head_dim=8, sliding_window=4)
    vision = SiglipVisionConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=28
    )
    config = Gemma3Config(
        text_config=text,
        vision_config=vision,
        mm_tokens_per_image=4,
        image_token_index=30,
        boi_token_index=29,
        eoi_token_index=28,
    )
    reference = Gemma3ForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
    reference.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    tensors = {re.sub(r"^(language_model\.model|model\.language_model)\.", nested, k): v for k, v in stored.items()}
    assert any(name.startswith(nested) for name in tensors)
    assert any("vision_tower" in name for name in tensors)
    read = model_config_from_hf(json.loads((tmp_path / "config.json").read_text()))
    decoder = build_decoder(read, dtype=torch.float32, device="cpu")
    decoder.load_weights(tensors.items())
    ids = torch.arange(20)
    with torch.inference_mode():
        theirs = reference(input_ids=ids[None]).logits[0]
    torch.testing.assert_close(run_whole(decoder, ids), theirs, rtol=0, atol=1e-4)


def test_parameters_need_no_gradient_and_are_not_initialised(pair):
    config = pair.decoder.config
    decoder = build_decoder(config, dtype=torch.float16, device="meta")
    assert {p.device.type for p in decoder.parameters()} == {"meta"}
    assert not any(p.requires_grad for p in pair.decoder.parameters())
    assert not pair.decoder.training
