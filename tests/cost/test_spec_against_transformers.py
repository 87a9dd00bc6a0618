"""Every family of `spec_from_hf` against the parameters that transformers allocates for the same small configuration."""

from __future__ import annotations

from typing import Any

import pytest

from argosy.cost.model_arithmetic import parameter_count
from argosy.cost.spec_from_hf import spec_from_hf

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 96,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
LATENT = {
    **SMALL,
    "num_key_value_heads": 6,
    "q_lora_rank": 10,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "n_group": 1,
    "topk_group": 1,
}
HYBRID = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
    "linear_conv_kernel_dim": 4,
}

CASES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **SMALL},
    "llama with biases, tied": {
        "model_type": "llama",
        **SMALL,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
    },
    "mistral": {"model_type": "mistral", **SMALL},
    "mixtral": {"model_type": "mixtral", **SMALL, "num_local_experts": 3},
    "qwen2": {"model_type": "qwen2", **{k: v for k, v in SMALL.items() if k != "head_dim"}},
    "qwen3": {"model_type": "qwen3", **SMALL},
    "qwen2_moe": {
        "model_type": "qwen2_moe",
        **{k: v for k, v in SMALL.items() if k != "head_dim"},
        **EXPERTS,
        "shared_expert_intermediate_size": 20,
        "mlp_only_layers": [1],
    },
    "qwen3_moe": {"model_type": "qwen3_moe", **SMALL, **EXPERTS, "decoder_sparse_step": 2},
    "qwen3_next": {"model_type": "qwen3_next", **SMALL, **EXPERTS, **HYBRID, "shared_expert_intermediate_size": 20},
    "qwen3_5_text": {"model_type": "qwen3_5_text", **SMALL, **HYBRID},
    "qwen3_5_moe_text": {
        "model_type": "qwen3_5_moe_text",
        **SMALL,
        **EXPERTS,
        **HYBRID,
        "shared_expert_intermediate_size": 20,
    },
    "gemma2": {"model_type": "gemma2", **SMALL},
    "gemma3_text": {"model_type": "gemma3_text", **SMALL},
    "gemma4_text with experts": {
        "model_type": "gemma4_text",
        **SMALL,
        "hidden_size_per_layer_input": 0,
        "global_head_dim": 16,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 12,
        "num_hidden_layers": 6,
    },
    "gemma4_text dense": {
        "model_type": "gemma4_text",
        **SMALL,
        "hidden_size_per_layer_input": 0,
        "global_head_dim": 16,
        "num_hidden_layers": 6,
    },
    "gpt_oss": {"model_type": "gpt_oss", **SMALL, "num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v2": {"model_type": "deepseek_v2", **LATENT, "first_k_dense_replace": 1},
    "deepseek_v2 without query latent": {"model_type": "deepseek_v2", **LATENT, "q_lora_rank": None},
    "deepseek_v3": {"model_type": "deepseek_v3", **LATENT},
    "glm_moe_dsa": {"model_type": "glm_moe_dsa", **LATENT, "index_n_heads": 3, "index_head_dim": 8},
    "deepseek_v32": {"model_type": "deepseek_v32", **LATENT, "index_n_heads": 3, "index_head_dim": 8},
    "glm4_moe": {
        "model_type": "glm4_moe",
        **SMALL,
        "attention_bias": True,
        "use_qk_norm": True,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 12,
    },
    "minimax_m2": {"model_type": "minimax_m2", **SMALL, "num_local_experts": 4, "num_experts_per_tok": 2},
    "llama4_text": {
        "model_type": "llama4_text",
        **SMALL,
        "intermediate_size_mlp": 28,
        "num_local_experts": 4,
        "interleave_moe_layer_step": 2,
    },
    "gpt2": {"model_type": "gpt2", "vocab_size": 96, "n_embd": 24, "n_head": 3, "n_layer": 2, "n_positions": 64},
}


def allocated_elements(config: dict[str, Any]) -> int:
    """Parameters of the causal model, tied ones once, and the buffers that correct the router in checkpoints."""
    rest = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(config["model_type"], **rest)
        )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return parameters + sum(b.numel() for name, b in model.named_buffers() if name.endswith("e_score_correction_bias"))


@pytest.mark.parametrize("title", CASES)
def test_as_many_parameters_as_transformers_allocates(title: str) -> None:
    config = CASES[title]
    assert parameter_count(spec_from_hf(config)) == allocated_elements(config)
