"""Every architecture against transformers, on the same random weights."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from transformers import (
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from argosy.models.architectures.decoder import build_decoder

VOCAB = 101
LENGTH = 256
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def rope(kind: str, **parameters):
    return {"rope_type": kind, "rope_theta": 10_000.0, **parameters}


LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
CASES = {
    "llama": LlamaConfig(**SMALL),
    "llama: tied embeddings": LlamaConfig(**SMALL, tie_word_embeddings=True),
    "llama: heads wider than hidden / heads": LlamaConfig(**SMALL, head_dim=20),
    "llama: every bias": LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True),
    "llama: one kv head": LlamaConfig(**{**SMALL, "num_key_value_heads": 1}),
    "llama: as many kv heads as heads": LlamaConfig(**{**SMALL, "num_key_value_heads": 4}),
    "llama: theta 500000": LlamaConfig(**SMALL, rope_parameters=rope("default", rope_theta=500_000.0)),
    "llama: other epsilon": LlamaConfig(**SMALL, rms_norm_eps=0.1),
    "llama: tanh gelu": LlamaConfig(**SMALL, hidden_act="gelu_pytorch_tanh"),
    "llama: linear rope": LlamaConfig(**SMALL, rope_parameters=rope("linear", factor=4.0)),
    "llama: dynamic rope": LlamaConfig(
        **{**SMALL, "max_position_embeddings": 64}, rope_parameters=rope("dynamic", factor=4.0)
    ),
    "llama: llama3 rope": LlamaConfig(**SMALL, rope_parameters=rope("llama3", **LLAMA3)),
    "llama: yarn rope": LlamaConfig(**SMALL, rope_parameters=rope("yarn", **YARN)),
    "llama: yarn rope, every parameter": LlamaConfig(
        **SMALL,
        head_dim=32,
        rope_parameters=rope("yarn", **YARN, beta_fast=8.0, beta_slow=0.5, mscale=1.2, mscale_all_dim=0.7, truncate=False),
    ),
    "llama: yarn rope, attention factor": LlamaConfig(**SMALL, rope_parameters=rope("yarn", **YARN, attention_factor=1.7)),
    "mistral: sliding window": MistralConfig(**SMALL, sliding_window=24),
    "mistral: no sliding window": MistralConfig(**SMALL, sliding_window=None),
    "qwen2": Qwen2Config(**SMALL),
    "qwen2: tied, sliding window in the last layers": Qwen2Config(
        **SMALL, tie_word_embeddings=True, use_sliding_window=True, sliding_window=24, max_window_layers=1
    ),
    "qwen2: yarn rope": Qwen2Config(**{**SMALL, "max_position_embeddings": 64}, rope_parameters=rope("yarn", **YARN)),
    "qwen3": Qwen3Config(**SMALL, head_dim=16),
    "qwen3: tied, biases, sliding window": Qwen3Config(
        **SMALL,
        head_dim=16,
        tie_word_embeddings=True,
        attention_bias=True,
        use_sliding_window=True,
        sliding_window=24,
        max_window_layers=2,
    ),
    "gemma3": Gemma3TextConfig(
        **{**SMALL, "num_hidden_layers": 7}, head_dim=16, sliding_window=24, query_pre_attn_scalar=40
    ),
    "gemma3: linear rope in full layers, softcapped logits, biases": Gemma3TextConfig(
        **SMALL,
        head_dim=16,
        sliding_window=24,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        attention_bias=True,
        final_logit_softcapping=2.0,
        rope_parameters={
            "full_attention": rope("linear", factor=4.0, rope_theta=1_000_000.0),
            "sliding_attention": rope("default", rope_theta=5_000.0),
        },
    ),
    "gemma3: untied": Gemma3TextConfig(**SMALL, head_dim=16, sliding_window=24, tie_word_embeddings=False),
    "mixtral": MixtralConfig(**SMALL, num_local_experts=5, num_experts_per_tok=2),
    "mixtral: sliding window, one expert a token": MixtralConfig(
        **SMALL, num_local_experts=4, num_experts_per_tok=1, sliding_window=24
    ),
    "qwen3_moe": Qwen3MoeConfig(**SMALL, **EXPERTS, head_dim=16, norm_topk_prob=True),
    "qwen3_moe: weights not normalised, dense layers between": Qwen3MoeConfig(
        **{**SMALL, "num_hidden_layers": 5}, **EXPERTS, head_dim=16, decoder_sparse_step=2, mlp_only_layers=[1]
    ),
    "qwen3_moe: sliding window, biases": Qwen3MoeConfig(
        **SMALL, **EXPERTS, head_dim=16, use_sliding_window=True, sliding_window=24, attention_bias=True
    ),
}


def tokens(count: int) -> torch.Tensor:
    return torch.randint(VOCAB, (count,), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers_at_every_position(case, make_pair, run_whole, run_reference):
    pair = make_pair(CASES[case])
    assert pair.decoder.max_positions == LENGTH
    ours, theirs = run_whole(pair.decoder, tokens(LENGTH)), run_reference(pair.reference, tokens(LENGTH))
    assert ours.dtype == torch.float32
    assert theirs.std() > 0.3, "the weights must give logits that tell something"
    worst = (ours - theirs).abs().amax(dim=-1)
    assert worst.max() <= 1e-4, f"first wrong position {int((worst > 1e-4).nonzero()[0])}, worst {float(worst.max()):.2e}"


class GrowingCache:
    """Attention over a past that grows with every call: what a paged pool does, in the plainest form."""

    def __init__(self):
        self.past = {}

    def __call__(self, spec, q, k, v):
        if spec.layer in self.past:
            k, v = (torch.cat(pair) for pair in zip(self.past[spec.layer], (k, v), strict=True))
        self.past[spec.layer] = (k, v)
        groups = q.shape[1] // k.shape[1]
        scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(groups, 1)) * spec.scale
        query, key = torch.arange(len(k) - len(q), len(k))[:, None], torch.arange(len(k))[None]
        seen = (key <= query) & (key > query - (spec.window or len(k)))
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, v.repeat_interleave(groups, 1))


@pytest.mark.parametrize("case", ["llama: yarn rope", "gemma3", "mistral: sliding window", "qwen3_moe"])
def test_a_pass_in_chunks_over_a_cache_equals_the_whole_pass(case, make_pair, run_whole):
    decoder, token_ids, cache = make_pair(CASES[case]).decoder, tokens(80), GrowingCache()
    starts = [0, 1, 2, 9, 33, 34, 64, 80]
    with torch.inference_mode():
        parts = [
            decoder.logits(decoder(token_ids[start:end], torch.arange(start, end), cache))
            for start, end in itertools.pairwise(starts)
        ]
    torch.testing.assert_close(torch.cat(parts), run_whole(decoder, token_ids), rtol=0, atol=2e-5)


def test_two_sequences_laid_end_to_end_keep_their_own_positions(make_pair, run_whole):
    decoder, a, b = make_pair(CASES["llama: yarn rope"]).decoder, tokens(40), tokens(70)[40:]

    def each_on_its_own(spec, q, k, v):
        return torch.cat([GrowingCache()(spec, *part) for part in zip(*(t.split([40, 30]) for t in (q, k, v)), strict=True)])

    with torch.inference_mode():
        positions = torch.cat((torch.arange(40), torch.arange(30)))
        together = decoder.logits(decoder(torch.cat((a, b)), positions, each_on_its_own))
    separate = torch.cat((run_whole(decoder, a), run_whole(decoder, b)))
    torch.testing.assert_close(together, separate, rtol=0, atol=2e-5)


@pytest.mark.parametrize("case", ["llama", "qwen2", "gemma3", "mixtral", "qwen3_moe"])
def test_half_precision_follows_transformers_rounding(case, make_pair, run_whole, run_reference):
    pair = make_pair(CASES[case], torch.bfloat16)
    exact = make_pair(CASES[case]).reference
    exact.load_state_dict(pair.reference.state_dict())
    ours, theirs, truth = (
        run_whole(pair.decoder, tokens(48)),
        run_reference(pair.reference, tokens(48)),
        run_reference(exact, tokens(48)),
    )
    assert pair.decoder.model.embed_tokens.weight.dtype == torch.bfloat16
    assert (ours - truth).std() <= 1.25 * (theirs - truth).std(), "rounding must not lose more than transformers' does"


def test_the_attention_backend_is_told_scale_window_and_softcap(make_pair):
    config = make_pair(CASES["gemma3"]).decoder.config
    decoder = build_decoder(replace(config, attention_softcap=30.0), dtype=torch.float32, device="cpu")
    seen = []

    def record(spec, q, k, v):
        seen.append((spec, q.shape, k.shape, v.shape))
        return q

    decoder(tokens(5), torch.arange(5), record)
    assert [spec.layer for spec, *_ in seen] == list(range(7))
    assert [spec.window for spec, *_ in seen] == [24, 24, 24, 24, 24, None, 24]
    assert {(spec.scale, spec.softcap) for spec, *_ in seen} == {(40**-0.5, 30.0)}
    assert all(shapes == [(5, 4, 16), (5, 2, 16), (5, 2, 16)] for _, *shapes in seen)


def test_the_embedding_scale_is_rounded_to_the_dtype_of_the_weights(make_pair):
    """√48 = 6.9282 is 6.9375 in bfloat16."""
    pair = make_pair(CASES["gemma3"], torch.bfloat16)
    ids = tokens(30)
    assert torch.equal(pair.decoder.model.embed_tokens(ids), pair.reference.model.embed_tokens(ids))
    assert pair.decoder.model.embed_tokens.scale == 6.9375
