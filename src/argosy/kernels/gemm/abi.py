"""Arguments of a gemm op, in the order of its `int64 *args`.

    out[t, r] = sum over c of activation[t, c] * weight[r, c]  (+ bias[r])  (+ out[t, r] before, if accumulating)

for all tokens t of the step and the 16 rows r of each panel (item) in [begin, end).

Activations may be refined: for some groups of columns what rounding left of them is quantised once more, as further groups
behind the last one, and multiplied with the weights of the group they came from.
"""

from __future__ import annotations

from enum import IntEnum


class GemmArg(IntEnum):
    """Position of an argument; addresses and sizes are int64, sizes in elements unless named otherwise."""

    NUM_TOKENS = 0
    """Address of the int64 that holds the number of tokens: a field of the step's header."""
    WEIGHTS = 1
    """Address of `PackedMatrix.data`."""
    ROWS = 2
    """Rows of the matrix, without padding."""
    GROUPS = 3
    """Groups of 32 columns, rounded up; activations and weights behind the last column are zeros."""
    ACTIVATIONS = 4
    """Address of the activations, token after token: s8 for quantised weights, f32 for floating-point ones."""
    ACTIVATION_STRIDE_BYTES = 5
    """From one token's activations to the next."""
    SCALES = 6
    """Address of f32 [tokens, groups of 32]: scale of the activations (quantised weights only)."""
    SCALED_SUMS = 7
    """Address of f32 [tokens, groups of 32]: scale times the sum of the quantised activations."""
    SCALE_STRIDE_BYTES = 8
    """From one token's scales (and sums) to the next."""
    OUT = 9
    """Address of f32 [tokens, OUT_STRIDE]."""
    OUT_STRIDE_BYTES = 10
    """From one token's results to the next."""
    BIAS = 11
    """Address of f32 [rows], or 0."""
    ACCUMULATE = 12
    """1: add to what `OUT` holds; 0: overwrite it."""
    PANEL_BYTES = 13
    """`PackedMatrix.panel_bytes`."""
    NUM_REFINED = 14
    """Groups of activations that are refined (quantised weights with groups of 32 columns only)."""
    REFINED_OFFSETS = 15
    """Address of i64 [NUM_REFINED]: bytes from a panel's begin to the weights of each refined group."""
