"""Tiles of weights with a signed scale per 16 columns, and 8-bit activations.

For a group of 32 columns, with x[c] = t * a[c] the activations, and w[c] = d * s[c / 16] * (q[c] - offset) the weights,

    sum over c of x[c] * w[c]  =  (d * t) * (sum over both halves of s * (sum of a * (q - offset)))

The outer sum too is exact in integers: 2 * 128 * 16 * 32 * 127 is below 2^24. The terms are added to a float accumulator,
group after group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from argosy.kernels.features import Isa
from argosy.kernels.gemm.byte_dot import SIX_BIT_DOTS
from argosy.kernels.gemm.lowering import LOWERINGS, Lowering
from argosy.kernels.gemm.op import TileInputs
from argosy.kernels.gemm.prefetch import prefetch_ahead
from argosy.kernels.gemm.q6_layout import (
    FACTOR_BYTES,
    NIBBLE_BYTES,
    RUN_BYTES,
    SCALE_BYTES,
    SUB_GROUP,
    SUBS,
    SUPER_GROUP,
    sub_group_bytes,
)
from argosy.kernels.ir import I8, I16, I32, I64, Emitter, Value, const, vector

TOKEN_COUNTS: Mapping[Isa, tuple[int, ...]] = MappingProxyType(
    {Isa.GENERIC: (2, 1), Isa.AVX2: (4, 3, 2, 1), Isa.AVX512_VNNI: (8, 4, 2, 1)}
)
_GROUP = 32
_SUBS_PER_GROUP = _GROUP // SUB_GROUP


@dataclass(frozen=True, slots=True)
class Q6Tile:
    """Q6_K (high bits, offset 32) or Q3_K (no high bits, offset 4) with one instruction set; see `Tile`."""

    isa: Isa
    high_bits: bool
    offset: int

    @property
    def token_counts(self) -> tuple[int, ...]:
        """See `Tile`."""
        return TOKEN_COUNTS[self.isa]

    def accumulate(self, e: Emitter, inputs: TileInputs, num_tokens: int) -> list[list[Value]]:
        """See `Tile`."""
        lowering = LOWERINGS[self.isa]
        parts, groups = lowering.parts, SUPER_GROUP // _GROUP
        sub_bytes = sub_group_bytes(high_bits=self.high_bits)

        def super_group(index: Value, sums: list[Value]) -> list[Value]:
            base = e.at(inputs.weights, e.b.mul(index, const(I64, FACTOR_BYTES + SUBS * sub_bytes)))

            def group(within: Value, sums: list[Value]) -> list[Value]:
                number = e.b.add(e.b.mul(index, const(I64, groups)), within)
                subs = e.at(base, FACTOR_BYTES, e.b.mul(within, const(I64, _SUBS_PER_GROUP * sub_bytes)))
                prefetch_ahead(e, subs, _SUBS_PER_GROUP * sub_bytes, num_tokens)
                activations = e.at(inputs.activations, e.b.mul(number, const(I64, _GROUP)))
                products = self._products(e, subs, activations, inputs.activation_stride, num_tokens)
                scales = lowering.token_floats(e, inputs.scales, inputs.scale_stride, number, num_tokens)
                results = []
                for token, scale in enumerate(scales):
                    for part in range(parts):
                        place = token * parts + part
                        factor = e.b.fmul(lowering.halves(e, base, 0, part), scale)
                        product = lowering.to_floats(e, products[place])
                        results.append(lowering.multiply_add(e, product, factor, sums[place]))
                return results

            return e.loop(const(I64, 0), const(I64, groups), group, sums)

        supers = e.b.sdiv(inputs.groups, const(I64, groups))
        flat = e.loop(const(I64, 0), supers, super_group, lowering.zeros(num_tokens * parts))
        return [flat[start : start + parts] for start in range(0, num_tokens * parts, parts)]

    def _products(self, e: Emitter, subs: Value, activations: Value, stride: Value, num_tokens: int) -> list[Value]:
        """Scaled integer sums over a group, i32, token after token and within that part after part."""
        lowering, dot = LOWERINGS[self.isa], SIX_BIT_DOTS[self.isa]
        parts = range(lowering.parts)
        rows = [e.at(activations, e.b.mul(stride, const(I64, token))) for token in range(num_tokens)]
        excess = [dot.spread(e, const(I32, 0))] if dot.has_excess else []

        def sub_group(index: Value, totals: list[Value]) -> list[Value]:
            base = e.at(subs, e.b.mul(index, const(I64, sub_group_bytes(high_bits=self.high_bits))))
            columns = e.b.mul(index, const(I64, SUB_GROUP))
            sums: list[list[Value]] = [[] for _ in totals]
            for pair in range(2):
                weights = [self._weights(e, lowering, base, part, pair) for part in parts]
                fours = [
                    [dot.spread(e, e.load(I32, row, columns, 8 * pair + 4 * odd)) for odd in range(2)] for row in rows
                ] + [2 * excess] * len(excess)
                for token, four in enumerate(fours):
                    for part in parts:
                        sums[token * len(parts) + part].append(dot.runs(e, weights[part], four))
            scales = [self._scale(e, lowering, base, part) for part in parts]
            return [
                e.b.add(total, e.b.mul(scales[place % len(parts)], e.b.add(*sums[place])))
                for place, total in enumerate(totals)
            ]

        zeros = [const(vector(I32, lowering.rows), 0)] * ((num_tokens + len(excess)) * len(parts))
        totals = e.loop(const(I64, 0), const(I64, _SUBS_PER_GROUP), sub_group, zeros)
        count = num_tokens * len(parts)
        sums, excesses = totals[:count], totals[count:] * num_tokens
        return [e.b.sub(*pair) for pair in zip(sums, excesses, strict=True)] if excesses else sums

    def _scale(self, e: Emitter, lowering: Lowering, base: Value, part: int) -> Value:
        """s of each row, i32."""
        rows = lowering.rows
        return e.b.sext(e.load(vector(I8, rows), base, rows * part), vector(I32, rows))

    def _weights(self, e: Emitter, lowering: Lowering, base: Value, part: int, pair: int) -> list[Value]:
        """The two runs of stored run `pair`, q - offset as bytes."""
        stored = lowering.run(e, base, SCALE_BYTES + RUN_BYTES * pair, part)
        bytes_, words = stored.type, vector(I16, 2 * lowering.rows)
        as_words = e.b.bitcast(stored, words)
        nibbles = [stored, e.b.bitcast(e.b.lshr(as_words, const(words, 4)), bytes_)]
        quants = [e.b.and_(value, const(bytes_, 15)) for value in nibbles]
        if self.high_bits:
            plane = e.b.bitcast(lowering.run(e, base, SCALE_BYTES + NIBBLE_BYTES, part), words)
            for odd in range(2):
                shift = 4 - 2 * (2 * pair + odd)
                moved = e.b.shl(plane, const(words, shift)) if shift >= 0 else e.b.lshr(plane, const(words, -shift))
                bits = e.b.and_(e.b.bitcast(moved, bytes_), const(bytes_, 0x30))
                quants[odd] = e.b.or_(quants[odd], bits)
        return [e.b.sub(value, const(bytes_, self.offset)) for value in quants]
