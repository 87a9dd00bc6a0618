"""Rotary position embedding (Su et al. 2021) and its length extensions, as a table of cosines and sines.

Pairs are (i, i + rotary_dim / 2), the layout of Hugging Face checkpoints:

    y[i]            = x[i] · cos(p·f[i]) - x[i + half] · sin(p·f[i])
    y[i + half]     = x[i + half] · cos(p·f[i]) + x[i] · sin(p·f[i])

with p the position and f the inverse frequencies.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from argosy.errors import UnsupportedModel
from argosy.models.config import RopeConfig


class Rotary(NamedTuple):
    """The rotation of each token of a step: `cos` and `sin` [tokens, 1, rotary_dim]; the first half of `sin` is negated."""

    cos: Tensor
    sin: Tensor


class RopeTable(nn.Module):
    """cos and sin of every position below `max_positions`, computed once in fp32 and kept in `dtype`.

    Args:
        config: kind and parameters.
        head_dim: the whole head rotates unless `config.rotary_dim` says less.
        max_positions: rows of the table; also the length that "dynamic" scales its base for, fixed so that keys already
            in a cache keep their rotation (transformers gives the same for a forward pass of that length).
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, config: RopeConfig, head_dim: int, max_positions: int, *, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        rotary_dim = config.rotary_dim or head_dim
        frequencies, scale = inverse_frequencies(config, rotary_dim, max_positions)
        angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequencies)
        self.register_buffer("cos", (angles.cos() * scale).to(device, dtype), persistent=False)
        self.register_buffer("sin", (angles.sin() * scale).to(device, dtype), persistent=False)

    def forward(self, positions: Tensor) -> Rotary:
        """The rotation at `positions`, i64[tokens], each below the table's length."""
        cos, sin = self.cos[positions], self.sin[positions]
        return Rotary(torch.cat((cos, cos), -1).unsqueeze(1), torch.cat((-sin, sin), -1).unsqueeze(1))


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """Rotate the leading rotary_dim elements of each head of `x`, [tokens, heads, head_dim]; the result is contiguous."""
    rotary_dim = rotary.cos.shape[-1]
    if rotary_dim < x.shape[-1]:
        return torch.cat((rotate(x[..., :rotary_dim], rotary), x[..., rotary_dim:]), -1)
    return (x * rotary.cos).add_(x.roll(rotary_dim // 2, -1).mul_(rotary.sin))


def inverse_frequencies(config: RopeConfig, rotary_dim: int, max_positions: int) -> tuple[Tensor, float]:
    """Radians per position of each pair, f32[rotary_dim / 2], and the factor on cos and sin (1 but for "yarn").

    Raises:
        UnsupportedModel: the kind is unknown, or lacks a parameter it needs.
    """
    if config.freq_divisors is not None:
        if len(config.freq_divisors) != rotary_dim // 2:
            raise UnsupportedModel(
                f"rope has {len(config.freq_divisors)} frequency divisors for {rotary_dim // 2} frequencies"
            )
        return _powers(config.theta, rotary_dim) / torch.tensor(config.freq_divisors), 1.0
    if config.kind == "default":
        return _powers(config.theta, rotary_dim), 1.0
    if config.kind == "linear":
        return _powers(config.theta, rotary_dim) / config.factor, 1.0
    if config.original_max_positions is None:
        raise UnsupportedModel(f"rope type {config.kind!r} needs the context length of pre-training")
    original = config.original_max_positions
    if config.kind == "dynamic":
        return _powers(_dynamic_theta(config, rotary_dim, original, max_positions), rotary_dim), 1.0
    if config.kind == "llama3":
        return _llama3(config, rotary_dim, original), 1.0
    if config.kind == "yarn":
        return _yarn(config, rotary_dim, original), yarn_attention_factor(config)
    raise UnsupportedModel(f"unknown rope type {config.kind!r}: known are default, linear, dynamic, llama3 and yarn")


def _powers(theta: float, rotary_dim: int) -> Tensor:
    """theta^(-2i / rotary_dim) for each pair i."""
    return 1.0 / theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)


def _dynamic_theta(config: RopeConfig, rotary_dim: int, original: int, length: int) -> float:
    """NTK-aware base: theta · (factor · length / original - (factor - 1))^(d / (d - 2)), for lengths beyond `original`."""
    stretch = config.factor * max(length, original) / original - (config.factor - 1)
    return config.theta * math.pow(stretch, rotary_dim / (rotary_dim - 2))


def _llama3(config: RopeConfig, rotary_dim: int, original: int) -> Tensor:
    """Llama 3.1: long wavelengths are divided by `factor`, short ones kept, those between interpolated."""
    frequencies = _powers(config.theta, rotary_dim)
    rotations = original * frequencies / (2 * math.pi)  # turns within the pre-training context
    kept = (rotations - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
    return torch.lerp(frequencies / config.factor, frequencies, kept.clamp(0.0, 1.0))


def _yarn(config: RopeConfig, rotary_dim: int, original: int) -> Tensor:
    """YaRN (Peng et al. 2023): interpolate pairs that turn less than `beta_slow` times in the pre-training context, keep
    those that turn more than `beta_fast` times, ramp between."""

    def pair_turning(turns: float) -> float:
        return rotary_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(config.theta))

    low, high = pair_turning(config.beta_fast), pair_turning(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    if low == high:
        high += 0.001  # a ramp needs a width
    interpolated = ((torch.arange(rotary_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0.0, 1.0)
    frequencies = _powers(config.theta, rotary_dim)
    return torch.lerp(frequencies, frequencies / config.factor, interpolated)


def yarn_attention_factor(config: RopeConfig) -> float:
    """What YaRN multiplies cos and sin by: 0.1 · ln(factor) + 1, or the ratio of its two `mscale` variants (DeepSeek)."""

    def mscale(weight: float) -> float:
        return 1.0 if config.factor <= 1 else 0.1 * weight * math.log(config.factor) + 1.0

    if config.attention_factor is not None:
        return config.attention_factor
    if config.mscale and config.mscale_all_dim:
        return mscale(config.mscale) / mscale(config.mscale_all_dim)
    return mscale(1.0)
