"""Tiles of floating-point weights and f32 activations.

Weights are widened to f32, exactly, and every product is added to one f32 accumulator per token and row, column after
column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from argosy.kernels.features import Isa
from argosy.kernels.gemm.lowering import LOWERINGS, Lowering
from argosy.kernels.gemm.op import TileInputs
from argosy.kernels.ir import F32, I16, I32, I64, Emitter, Value, const, vector
from argosy.kernels.packed import PANEL_ROWS, WeightKind

TOKEN_COUNTS: Mapping[Isa, tuple[int, ...]] = MappingProxyType(
    {Isa.GENERIC: (2, 1), Isa.AVX2: (6, 4, 2, 1), Isa.AVX512_VNNI: (12, 8, 4, 2, 1)}
)
"""Tokens of a tile: as many as the registers hold accumulators for."""

ELEMENT_BYTES: Mapping[WeightKind, int] = MappingProxyType({WeightKind.F32: 4, WeightKind.BF16: 2, WeightKind.F16: 2})


@dataclass(frozen=True, slots=True)
class FloatTile:
    """F32, BF16 or F16 with one instruction set; see `Tile`."""

    isa: Isa
    kind: WeightKind

    @property
    def token_counts(self) -> tuple[int, ...]:
        """See `Tile`."""
        return TOKEN_COUNTS[self.isa]

    def accumulate(self, e: Emitter, inputs: TileInputs, num_tokens: int) -> list[list[Value]]:
        """See `Tile`."""
        lowering = LOWERINGS[self.isa]
        parts = range(lowering.parts)
        column_bytes = PANEL_ROWS * ELEMENT_BYTES[self.kind]
        columns = e.b.udiv(inputs.panel_bytes, const(I64, column_bytes))
        rows = [e.at(inputs.activations, e.b.mul(inputs.activation_stride, const(I64, t))) for t in range(num_tokens)]

        def column(index: Value, sums: list[Value]) -> list[Value]:
            base = e.at(inputs.weights, e.b.mul(index, const(I64, column_bytes)))
            weights = [self._weights(e, lowering, base, part) for part in parts]
            offset = e.b.mul(index, const(I64, 4))
            xs = [e.splat(e.load(F32, row, offset, align=4), lowering.rows) for row in rows]
            return [
                lowering.multiply_add(e, weights[part], x, sums[token * len(parts) + part])
                for token, x in enumerate(xs)
                for part in parts
            ]

        flat = e.loop(const(I64, 0), columns, column, lowering.zeros(num_tokens * len(parts)))
        return [flat[start : start + len(parts)] for start in range(0, num_tokens * len(parts), len(parts))]

    def _weights(self, e: Emitter, lowering: Lowering, base: Value, part: int) -> Value:
        """The rows of `part` of the column at `base`, f32."""
        if self.kind is WeightKind.F32:
            return e.load(vector(F32, lowering.rows), base, 4 * lowering.rows * part)
        if self.kind is WeightKind.F16:
            return lowering.halves(e, base, 0, part)
        bits = e.load(vector(I16, lowering.rows), base, 2 * lowering.rows * part)
        words = vector(I32, lowering.rows)
        return e.b.bitcast(e.b.shl(e.b.zext(bits, words), const(words, 16)), vector(F32, lowering.rows))
