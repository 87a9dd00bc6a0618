"""Options and fixtures of all tests."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from argosy.models.config import ModelConfig


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak-seconds", type=float, default=15.0, help="how long the soak test loads the server")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tests run side by side, one per core; teams of spinning threads would only wait for each other."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _log_handlers_end_with_their_test() -> Iterator[None]:
    """What `configure_logging` sets up writes to a stream that pytest closes after the test."""
    logger = logging.getLogger("argosy")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.fixture(scope="session")
def transformers_reference() -> Callable[[str], PreTrainedModel]:
    """Build transformers' model from the weights that `name` is served with, dequantised to fp32; one is kept per name."""

    @functools.cache
    def build(name: str) -> PreTrainedModel:
        from argosy.models.checkpoint import load_config
        from argosy.models.loader import checkpoint_weights

        checkpoint = load_config(name)
        model = _empty_reference(checkpoint.config)
        missing, unexpected = model.load_state_dict(dict(checkpoint_weights(checkpoint)), strict=False, assign=True)
        assert unexpected == []
        assert missing == (["lm_head.weight"] if checkpoint.config.tie_embeddings else [])
        model.tie_weights()
        return model.eval()

    return build


def _empty_reference(config: ModelConfig) -> PreTrainedModel:
    """Llama or Gemma 3 in transformers' terms, for checkpoints without rope scaling."""
    from transformers import AutoConfig, AutoModelForCausalLM

    assert config.architecture in ("llama", "gemma3")
    assert config.rope.kind == "default"
    rope = {"rope_type": "default", "rope_theta": config.rope.theta}
    options: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "eos_token_id": list(config.eos_token_ids),
        "bos_token_id": config.bos_token_id,
        "pad_token_id": config.eos_token_ids[0],
    }
    if config.architecture == "llama":
        reference = AutoConfig.for_model("llama", rope_parameters=rope, **options)
    else:
        assert config.rope_local is not None
        local = {"rope_type": "default", "rope_theta": config.rope_local.theta}
        windows = {window for window in config.layer_windows if window is not None}
        reference = AutoConfig.for_model(
            "gemma3_text",
            rope_parameters={"full_attention": rope, "sliding_attention": local},
            layer_types=["full_attention" if w is None else "sliding_attention" for w in config.layer_windows],
            sliding_window=windows.pop(),
            query_pre_attn_scalar=round(config.attention_scale**-2),
            **options,
        )
    return AutoModelForCausalLM.from_config(reference, attn_implementation="eager")
