"""Tiles of 4-bit weights and 8-bit activations.

For a group g of 32 columns, with x[c] = s[g] * a[c] the activations and w[c] = d[g] * q[c] + m[g] the weights,

    sum over c of x[c] * w[c]  =  d * s * (sum of a * q)  +  m * (s * sum of a)

The sum of products is exact in integers; the two terms are added to a float accumulator in this order, group after group.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from argosy.kernels.gemm.op import TileInputs
from argosy.kernels.gemm.q4_layout import GROUP, QUANT_BYTES
from argosy.kernels.ir import F16, F32, I8, I16, I32, I64, Emitter, Value, const, vector
from argosy.kernels.packed import PANEL_ROWS

_AVX2_ROWS = 8
_PARTS = PANEL_ROWS // _AVX2_ROWS


@dataclass(frozen=True, slots=True)
class Q4Avx2:
    """Q4_0 and Q4_1 with AVX2: a panel is two vectors of 8 rows.

    `vpmaddubsw` adds pairs of u4 x s8 products into s16 lanes. Eight of these pairs reach 8 * 2 * 15 * 127 = 30480, so a
    whole group fits without overflow.
    """

    has_minimum: bool
    token_counts: tuple[int, ...] = (4, 2, 1)

    @property
    def group_bytes(self) -> int:
        """Scales, then quants."""
        return 2 * PANEL_ROWS * (2 if self.has_minimum else 1) + QUANT_BYTES

    def accumulate(self, e: Emitter, inputs: TileInputs, num_tokens: int) -> list[list[Value]]:
        """See `Tile`."""
        floats = vector(F32, _AVX2_ROWS)
        quant_offset = self.group_bytes - QUANT_BYTES

        def group(index: Value, sums: list[Value]) -> list[Value]:
            weights = e.at(inputs.weights, e.b.mul(index, const(I64, self.group_bytes)))
            activations = e.at(inputs.activations, e.b.mul(index, const(I64, GROUP)))
            scale_offset = e.b.mul(index, const(I64, 4))
            products = self._products(e, e.at(weights, quant_offset), activations, inputs.activation_stride, num_tokens)
            results = []
            for token in range(num_tokens):
                offset = e.b.add(scale_offset, e.b.mul(inputs.scale_stride, const(I64, token)))
                scale = e.splat(e.load(F32, inputs.scales, offset, align=4), _AVX2_ROWS)
                scaled_sum = e.splat(e.load(F32, inputs.sums, offset, align=4), _AVX2_ROWS)
                if not self.has_minimum:
                    scaled_sum = e.b.fmul(scaled_sum, const(floats, -8.0))
                for part in range(_PARTS):
                    d, m = self._scales(e, weights, part)
                    product = e.b.sitofp(products[token][part], floats)
                    total = e.fma(product, e.b.fmul(d, scale), sums[token * _PARTS + part])
                    results.append(e.fma(m, scaled_sum, total))
            return results

        zeros = [const(floats, 0.0)] * (num_tokens * _PARTS)
        flat = e.loop(const(I64, 0), inputs.groups, group, carried=zeros)
        return [flat[t * _PARTS : (t + 1) * _PARTS] for t in range(num_tokens)]

    def _scales(self, e: Emitter, weights: Value, part: int) -> tuple[Value, Value]:
        """d and m of 8 rows as floats; m = d where only -8 d is needed."""
        halves, floats = vector(F16, _AVX2_ROWS), vector(F32, _AVX2_ROWS)
        d = e.b.fpext(e.load(halves, weights, 16 * part), floats)
        if not self.has_minimum:
            return d, d
        return d, e.b.fpext(e.load(halves, weights, 2 * PANEL_ROWS + 16 * part), floats)

    def _products(
        self, e: Emitter, quants: Value, activations: Value, stride: Value, num_tokens: int
    ) -> list[list[Value]]:
        """Sums of a * q as i32 vectors, per token and part."""
        bytes_, words = vector(I8, 32), vector(I16, 16)
        sums: list[list[ir.Value | None]] = [[None] * _PARTS for _ in range(num_tokens)]
        for run in range(4):
            halves = []
            for part in range(_PARTS):
                q = e.load(bytes_, quants, 64 * run + 32 * part)
                shifted = e.b.bitcast(e.b.lshr(e.b.bitcast(q, words), const(words, 4)), bytes_)
                halves.append((e.b.and_(q, const(bytes_, 15)), e.b.and_(shifted, const(bytes_, 15))))
            for high in (0, 1):
                for token in range(num_tokens):
                    four = e.load(I32, activations, e.b.mul(stride, const(I64, token)), 4 * run + 16 * high)
                    a = e.b.bitcast(e.splat(four, 8), bytes_)
                    for part in range(_PARTS):
                        pairs = e.call("llvm.x86.avx2.pmadd.ub.sw", words, halves[part][high], a)
                        previous = sums[token][part]
                        sums[token][part] = pairs if previous is None else e.b.add(previous, pairs)
        ones = const(words, 1)
        return [[e.call("llvm.x86.avx2.pmadd.wd", vector(I32, 8), s, ones) for s in parts] for parts in sums]
