"""Tiles of 8-bit weights with one scale per row, and 8-bit activations with one scale per token.

    sum over c of x[c] * w[c]  =  (d * s) * (sum of a * q)

The sum runs over all columns in i32: 133 000 columns fit (65 000 with AVX-512 VNNI, whose activations are shifted).
"""

from __future__ import annotations

from dataclasses import dataclass

from argosy.kernels.features import Isa
from argosy.kernels.gemm.int8_layout import FACTOR_BYTES, RUNS_PER_GROUP
from argosy.kernels.gemm.lowering import LOWERINGS
from argosy.kernels.gemm.op import TileInputs
from argosy.kernels.gemm.q8 import TOKEN_COUNTS, sum_runs
from argosy.kernels.ir import F32, I64, Emitter, Value, const, vector


@dataclass(frozen=True, slots=True)
class Int8Tile:
    """INT8 with one instruction set; see `Tile`."""

    isa: Isa

    @property
    def token_counts(self) -> tuple[int, ...]:
        """See `Tile`."""
        return TOKEN_COUNTS[self.isa]

    def accumulate(self, e: Emitter, inputs: TileInputs, num_tokens: int) -> list[list[Value]]:
        """See `Tile`."""
        lowering = LOWERINGS[self.isa]
        parts = range(lowering.parts)
        quants = e.at(inputs.weights, FACTOR_BYTES)
        num_runs = e.b.mul(inputs.groups, const(I64, RUNS_PER_GROUP))
        products = sum_runs(e, self.isa, quants, inputs.activations, inputs.activation_stride, num_runs, num_tokens)
        scales = lowering.token_floats(e, inputs.scales, inputs.scale_stride, const(I64, 0), num_tokens)
        factors = [e.load(vector(F32, lowering.rows), inputs.weights, 4 * lowering.rows * part) for part in parts]
        return [
            [
                e.b.fmul(lowering.to_floats(e, products[token * len(parts) + part]), e.b.fmul(factors[part], scale))
                for part in parts
            ]
            for token, scale in enumerate(scales)
        ]
