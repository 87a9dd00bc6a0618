from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from argosy.errors import UnsupportedModel
from argosy.kernels.hadamard import hadamard_block, rotate_blocks
from argosy.kernels.rotation import Rotation
from argosy.models.architectures import moe as moe_module
from argosy.models.architectures.attention import SingleSequenceAttention
from argosy.models.architectures.decoder import Decoder, build_decoder
from argosy.models.architectures.linear import Linear
from argosy.models.architectures.weights import checkpoint_slots
from argosy.models.config import ModelConfig, MoeConfig, RopeConfig

HIDDEN, WIDTH, HEAD_DIM = 48, 80, 24  # blocks of 16, 16 and 8
TOKEN_IDS = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8])

Weights = dict[str, NDArray[np.float64]]

LLAMA = ModelConfig(
    architecture="llama",
    vocab_size=11,
    hidden_size=HIDDEN,
    intermediate_size=WIDTH,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=HEAD_DIM,
    max_positions=32,
    norm_eps=1e-3,  # large enough for a fold that forgets it to show
    tie_embeddings=True,
    rope=RopeConfig(),
    layer_windows=(None, None),
    attention_scale=HEAD_DIM**-0.5,
)
MOE = MoeConfig(num_experts=4, num_experts_per_token=2, intermediate_size=32, normalize_top_k=True, layers=(0, 1))
CONFIGS = {
    "llama": replace(LLAMA, output_bias=True, mlp_bias=True),
    "qwen2": replace(LLAMA, architecture="qwen2", qkv_bias=True, tie_embeddings=False),
    "qwen3": replace(LLAMA, architecture="qwen3", qk_norm=True),
    "gemma3": replace(
        LLAMA,
        architecture="gemma3",
        qk_norm=True,
        norm_offset=1.0,
        embedding_scale=HIDDEN**0.5,
        activation="gelu_tanh",
        layer_windows=(4, None),
        rope_local=RopeConfig(theta=100.0),
        final_logit_softcap=30.0,
    ),
    "mixtral": replace(LLAMA, architecture="mixtral", moe=MOE, intermediate_size=MOE.intermediate_size),
    "qwen3_moe": replace(LLAMA, architecture="qwen3_moe", qk_norm=True, moe=replace(MOE, layers=(1,))),
}


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the architectures, which compute norms, rope and softmax in fp32, do so in fp64."""
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    monkeypatch.setattr(torch, "float32", torch.float64)


def build(config: ModelConfig) -> Decoder:
    return build_decoder(config, dtype=torch.float64, device="cpu")


def random_weights(config: ModelConfig) -> Weights:
    """Norm weights far from neutral, an embedding with outliers in two columns, biases that matter."""
    rng = np.random.default_rng(7)
    weights = {}
    for name, slot in checkpoint_slots(build(config)).items():
        values = rng.standard_normal(tuple(slot.shape))
        if "norm" in name:
            values = (1.0 - config.norm_offset) + 0.3 * values
        elif name.endswith("weight"):
            values /= values.shape[-1] ** 0.5
        weights[name] = values
    weights["model.embed_tokens.weight"][:, 5:7] *= 20
    return weights


def load(config: ModelConfig, weights: Weights) -> Decoder:
    decoder = build(config)
    decoder.load_weights((name, torch.from_numpy(values)) for name, values in weights.items())
    return decoder


def is_norm(name: str) -> bool:
    return name.removesuffix(".weight").endswith("norm")


def rotation_of(config: ModelConfig, weights: Weights) -> Rotation:
    norms = {name.removesuffix(".weight"): w + config.norm_offset for name, w in weights.items() if is_norm(name)}
    return Rotation(config, norms)


def rotate(config: ModelConfig, weights: Weights) -> tuple[ModelConfig, Weights]:
    rotation, rotated = rotation_of(config, weights), {}
    for name, values in weights.items():
        stem, _, part = name.rpartition(".")
        if is_norm(name):
            rotated[name] = rotation.norm(stem) - config.norm_offset
        else:
            rotated[name] = rotation.bias(stem, values) if part == "bias" else rotation.matrix(stem, values)
    if config.tie_embeddings:
        rotated["lm_head.weight"] = rotation.matrix("lm_head", weights["model.embed_tokens.weight"])
    return replace(config, tie_embeddings=False), rotated


def rotate_online(x: Tensor, block: int) -> Tensor:
    return torch.from_numpy(rotate_blocks(np.ascontiguousarray(x.numpy()), block))


def add_online_rotations(decoder: Decoder, rotation: Rotation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rotate the inputs of the matrices that ask for it, as kernels do."""
    for path, module in decoder.named_modules():
        if isinstance(module, Linear) and path != "lm_head":
            parent = path.rpartition(".")[0]
            columns = module.weight.shape[1]
            (block,) = {rotation.input_block(f"{parent}.{part}", columns) for part in module.parts}

            def hook(_: nn.Module, inputs: tuple[Tensor], block: int = block) -> tuple[Tensor]:
                return (rotate_online(inputs[0], block),)

            module.register_forward_pre_hook(hook)

    multiply = moe_module.linear

    def expert_linear(x: Tensor, weight: Tensor, bias: Tensor | None, row_tile: int | None) -> Tensor:
        name = "down_proj" if weight.shape == (HIDDEN, MOE.intermediate_size) else "gate_proj"
        block = rotation.input_block(f"model.layers.0.mlp.experts.0.{name}", x.shape[1])
        return multiply(rotate_online(x, block), weight, bias, row_tile)

    monkeypatch.setattr(moe_module, "linear", expert_linear)


