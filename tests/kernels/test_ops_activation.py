from __future__ import annotations

import numpy as np
import pytest
import torch

from argosy.kernels.ops_activation import GateArgs, GateFunction, gate_op, gate_quantize_op
from argosy.kernels.quantize_activations import quantize_row
from argosy.models.architectures.mlp import activation_function, gated

TOKENS = 3


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def reference(gate_up: np.ndarray, function: GateFunction) -> np.ndarray:
    name = "silu" if function == GateFunction.SILU else "gelu_tanh"
    return gated(torch.from_numpy(gate_up), activation_function(name), None).numpy()


@pytest.mark.parametrize("function", list(GateFunction))
@pytest.mark.parametrize(("columns", "groups_per_item", "items"), [(96, 1, 9), (1536, 7, 21), (100, 2, 6), (5, 1, 3)])
def test_rows_are_those_of_torch(run_op, rng, function, columns, groups_per_item, items):
    gate_up = rng.standard_normal((TOKENS, 2 * columns), dtype=np.float32) * 4
    out = np.full((TOKENS, columns), np.nan, np.float32)
    run_op(gate_op, GateArgs(address(gate_up), columns, 0, function, groups_per_item, address(out)), items, chunk=2)
    np.testing.assert_allclose(out, reference(gate_up, function), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("columns", [96, 80])
def test_panels_in_turn_give_the_same_bits(run_op, rng, columns):
    gate_up = rng.standard_normal((TOKENS, 2 * columns), dtype=np.float32)
    panels = gate_up.reshape(TOKENS, 2, columns // 16, 16).swapaxes(1, 2).copy()
    plain, interleaved = np.full((2, TOKENS, columns), np.nan, np.float32)
    run_op(gate_op, GateArgs(address(gate_up), columns, 0, GateFunction.SILU, 2, address(plain)), 6)
    run_op(gate_op, GateArgs(address(panels), columns, 1, GateFunction.SILU, 2, address(interleaved)), 6)
    np.testing.assert_array_equal(interleaved, plain)


@pytest.mark.parametrize("columns", [96, 100, 5])
def test_quantised_rows_are_the_quantised_f32_rows_bit_for_bit(run_op, rng, columns):
    groups = -(-columns // 32)
    gate_up = rng.standard_normal((TOKENS, 2 * columns), dtype=np.float32)
    rows, scratch = np.empty((TOKENS, columns), np.float32), np.full(32, np.nan, np.float32)
    expected, got = (
        [np.full((TOKENS, groups * 32), 99, np.int8), *np.full((2, TOKENS, groups), np.nan, np.float32)] for _ in range(2)
    )
    args = GateArgs(address(gate_up), columns, 0, GateFunction.SILU, 1, address(rows))
    run_op(gate_op, args, TOKENS * groups)
    for row in range(TOKENS):
        quantize_row(address(rows[row]), columns, *(address(a[row]) for a in expected))
    q, scales, scale_sums = map(address, got)
    run_op(gate_quantize_op, args._replace(out=address(scratch), q=q, scales=scales, scale_sums=scale_sums), TOKENS * groups)
    for array, quantised in zip(expected, got, strict=True):
        np.testing.assert_array_equal(quantised, array)
