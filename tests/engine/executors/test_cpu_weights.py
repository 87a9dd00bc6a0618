from __future__ import annotations

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from argosy.engine.executors import cpu_weights
from argosy.engine.executors.cpu_weights import pack_weights
from argosy.kernels.pack_ggml import dequantize


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("slice_rows", [16, 32, 4096])
def test_every_weight_is_where_it_belongs(kernel_model, monkeypatch, num_threads, slice_rows):
    monkeypatch.setattr(cpu_weights, "_SLICE_ROWS", slice_rows)
    config, stored, _ = kernel_model("biased", "Q8_0")
    weights = pack_weights(config, stored, num_threads=num_threads)
    for index, layer in enumerate(weights.layers):
        prefix = f"model.layers.{index}."
        for projection, names in (
            (layer.qkv, ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
            (layer.attention_output, ["self_attn.o_proj"]),
            (layer.gate_up, ["mlp.gate_proj", "mlp.up_proj"]),
            (layer.down, ["mlp.down_proj"]),
        ):
            (part,) = projection.parts
            expected = np.concatenate([stored[f"{prefix}{n}.weight"].floats() for n in names])
            np.testing.assert_array_equal(dequantize(part), expected)
            np.testing.assert_array_equal(part.bias, np.concatenate([stored[f"{prefix}{n}.bias"].floats() for n in names]))
        np.testing.assert_array_equal(layer.mlp_norm, stored[f"{prefix}post_attention_layernorm.weight"].floats())
    np.testing.assert_array_equal(dequantize(weights.embedding), stored["model.embed_tokens.weight"].floats())
    np.testing.assert_array_equal(dequantize(weights.head.parts[0]), stored["lm_head.weight"].floats())
    assert weights.main_kind == "q8_0"
    assert weights.num_bytes == sum(m.num_bytes for m in weights.matrices())


def test_matrices_of_different_kinds_stay_apart(kernel_model):
    config, stored, _ = kernel_model("llama", "Q8_0")
    other = kernel_model("llama", "Q4_0")[1]
    name = "model.layers.1.self_attn.v_proj.weight"
    mixed = type(stored)(
        [other[n] if n == name else w for n, w in stored.items()],
        expected={n: w.shape for n, w in stored.items()},
        tied_head=False,
    )
    layer = pack_weights(config, mixed).layers[1]
    assert [(part.kind, part.rows) for part in layer.qkv.parts] == [("q8_0", 96), ("q4_0", 32)]
    assert (layer.qkv.rows, layer.qkv.columns) == (128, 64)


def test_a_tied_head_is_the_embedding_and_counts_once(kernel_model):
    config, stored, _ = kernel_model("tied", "Q8_0")
    weights = pack_weights(config, stored)
    assert weights.head.parts[0] is weights.embedding
    assert sum(m is weights.embedding for m in weights.matrices()) == 1


def test_norms_get_the_offset_that_the_file_does_not_hold(kernel_model):
    config, stored, _ = kernel_model("gemma3", "Q8_0")
    weights = pack_weights(config, stored)
    np.testing.assert_array_equal(weights.final_norm, stored["model.norm.weight"].floats() + np.float32(1.0))
    assert stored["model.norm.weight"].type == GGMLQuantizationType.F32
