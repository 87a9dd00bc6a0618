"""Rotary frequencies and tables, against transformers and against the formulas' own landmarks."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from argosy.errors import UnsupportedModel
from argosy.models.architectures.rope import RopeTable, inverse_frequencies, rotate
from argosy.models.config import RopeConfig

DIM = 64
YARN = RopeConfig(theta=1e6, kind="yarn", factor=4.0, original_max_positions=32_768)
LLAMA3 = RopeConfig(
    theta=5e5, kind="llama3", factor=8.0, original_max_positions=8192, low_freq_factor=1.0, high_freq_factor=4.0
)
KINDS = {
    "linear": RopeConfig(kind="linear", factor=8.0),
    "dynamic": RopeConfig(kind="dynamic", factor=2.0, original_max_positions=4096),
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn without truncation": replace(YARN, truncate=False),
    "yarn with its own ramp": replace(YARN, beta_fast=16.0, beta_slow=2.0),
    "yarn with mscale": replace(YARN, factor=40.0, mscale=1.0, mscale_all_dim=0.8),
    "yarn with one mscale": replace(YARN, mscale=0.7),
    "yarn with attention factor": replace(YARN, attention_factor=1.25),
    "yarn of a tiny context": replace(YARN, theta=10_000.0, original_max_positions=4),
}


def transformers_frequencies(rope: RopeConfig, length: int) -> tuple[torch.Tensor, float]:
    parameters = {"rope_type": rope.kind, "rope_theta": rope.theta, "factor": rope.factor}
    if rope.kind == "llama3":
        parameters |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    if rope.kind == "yarn":
        names = ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate")
        parameters |= {name: getattr(rope, name) for name in names}
    if rope.kind in ("llama3", "yarn"):
        parameters["original_max_position_embeddings"] = rope.original_max_positions
    config = LlamaConfig(
        hidden_size=4 * DIM,
        num_attention_heads=4,
        max_position_embeddings=rope.original_max_positions or 4096,
        rope_parameters=parameters,
    )
    return ROPE_INIT_FUNCTIONS[rope.kind](config, torch.device("cpu"), seq_len=length)


@pytest.mark.parametrize("kind", KINDS)
def test_frequencies_equal_transformers(kind):
    ours, our_scale = inverse_frequencies(KINDS[kind], DIM, 8192)
    theirs, their_scale = transformers_frequencies(KINDS[kind], 8192)
    torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=0)
    assert our_scale == pytest.approx(their_scale, rel=1e-12)


@pytest.mark.parametrize("rope", [RopeConfig(theta=500_000.0), LLAMA3, YARN, KINDS["dynamic"]])
def test_the_table_turns_by_position_times_frequency_up_to_its_end(rope):
    length = 4 * (rope.original_max_positions or 512) + 1
    table = RopeTable(rope, DIM, length, dtype=torch.float32, device="cpu")
    original = rope.original_max_positions or 512
    positions = torch.tensor([0, 1, original - 1, original, length - 1])
    frequencies, scale = inverse_frequencies(rope, DIM, length)
    angle = positions[:, None].double() * frequencies.double()
    x = torch.randn(5, 3, DIM)
    low, high = x.double().chunk(2, -1)
    cos, sin = angle.cos()[:, None] * scale, angle.sin()[:, None] * scale
    expected = torch.cat((low * cos - high * sin, high * cos + low * sin), -1)
    # angles are rounded to fp32, as in transformers: at 1e5 radians by 4e-3
    torch.testing.assert_close(rotate(x, table(positions)).double(), expected, rtol=0, atol=3e-2)
    torch.testing.assert_close(rotate(x, table(positions)).double()[:2], expected[:2], rtol=0, atol=1e-5)


def test_positions_beyond_the_table_are_an_error_not_a_wrap():
    table = RopeTable(RopeConfig(), DIM, 16, dtype=torch.float32, device="cpu")
    with pytest.raises(IndexError):
        table(torch.tensor([16]))


def test_dynamic_below_the_pretraining_context_is_the_plain_rope():
    plain, _ = inverse_frequencies(RopeConfig(), DIM, 4096)
    scaled, _ = inverse_frequencies(KINDS["dynamic"], DIM, 1000)
    assert torch.equal(plain, scaled)


def test_dynamic_is_fixed_by_the_longest_length_to_be_served():
    short, long = (inverse_frequencies(KINDS["dynamic"], DIM, length)[0] for length in (5000, 8192))
    assert (long[1:] < short[1:]).all()


def test_llama3_keeps_short_wavelengths_and_divides_long_ones():
    plain, _ = inverse_frequencies(RopeConfig(theta=LLAMA3.theta), DIM, 1)
    scaled, _ = inverse_frequencies(LLAMA3, DIM, 1)
    wavelength = 2 * math.pi / plain
    assert torch.equal(scaled[wavelength < 8192 / 4], plain[wavelength < 8192 / 4])
    torch.testing.assert_close(scaled[wavelength > 8192], plain[wavelength > 8192] / 8)
    between = (wavelength > 8192 / 4) & (wavelength < 8192)
    assert between.any()
    assert ((scaled < plain) & (scaled > plain / 8))[between].all()


def test_frequency_divisors_replace_the_formula():
    divisors = tuple(1.0 + i for i in range(DIM // 2))
    plain, _ = inverse_frequencies(RopeConfig(theta=5e5), DIM, 1)
    divided, scale = inverse_frequencies(RopeConfig(theta=5e5, freq_divisors=divisors), DIM, 1)
    torch.testing.assert_close(divided, plain / torch.tensor(divisors))
    assert scale == 1.0
    with pytest.raises(UnsupportedModel, match="31 frequency divisors for 32"):
        inverse_frequencies(RopeConfig(freq_divisors=divisors[1:]), DIM, 1)


def test_a_partial_rotation_leaves_the_rest_of_the_head_alone():
    whole = RopeTable(RopeConfig(), 16, 8, dtype=torch.float32, device="cpu")
    part = RopeTable(RopeConfig(rotary_dim=16), 24, 8, dtype=torch.float32, device="cpu")
    x, positions = torch.randn(8, 2, 24), torch.arange(8)
    out = rotate(x, part(positions))
    assert torch.equal(out[..., 16:], x[..., 16:])
    assert torch.equal(out[..., :16], rotate(x[..., :16], whole(positions)))


@given(st.integers(0, 900), st.integers(0, 900), st.integers(0, 100), st.sampled_from(sorted(KINDS)))
def test_a_score_depends_on_the_distance_alone(query, key, shift, kind):
    table = RopeTable(KINDS[kind], DIM, 1024, dtype=torch.float64, device="cpu")
    x = torch.linspace(-1.0, 1.0, 2 * DIM, dtype=torch.float64).view(2, 1, DIM)

    def score(offset: int) -> float:
        q, k = rotate(x, table(torch.tensor([query + offset, key + offset])))
        return float((q * k).sum())

    assert score(shift) == pytest.approx(score(0), abs=2e-2)


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        (RopeConfig(kind="longrope"), "longrope"),
        (RopeConfig(kind="yarn", factor=4.0), "'yarn' needs the context length"),
        (RopeConfig(kind="llama3", factor=4.0), "'llama3' needs the context length"),
        (RopeConfig(kind="dynamic", factor=4.0), "'dynamic' needs the context length"),
    ],
)
def test_unknown_and_incomplete_ropes_are_refused(rope, message):
    with pytest.raises(UnsupportedModel, match=message):
        inverse_frequencies(rope, DIM, 128)
