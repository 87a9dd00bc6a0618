"""With a row tile, a token's logits are bit for bit the same whatever is computed in the same pass."""

from __future__ import annotations

import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig, Qwen3MoeConfig

from argosy.errors import ConfigError

SMALL = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 84,  # no multiple of a vector register: the ends of rows take torch's scalar path
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": None,
}
MODELS = {
    "llama": LlamaConfig(**SMALL),
    "gemma3 with softcap": Gemma3TextConfig(**SMALL, sliding_window=4, final_logit_softcapping=3.0),
    "qwen3_moe": Qwen3MoeConfig(
        **SMALL, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=44, norm_topk_prob=True
    ),
}


def each_token_sees_itself(spec, q, k, v):
    """Attention to one's own position alone: nothing but the model's own arithmetic is under test."""
    return v.repeat_interleave(q.shape[1] // k.shape[1], dim=1)


@pytest.fixture(params=[1, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("model", MODELS)
def test_a_tokens_bits_do_not_depend_on_the_batch(model, make_pair, threads):
    decoder = make_pair(MODELS[model]).decoder
    decoder.set_row_tile(16)
    ids = torch.randint(101, (70,), generator=torch.Generator().manual_seed(1))
    positions = torch.randint(2000, (70,), generator=torch.Generator().manual_seed(2))

    def run(rows):
        with torch.inference_mode():
            return decoder.logits(decoder(ids[rows], positions[rows], each_token_sees_itself))

    whole = run(torch.arange(70))
    for count in range(1, 71):
        chosen = torch.randperm(70, generator=torch.Generator().manual_seed(count))[:count]
        assert torch.equal(run(chosen), whole[chosen]), f"{count} tokens"


def test_a_row_tile_reaches_every_product_and_can_be_taken_back(make_pair, monkeypatch):
    decoder = make_pair(MODELS["qwen3_moe"]).decoder
    ids, product, heights = torch.arange(5), torch.nn.functional.linear, set()

    def watched(rows, *rest):
        heights.add(rows.shape[0])
        return product(rows, *rest)

    monkeypatch.setattr(torch.nn.functional, "linear", watched)
    decoder.set_row_tile(8)
    decoder.logits(decoder(ids, ids, each_token_sees_itself))
    assert heights == {8}
    decoder.set_row_tile(None)
    decoder.logits(decoder(ids, ids, each_token_sees_itself))
    assert heights > {8}
    assert max(heights - {8}) == 5


@pytest.mark.parametrize("rows", [1, 0, -3])
def test_a_tile_without_room_for_two_rows_is_refused(rows, make_pair):
    with pytest.raises(ConfigError, match="row_tile"):
        make_pair(MODELS["llama"]).decoder.set_row_tile(rows)


def test_no_rows_give_no_logits(make_pair):
    decoder = make_pair(MODELS["gemma3 with softcap"]).decoder
    for rows in (None, 16):
        decoder.set_row_tile(rows)
        assert decoder.logits(torch.empty(0, 48)).shape == (0, 101)


def test_functions_with_an_exponential_take_rows_one_by_one(make_pair, monkeypatch):
    decoder = make_pair(MODELS["gemma3 with softcap"]).decoder
    tanh, shapes = torch.tanh, []
    monkeypatch.setattr(torch, "tanh", lambda x: shapes.append(tuple(x.shape)) or tanh(x))
    hidden = torch.randn(3, 48)
    whole = decoder.logits(hidden)
    decoder.set_row_tile(16)
    torch.testing.assert_close(decoder.logits(hidden), whole)
    assert shapes == [(3, 101), (101,), (101,), (101,)]
