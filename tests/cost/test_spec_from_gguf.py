"""Reading GGUF headers: the same shapes as from `config.json`, and headers that contradict their tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from argosy.cost.catalogue import find_model
from argosy.cost.model_spec import Gqa, ModelSpec, MoeFfn, QkNorm
from argosy.cost.spec_from_gguf import spec_from_gguf
from argosy.cost.spec_from_hf import spec_from_hf
from argosy.errors import ConfigError, UnsupportedModel

HIDDEN, VOCAB, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN = 32, 100, 6, 4, 2, 8, 48
HF = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "intermediate_size": FFN,
    "max_position_embeddings": 64,
}
Shapes = dict[str, tuple[int, ...]]


def header(architecture: str, **more: Any) -> dict[str, Any]:
    keys = {
        "block_count": LAYERS,
        "embedding_length": HIDDEN,
        "feed_forward_length": FFN,
        "context_length": 64,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD_DIM,
        **more,
    }
    named = {f"{architecture}.{key}": value for key, value in keys.items()}
    return {"general.architecture": architecture, "general.name": "Small", **named}


def tensors(*, tied: bool, qkv_bias: bool = False, qk_norm: bool = False, norms: int = 2, experts: int = 0) -> Shapes:
    shapes: Shapes = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,), "rope_freqs.weight": (4,)}
    if not tied:
        shapes["output.weight"] = (VOCAB, HIDDEN)
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    for index in range(LAYERS):
        block = f"blk.{index}."
        for name, rows in (("attn_q", queries), ("attn_k", keys), ("attn_v", keys)):
            shapes[f"{block}{name}.weight"] = (rows, HIDDEN)
            if qkv_bias:
                shapes[f"{block}{name}.bias"] = (rows,)
        shapes[f"{block}attn_output.weight"] = (HIDDEN, queries)
        if qk_norm:
            shapes |= {f"{block}attn_q_norm.weight": (HEAD_DIM,), f"{block}attn_k_norm.weight": (HEAD_DIM,)}
        shapes |= {f"{block}norm_{number}.weight": (HIDDEN,) for number in range(norms)}
        count = max(experts, 1)
        shapes |= {f"{block}ffn_{part}.weight": (count, FFN, HIDDEN) for part in ("gate", "up", "down")}
        if experts:
            shapes[f"{block}ffn_gate_inp.weight"] = (experts, HIDDEN)
    return shapes


def unnamed(spec: ModelSpec) -> ModelSpec:
    return replace(spec, name="")


@pytest.mark.parametrize("tied", [True, False])
def test_llama(tied: bool) -> None:
    spec = spec_from_gguf(header("llama"), tensors(tied=tied))
    assert spec.name == "Small"
    assert unnamed(spec) == unnamed(spec_from_hf({"model_type": "llama", **HF, "tie_word_embeddings": tied}))


def test_llama_without_head_size() -> None:
    metadata = header("llama")
    del metadata["llama.attention.key_length"]
    attention = next(spec_from_gguf(metadata, tensors(tied=True)).each_layer()).attention
    assert isinstance(attention, Gqa)
    assert attention.head_dim == HIDDEN // HEADS == HEAD_DIM


def test_llama_with_experts_is_mixtral() -> None:
    spec = spec_from_gguf(header("llama", expert_count=3, expert_used_count=2), tensors(tied=False, experts=3))
    expected = {"model_type": "mixtral", **HF, "num_local_experts": 3, "num_experts_per_tok": 2}
    assert unnamed(spec) == unnamed(spec_from_hf(expected))


def test_llama_with_a_window_is_mistral() -> None:
    spec = spec_from_gguf(header("llama", **{"attention.sliding_window": 16}), tensors(tied=False))
    assert {layer.attention.window for _, layer in spec.layers if isinstance(layer.attention, Gqa)} == {16}
    beyond = spec_from_gguf(header("llama", **{"attention.sliding_window": 64}), tensors(tied=False))
    assert {layer.attention.window for _, layer in beyond.layers if isinstance(layer.attention, Gqa)} == {None}


def test_qwen2() -> None:
    spec = spec_from_gguf(header("qwen2"), tensors(tied=True, qkv_bias=True))
    assert unnamed(spec) == unnamed(spec_from_hf({"model_type": "qwen2", **HF, "tie_word_embeddings": True}))


def test_qwen3() -> None:
    spec = spec_from_gguf(header("qwen3"), tensors(tied=False, qk_norm=True))
    assert unnamed(spec) == unnamed(spec_from_hf({"model_type": "qwen3", **HF}))


def test_qwen3moe() -> None:
    metadata = header(
        "qwen3moe", expert_count=4, expert_used_count=2, expert_feed_forward_length=FFN, feed_forward_length=99
    )
    spec = spec_from_gguf(metadata, tensors(tied=False, qk_norm=True, experts=4))
    ((_, layer),) = spec.layers
    assert layer.ffn == MoeFfn(4, 2, FFN)
    assert isinstance(layer.attention, Gqa)
    assert layer.attention.qk_norm is QkNorm.PER_HEAD


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ({}, [16] * 5 + [None]),
        ({"attention.sliding_window_pattern": 3}, [16, 16, None] * 2),
        ({"attention.sliding_window_pattern": [True, False] * 3}, [16, None] * 3),
    ],
)
def test_gemma3_windows(pattern: dict[str, Any], expected: list[int | None]) -> None:
    metadata = header("gemma3", **{"attention.sliding_window": 16, **pattern})
    spec = spec_from_gguf(metadata, tensors(tied=True, qk_norm=True, norms=4))
    assert [layer.attention.window for layer in spec.each_layer() if isinstance(layer.attention, Gqa)] == expected
    assert spec.tied_embeddings


def test_counts_may_be_written_per_layer() -> None:
    metadata = header("llama", **{"attention.head_count_kv": [KV_HEADS] * LAYERS, "feed_forward_length": [FFN] * LAYERS})
    assert spec_from_gguf(metadata, tensors(tied=False)).num_layers == LAYERS
    uneven = header("llama", **{"attention.head_count_kv": [1] + [KV_HEADS] * (LAYERS - 1)})
    with pytest.raises(UnsupportedModel, match=r"attention\.head_count_kv that differs between layers"):
        spec_from_gguf(uneven, tensors(tied=False))


@pytest.mark.parametrize(
    "shapes", [tensors(tied=False, qkv_bias=True), tensors(tied=False, norms=3), tensors(tied=False, experts=2)]
)
def test_tensors_that_the_header_does_not_explain_are_refused(shapes: Shapes) -> None:
    with pytest.raises(ConfigError, match=r"the tensors hold .* elements, the header implies"):
        spec_from_gguf(header("llama"), shapes)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "architecture None is not known"),
        (header("mamba"), "it knows gemma3, llama, qwen2, qwen3, qwen3moe"),
        (header("llama", expert_shared_count=1), r"llama\.expert_shared_count is not counted"),
        (header("qwen3", **{"attention.sliding_window": 16}), "which layers of qwen3 have the sliding window"),
        (header("gemma3", expert_count=2, expert_used_count=1), "experts in architecture 'gemma3'"),
    ],
)
def test_variants_that_are_not_counted_are_refused(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        spec_from_gguf(metadata, tensors(tied=False))


def test_missing_keys_and_tensors_are_named() -> None:
    metadata = header("llama")
    del metadata["llama.block_count"]
    with pytest.raises(ConfigError, match="GGUF header of Small has no 'block_count'"):
        spec_from_gguf(metadata, tensors(tied=False))
    with pytest.raises(ConfigError, match=r"no tensor 'token_embd\.weight'"):
        spec_from_gguf(header("llama"), {})


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_published_files_have_the_shape_of_the_catalogue(name: str) -> None:
    from argosy.models.gguf_file import GgufFile
    from argosy.models.resolve import resolve

    file = GgufFile(resolve(name).path)
    spec = spec_from_gguf(file.metadata, {tensor: entry.shape for tensor, entry in file.tensors.items()})
    assert unnamed(spec) == unnamed(find_model(name))