def logits(decoder: Decoder, head_block: int = 1) -> Tensor:
    with torch.inference_mode():
        hidden = decoder(TOKEN_IDS, torch.arange(len(TOKEN_IDS)), SingleSequenceAttention())
        return decoder.logits(rotate_online(hidden, head_block))


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_rotated_model_computes_the_same(config: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = random_weights(config)
    expected = logits(load(config, weights))
    rotation = rotation_of(config, weights)
    decoder = load(*rotate(config, weights))
    add_online_rotations(decoder, rotation, monkeypatch)
    head_block = rotation.input_block("lm_head", HIDDEN)
    assert expected.dtype == torch.float64
    torch.testing.assert_close(logits(decoder, head_block), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_every_matrix_that_bytes_are_made_of_changes(config: ModelConfig) -> None:
    weights = random_weights(config)
    _, rotated = rotate(config, weights)
    same = {name for name, values in weights.items() if np.allclose(values, rotated[name], rtol=1e-12, atol=0)}
    unfolded = {name for name in weights if is_norm(name) and (config.architecture == "gemma3" or "self_attn" in name)}
    unfolded |= {name for name in weights if name.endswith(".bias") and not any(p in name for p in ("v_", "o_", "down_"))}
    if config.architecture == "gemma3":
        unfolded.add("model.embed_tokens.weight")
    assert same == unfolded


def test_only_gemma_rotates_online_what_others_fold() -> None:
    names = ("self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")
    blocks = {
        name: [
            rotation_of(CONFIGS[name], random_weights(CONFIGS[name])).input_block(f"model.layers.1.{n}", 48) for n in names
        ]
        for name in ("llama", "gemma3")
    }
    assert blocks == {"llama": [1, 1, 1, 16], "gemma3": [16, 1, 16, 16]}


def test_outliers_of_the_residual_stream_spread_over_their_block() -> None:
    config = CONFIGS["qwen2"]
    weights = random_weights(config)
    _, rotated = rotate(config, weights)
    peaks = [np.abs(w["model.embed_tokens.weight"]).max() for w in (weights, rotated)]
    assert peaks[1] < 0.6 * peaks[0]


def test_float32_weights_stay_float32() -> None:
    config = CONFIGS["llama"]
    weights = {name: values.astype(np.float32) for name, values in random_weights(config).items()}
    rotation = Rotation(config, {n.removesuffix(".weight"): w for n, w in weights.items() if is_norm(n)})
    for name in ("self_attn.v_proj", "self_attn.o_proj", "mlp.down_proj", "mlp.up_proj"):
        assert rotation.matrix(f"model.layers.0.{name}", weights[f"model.layers.0.{name}.weight"]).dtype == np.float32


def test_unknown_architecture_and_matrix_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="'mamba' cannot be rotated"):
        Rotation(replace(LLAMA, architecture="mamba"), {})
    with pytest.raises(UnsupportedModel, match=r"'model\.layers\.0\.mlp\.conv'"):
        Rotation(LLAMA, {}).matrix("model.layers.0.mlp.conv", np.zeros((2, 2)))


def test_block_divides() -> None:
    assert [hadamard_block(n) for n in (576, 1536, 8960, 4864, 2048, 4096, 12, 7)] == [64, 512, 256, 256, 1024, 1024, 1, 1]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
