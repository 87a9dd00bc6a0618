import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.cost.training_arithmetic import (
    accumulation_steps,
    chinchilla_loss,
    chinchilla_tokens,
    compute_optimal,
    devices_for_deadline,
    effective_batch,
    gpt_training_flops,
    training_days,
    training_flops,
)
from argosy.errors import ConfigError

H100 = 989e12


def test_seventy_billion_on_two_trillion_tokens():
    assert training_flops(70e9, 2e12) == pytest.approx(8.4e23)


def test_days_on_512_devices():
    flops = training_flops(70e9, 2e12)
    assert training_days(flops, devices=512, mfu=0.45, peak_flop_per_s=H100) == pytest.approx(42.67, rel=0.005)


def test_effective_batch_is_the_product_and_has_an_inverse():
    assert effective_batch(4, 64, 8) == 2048
    assert accumulation_steps(2048, 4, 64) == 8
    with pytest.raises(ConfigError, match="effective_batch 2047"):
        accumulation_steps(2047, 4, 64)


def test_twenty_tokens_per_parameter():
    assert chinchilla_tokens(70e9) == 1.4e12
    best = compute_optimal(training_flops(70e9, 1.4e12))
    assert best.parameters == pytest.approx(70e9)
    assert best.tokens == pytest.approx(1.4e12)


def test_published_loss_fit_prefers_the_smaller_model_on_more_tokens():
    # Hoffmann et al. 2022: at Gopher's budget 70 B on 1.4 T beats 280 B on 300 B tokens.
    assert chinchilla_loss(70e9, 1.4e12) < chinchilla_loss(280e9, 300e9)
    assert chinchilla_loss(70e9, 1.4e12) == pytest.approx(1.937, abs=0.002)


def test_gpt_formula_agrees_with_the_published_estimate_for_gpt_3():
    # Narayanan et al. 2021, section 5.1: 300 B tokens in 34 days on 1024 devices at 140 TFLOP/s each, from 8TP / (n X).
    flops = gpt_training_flops(batch=1536, sequence=2048, layers=96, hidden=12288, vocab=51200, full_recompute=True)
    p = 12 * 96 * 12288**2 * (1 + 13 / (12 * 12288) + (51200 + 2048) / (12 * 96 * 12288))
    assert p == pytest.approx(174.6e9, rel=0.001)
    tokens = 300e9
    days = tokens / (1536 * 2048) * flops / (1024 * 140e12) / 86400
    assert days == pytest.approx(34, rel=0.03)  # 8TP leaves attention out
    assert 8 * tokens * p / (1024 * 140e12) / 86400 == pytest.approx(34, abs=0.5)


def test_full_recomputation_is_one_more_forward_pass_of_the_layers():
    sizes = {"batch": 4, "sequence": 2048, "layers": 48, "hidden": 6144, "vocab": 51200}
    head = 6.0 * 4 * 2048 * 6144 * 51200
    without, with_ = gpt_training_flops(**sizes), gpt_training_flops(**sizes, full_recompute=True)
    assert (with_ - head) / (without - head) == pytest.approx(4 / 3)


@given(st.floats(1e18, 1e26), st.floats(0.5, 400), st.floats(0.05, 1), st.integers(1, 64))
def test_devices_for_a_deadline_are_enough_and_not_one_multiple_too_many(flops, days, mfu, multiple):
    devices = devices_for_deadline(flops, days=days, mfu=mfu, peak_flop_per_s=H100, multiple_of=multiple)
    assert devices % multiple == 0
    assert training_days(flops, devices=devices, mfu=mfu, peak_flop_per_s=H100) <= days * (1 + 1e-9)
    if devices > multiple:
        fewer = devices - multiple
        assert training_days(flops, devices=fewer, mfu=mfu, peak_flop_per_s=H100) > days * (1 - 1e-9)


@given(st.floats(1e15, 1e27))
def test_optimal_budget_is_spent_exactly(flops):
    assert compute_optimal(flops).flops == pytest.approx(flops)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: training_flops(-1, 1), "parameters"),
        (lambda: training_flops(1, math.nan), "tokens"),
        (lambda: training_days(1, devices=0, mfu=0.5, peak_flop_per_s=1), "devices"),
        (lambda: training_days(1, devices=1, mfu=1.2, peak_flop_per_s=1), "mfu"),
        (lambda: training_days(1, devices=1, mfu=0, peak_flop_per_s=1), "mfu"),
        (lambda: training_days(1, devices=1, mfu=0.5, peak_flop_per_s=-1), "peak_flop_per_s"),
        (lambda: devices_for_deadline(1, days=0, mfu=0.5, peak_flop_per_s=1), "days"),
        (lambda: chinchilla_tokens(0), "parameters"),
        (lambda: effective_batch(1, 0, 1), "data_parallel"),
        (lambda: effective_batch(1, 1, 1.5), "accumulation"),
        (lambda: chinchilla_loss(1e9, -5), "tokens"),
        (lambda: gpt_training_flops(batch=1, sequence=0, layers=1, hidden=1, vocab=1), "sequence"),
    ],
)
def test_nonsense_is_refused_by_name(call, field):
    with pytest.raises(ConfigError, match=field):
        call()
