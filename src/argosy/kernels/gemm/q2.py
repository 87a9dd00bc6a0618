"""Tiles of 2-bit weights with a scale and a minimum per 16 columns, and 8-bit activations.

For a group of 32 columns, with x[c] = v * a[c] the activations, and w[c] = d * s[c / 16] * q[c] - m * t[c / 16] the weights,

    sum over c of x[c] * w[c]  =  (d * v) * (sum over both halves of s * (sum of a * q))
                                - (m * v) * (sum over both halves of t * (sum of a))

Both outer sums are exact in integers; the two terms are added to a float accumulator in this order, group after group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from argosy.kernels.features import Isa
from argosy.kernels.gemm.lowering import LOWERINGS
from argosy.kernels.gemm.nibble_dot import NIBBLE_DOTS
from argosy.kernels.gemm.op import TileInputs
from argosy.kernels.gemm.q2_layout import (
    FACTOR_BYTES,
    HALVES_BYTES,
    SCALE_BYTES,
    SUB_BYTES,
    SUB_GROUP,
    SUPER_BYTES,
    SUPER_GROUP,
)
from argosy.kernels.ir import I8, I16, I32, I64, Emitter, Value, const, vector

TOKEN_COUNTS: Mapping[Isa, tuple[int, ...]] = MappingProxyType(
    {Isa.GENERIC: (2, 1), Isa.AVX2: (3, 2, 1), Isa.AVX512_VNNI: (6, 4, 2, 1)}
)
_GROUP = 32
_SUBS_PER_GROUP = _GROUP // SUB_GROUP
_RUNS = SUB_GROUP // 4


@dataclass(frozen=True, slots=True)
class Q2Tile:
    """Q2_K with one instruction set; see `Tile`."""

    isa: Isa

    @property
    def token_counts(self) -> tuple[int, ...]:
        """See `Tile`."""
        return TOKEN_COUNTS[self.isa]

    def accumulate(self, e: Emitter, inputs: TileInputs, num_tokens: int) -> list[list[Value]]:
        """See `Tile`."""
        lowering = LOWERINGS[self.isa]
        parts, groups = lowering.parts, SUPER_GROUP // _GROUP

        def super_group(index: Value, sums: list[Value]) -> list[Value]:
            base = e.at(inputs.weights, e.b.mul(index, const(I64, SUPER_BYTES)))

            def group(within: Value, sums: list[Value]) -> list[Value]:
                number = e.b.add(e.b.mul(index, const(I64, groups)), within)
                subs = e.at(base, FACTOR_BYTES, e.b.mul(within, const(I64, _SUBS_PER_GROUP * SUB_BYTES)))
                activations = e.at(inputs.activations, e.b.mul(number, const(I64, _GROUP)))
                products, minima = self._sums(e, subs, activations, inputs.activation_stride, num_tokens)
                scales = lowering.token_floats(e, inputs.scales, inputs.scale_stride, number, num_tokens)
                results = []
                for token, scale in enumerate(scales):
                    for part in range(parts):
                        place = token * parts + part
                        d, m = (e.b.fmul(lowering.halves(e, base, at, part), scale) for at in (0, HALVES_BYTES))
                        total = lowering.multiply_add(e, lowering.to_floats(e, products[place]), d, sums[place])
                        minimum = lowering.to_floats(e, minima[place])
                        results.append(lowering.multiply_add(e, minimum, e.b.fneg(m), total))
                return results

            return e.loop(const(I64, 0), const(I64, groups), group, sums)

        supers = e.b.sdiv(inputs.groups, const(I64, groups))
        flat = e.loop(const(I64, 0), supers, super_group, lowering.zeros(num_tokens * parts))
        return [flat[start : start + parts] for start in range(0, num_tokens * parts, parts)]

    def _sums(
        self, e: Emitter, subs: Value, activations: Value, stride: Value, num_tokens: int
    ) -> tuple[list[Value], list[Value]]:
        """The two integer sums over a group, i32, each token after token and within that part after part."""
        lowering, dot = LOWERINGS[self.isa], NIBBLE_DOTS[self.isa]
        parts = range(lowering.parts)
        rows = [e.at(activations, e.b.mul(stride, const(I64, token))) for token in range(num_tokens)]
        ones = const(vector(I8, 4 * lowering.rows), 1)

        def sub_group(index: Value, totals: list[Value]) -> list[Value]:
            base = e.at(subs, e.b.mul(index, const(I64, SUB_BYTES)))
            columns = e.b.mul(index, const(I64, SUB_GROUP))
            stored = [e.b.bitcast(lowering.run(e, base, SCALE_BYTES, p), vector(I16, 2 * lowering.rows)) for p in parts]
            products, activation_sums = [dot.zero()] * (num_tokens * len(parts)), [dot.zero()] * num_tokens
            for run in range(_RUNS):
                weights = [self._weights(e, value, run) for value in stored]
                for token, row in enumerate(rows):
                    four = dot.spread(e, e.load(I32, row, columns, 4 * run))
                    activation_sums[token] = dot.add(e, activation_sums[token], ones, four)
                    for part in parts:
                        place = token * len(parts) + part
                        products[place] = dot.add(e, products[place], weights[part], four)
            s, t = zip(*(self._scales(e, base, part) for part in parts), strict=True)
            added = [e.b.mul(s[place % len(parts)], dot.finish(e, product)) for place, product in enumerate(products)]
            sums = [dot.finish(e, value) for value in activation_sums]
            added += [e.b.mul(minimum, value) for value in sums for minimum in t]
            return [e.b.add(total, value) for total, value in zip(totals, added, strict=True)]

        count = num_tokens * len(parts)
        zeros = [const(vector(I32, lowering.rows), 0)] * (2 * count)
        totals = e.loop(const(I64, 0), const(I64, _SUBS_PER_GROUP), sub_group, zeros)
        return totals[:count], totals[count:]

    def _weights(self, e: Emitter, stored: Value, run: int) -> Value:
        """The two bits of `run` of each byte."""
        bytes_ = vector(I8, 2 * stored.type.count)
        shifted = e.b.bitcast(e.b.lshr(stored, const(stored.type, 2 * run)), bytes_)
        return e.b.and_(shifted, const(bytes_, 3))

    def _scales(self, e: Emitter, base: Value, part: int) -> tuple[Value, Value]:
        """s and t of each row, i32."""
        rows = LOWERINGS[self.isa].rows
        words = e.b.zext(e.load(vector(I8, rows), base, rows * part), vector(I32, rows))
        return e.b.and_(words, const(words.type, 15)), e.b.lshr(words, const(words.type, 4))
