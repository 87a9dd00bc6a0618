"""Tiles of 4-bit weights and 8-bit activations.

For a group of 32 columns, with x[c] = s * a[c] the activations and w[c] = d * q[c] + m the weights,

    sum over c of x[c] * w[c]  =  (d * s) * (sum of a * q)  +  m * (s * sum of a)

The sum of products is exact in integers; the two terms are added to a float accumulator in this order, group after group.
Eight steps of four columns with weights up to 15 and activations up to 127 stay below 2^15 in every 16-bit lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from argosy.kernels.gemm.lanes import Lanes
from argosy.kernels.gemm.op import TileInputs
from argosy.kernels.gemm.q4_layout import GROUP, NUM_RUNS, QUANT_BYTES, RUN_BYTES, SUPER_GROUP
from argosy.kernels.ir import F32, I8, I16, I32, I64, Emitter, Value, const, vector
from argosy.kernels.packed import PANEL_ROWS

_HALVES_BYTES = 2 * PANEL_ROWS
"""One f16 per row of a panel."""


class Q4Scales(Protocol):
    """Where a group lies in its panel, and its scales."""

    def group(self, e: Emitter, lanes: Lanes, panel: Value, index: Value) -> tuple[Value, list[tuple[Value, Value]]]:
        """Address of group `index`'s quants, and (d, m) as f32 vectors for each `lanes.rows` rows of the panel."""
        ...


@dataclass(frozen=True, slots=True)
class PlainScales:
    """Q4_0 and Q4_1: f16 d, and m either stored or -8 d."""

    has_minimum: bool

    def group(self, e: Emitter, lanes: Lanes, panel: Value, index: Value) -> tuple[Value, list[tuple[Value, Value]]]:
        """See `Q4Scales`."""
        scales_bytes = _HALVES_BYTES * (2 if self.has_minimum else 1)
        base = e.at(panel, e.b.mul(index, const(I64, scales_bytes + QUANT_BYTES)))
        scales = []
        for row in range(0, PANEL_ROWS, lanes.rows):
            d = lanes.halves(e, base, 2 * row)
            m = lanes.halves(e, base, _HALVES_BYTES + 2 * row) if self.has_minimum else e.b.fmul(d, const(d.type, -8.0))
            scales.append((d, m))
        return e.at(base, scales_bytes), scales


@dataclass(frozen=True, slots=True)
class SuperGroupScales:
    """Q4_K: f16 factors per 256 columns, u8 scales and minima per 32."""

    def group(self, e: Emitter, lanes: Lanes, panel: Value, index: Value) -> tuple[Value, list[tuple[Value, Value]]]:
        """See `Q4Scales`."""
        groups = SUPER_GROUP // GROUP
        group_bytes = 2 * PANEL_ROWS + QUANT_BYTES
        super_bytes = 2 * _HALVES_BYTES + groups * group_bytes
        base = e.at(panel, e.b.mul(e.b.sdiv(index, const(I64, groups)), const(I64, super_bytes)))
        offset = e.b.mul(e.b.and_(index, const(I64, groups - 1)), const(I64, group_bytes))
        group = e.at(base, 2 * _HALVES_BYTES, offset)
        bytes_, words, floats = (vector(t, lanes.rows) for t in (I8, I32, F32))
        scales = []
        for row in range(0, PANEL_ROWS, lanes.rows):
            s, t = (
                e.b.uitofp(e.b.zext(e.load(bytes_, group, start + row), words), floats) for start in (0, PANEL_ROWS)
            )
            d = e.b.fmul(lanes.halves(e, base, 2 * row), s)
            m = e.b.fmul(lanes.halves(e, base, _HALVES_BYTES + 2 * row), t)
            scales.append((d, e.b.fneg(m)))
        return e.at(group, 2 * PANEL_ROWS), scales


@dataclass(frozen=True, slots=True)
class Q4Tile:
    """One of the 4-bit kinds with one instruction set; see `Tile`."""

    lanes: Lanes
    scales: Q4Scales
    token_counts: tuple[int, ...]

    def accumulate(self, e: Emitter, inputs: TileInputs, num_tokens: int) -> list[list[Value]]:
        """See `Tile`."""
        parts = PANEL_ROWS // self.lanes.rows
        floats = vector(F32, self.lanes.rows)

        def group(index: Value, sums: list[Value]) -> list[Value]:
            quants, scales = self.scales.group(e, self.lanes, inputs.weights, index)
            activations = e.at(inputs.activations, e.b.mul(index, const(I64, GROUP)))
            products = self._products(e, quants, activations, inputs.activation_stride, num_tokens)
            results = []
            for token in range(num_tokens):
                offset = e.b.add(e.b.mul(index, const(I64, 4)), e.b.mul(inputs.scale_stride, const(I64, token)))
                s = e.splat(e.load(F32, inputs.scales, offset, align=4), self.lanes.rows)
                scaled_sum = e.splat(e.load(F32, inputs.sums, offset, align=4), self.lanes.rows)
                for part, (d, m) in enumerate(scales):
                    product = self.lanes.to_float(e, products[token * parts + part])
                    total = self.lanes.fma(e, product, e.b.fmul(d, s), sums[token * parts + part])
                    results.append(self.lanes.fma(e, m, scaled_sum, total))
            return results

        flat = e.loop(const(I64, 0), inputs.groups, group, carried=[const(floats, 0.0)] * (num_tokens * parts))
        return [flat[start : start + parts] for start in range(0, num_tokens * parts, parts)]

    def _products(
        self, e: Emitter, quants: Value, activations: Value, stride: Value, num_tokens: int
    ) -> Sequence[Value]:
        """Integer sums over the group, token after token and within that part after part.

        A loop over the runs and not its unrolled body: LLVM would move loads and unpacking of all runs to the front, and
        spill. As it is, the integer sums of four tokens fill half of AVX2's registers and the float ones wait on the stack.
        """
        lanes, parts = self.lanes, PANEL_ROWS // self.lanes.rows
        rows = [e.at(activations, e.b.mul(stride, const(I64, token))) for token in range(num_tokens)]

        def run(index: Value, totals: list[Value]) -> list[Value]:
            base = e.at(quants, e.b.mul(index, const(I64, RUN_BYTES)))
            loaded = [e.load(vector(I8, 4 * lanes.rows), base, 4 * lanes.rows * part) for part in range(parts)]
            offset = e.b.mul(index, const(I64, 4))
            for nibble in (_low_nibble, _high_nibble):
                weights = [nibble(e, q) for q in loaded]
                start = 0 if nibble is _low_nibble else GROUP // 2
                for token in range(num_tokens):
                    four = lanes.spread(e, e.load(I32, rows[token], offset, start))
                    for part in range(parts):
                        place = token * parts + part
                        totals[place] = lanes.dot(e, totals[place], weights[part], four)
            return totals

        return e.loop(const(I64, 0), const(I64, NUM_RUNS), run, carried=[lanes.zero()] * (num_tokens * parts))


def _low_nibble(e: Emitter, quants: Value) -> Value:
    return e.b.and_(quants, const(quants.type, 15))


def _high_nibble(e: Emitter, quants: Value) -> Value:
    words = vector(I16, quants.type.count // 2)  # there is no shift of single bytes
    shifted = e.b.lshr(e.b.bitcast(quants, words), const(words, 4))
    return e.b.and_(e.b.bitcast(shifted, quants.type), const(quants.type, 15))
