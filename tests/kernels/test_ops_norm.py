from __future__ import annotations

import numpy as np
import pytest
import torch

from argosy.kernels.ops_norm import NormArgs, rms_norm_op, rms_norm_quantize_op
from argosy.kernels.quantize_activations import quantize_row
from argosy.models.architectures.norm import RMSNorm

EPS = 1e-5
WIDTHS = [576, 64, 61, 7, 1]
"""Whole vectors and groups, and tails of either."""


def norm_of(weight: np.ndarray, x: np.ndarray) -> np.ndarray:
    norm = RMSNorm(len(weight), eps=EPS, offset=0.0, dtype=torch.float32, device="cpu")
    norm.weight.copy_(torch.from_numpy(weight))
    return norm(torch.from_numpy(x)).numpy()


def address(array: np.ndarray) -> int:
    return array.ctypes.data


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("branch_kind", ["none", "plain", "normed"])
def test_rows_are_those_of_the_torch_module(run_op, rng, columns, branch_kind):
    hidden, branch = rng.standard_normal((2, 5, columns), dtype=np.float32) * 3
    weight, branch_weight = rng.standard_normal((2, columns), dtype=np.float32)
    out = np.full((5, columns), np.nan, np.float32)
    expected_hidden = hidden.copy()
    if branch_kind == "plain":
        expected_hidden += branch
    elif branch_kind == "normed":
        expected_hidden += norm_of(branch_weight, branch)
    args = NormArgs(
        address(hidden),
        0 if branch_kind == "none" else address(branch),
        address(branch_weight) if branch_kind == "normed" else 0,
        address(weight),
        columns,
        EPS,
        0,
        address(out),
    )
    run_op(rms_norm_op, args, items=5, chunk=2)
    np.testing.assert_allclose(hidden, expected_hidden, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(out, norm_of(weight, hidden), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("columns", WIDTHS)
def test_quantised_rows_are_the_quantised_f32_rows_bit_for_bit(run_op, rng, columns):
    groups = -(-columns // 32)
    hidden, weight = rng.standard_normal((4, columns), dtype=np.float32), rng.standard_normal(columns, dtype=np.float32)
    normed, scratch = np.empty((4, columns), np.float32), np.empty(columns, np.float32)
    args = NormArgs(address(hidden), 0, 0, address(weight), columns, EPS, 0, address(normed))
    run_op(rms_norm_op, args, items=4)
    expected, quantised = (
        [np.full((4, groups * 32), 99, np.int8), *np.full((2, 4, groups), np.nan, np.float32)] for _ in range(2)
    )
    for row in range(4):
        quantize_row(address(normed[row]), columns, *(address(a[row]) for a in expected))
    q, scales, scale_sums = map(address, quantised)
    run_op(rms_norm_quantize_op, args._replace(out=address(scratch), q=q, scales=scales, scale_sums=scale_sums), 4)
    for array, got in zip(expected, quantised, strict=True):
        np.testing.assert_array_equal(got, array)


def test_what_rounding_left_of_refined_groups_stands_behind_the_others(run_op, rng):
    hidden, weight = rng.standard_normal((5, 128), dtype=np.float32), rng.standard_normal(128, dtype=np.float32)
    hidden[:, 40] *= 1000
    normed, scratch = np.empty((5, 128), np.float32), np.empty(128, np.float32)
    args = NormArgs(address(hidden), 0, 0, address(weight), 128, EPS, 0, address(normed))
    run_op(rms_norm_op, args, items=5)
    refined = np.array([3, 1], np.int64)
    q, (scales, sums) = np.full((5, 6 * 32), 99, np.int8), np.full((2, 5, 6), np.nan, np.float32)
    args = args._replace(out=address(scratch), q=address(q), scales=address(scales), scale_sums=address(sums))
    run_op(rms_norm_quantize_op, args._replace(refined=address(refined), num_refined=2), 5)
    groups = q.reshape(5, 6, 32).astype(np.float32)
    np.testing.assert_allclose(sums, scales * groups.sum(axis=2), rtol=1e-6, atol=1e-6)
    values, found = normed.reshape(5, 4, 32), groups * scales[..., None]
    found[:, 3] += found[:, 4]
    found[:, 1] += found[:, 5]
    bounds = np.abs(values).max(axis=2, keepdims=True) / 254 * 1.001
    bounds[:, [1, 3]] /= 200
    assert np.all(np.abs(values - found[:, :4]) <= bounds)
    plain = [np.empty((5, 128), np.int8), np.empty((5, 4), np.float32), np.empty((5, 4), np.float32)]
    for row in range(5):
        quantize_row(address(normed[row]), 128, *(address(a[row]) for a in plain))
    np.testing.assert_array_equal(q[:, :128], plain[0])


def test_chosen_rows_are_gathered(run_op, rng):
    hidden, weight = rng.standard_normal((9, 40), dtype=np.float32), rng.standard_normal(40, dtype=np.float32)
    rows, out = np.array([7, 0, 7], dtype=np.int64), np.empty((3, 40), np.float32)
    run_op(rms_norm_op, NormArgs(address(hidden), 0, 0, address(weight), 40, EPS, address(rows), address(out)), 3)
    np.testing.assert_allclose(out, norm_of(weight, hidden[rows]), rtol=2e-6, atol=1e-6)


def test_the_output_may_be_the_input(run_op, rng):
    hidden, weight = rng.standard_normal((3, 72), dtype=np.float32), rng.standard_normal(72, dtype=np.float32)
    expected = norm_of(weight, hidden)
    run_op(rms_norm_op, NormArgs(address(hidden), 0, 0, address(weight), 72, EPS, 0, address(hidden)), 3)
    np.testing.assert_allclose(hidden, expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_reaches_the_output(run_op, rng, value):
    hidden, weight = rng.standard_normal((1, 72), dtype=np.float32), np.ones(72, np.float32)
    hidden[0, 70] = value
    out = np.zeros((1, 72), np.float32)
    run_op(rms_norm_op, NormArgs(address(hidden), 0, 0, address(weight), 72, EPS, 0, address(out)), 1)
    assert np.isnan(out[0, 70])
