"""5-bit quants of the tiles in `q4.py`."""

from __future__ import annotations

from dataclasses import dataclass

from argosy.kernels.features import Isa
from argosy.kernels.gemm.lowering import LOWERINGS
from argosy.kernels.gemm.nibble_dot import NIBBLE_DOTS
from argosy.kernels.gemm.q4 import high_nibble, low_nibble
from argosy.kernels.gemm.q4_layout import GROUP, NUM_RUNS, QUANT_BYTES, RUN_BYTES
from argosy.kernels.gemm.q5_layout import FIVE_BIT_BYTES
from argosy.kernels.ir import I16, I32, I64, Emitter, Value, const, vector

_RUNS_PER_HALF = NUM_RUNS // 2


@dataclass(frozen=True, slots=True)
class FiveBitQuants:
    """5 bits; see `Quants`.

    16-bit sums hold half a group only, 4 * 2 * 31 * 127 = 31496, so its halves are widened one by one.
    """

    num_bytes: int = FIVE_BIT_BYTES

    def products(
        self, e: Emitter, isa: Isa, quants: Value, activations: Value, stride: Value, num_tokens: int
    ) -> list[Value]:
        """See `Quants`."""
        lowering, dot = LOWERINGS[isa], NIBBLE_DOTS[isa]
        parts = range(lowering.parts)
        rows = [e.at(activations, e.b.mul(stride, const(I64, token))) for token in range(num_tokens)]
        words = vector(I16, 2 * lowering.rows)

        def half(index: Value, totals: list[Value]) -> list[Value]:
            base = e.at(quants, e.b.mul(index, const(I64, _RUNS_PER_HALF * RUN_BYTES)))
            columns = e.b.mul(index, const(I64, 4 * _RUNS_PER_HALF))
            places = e.splat(e.b.trunc(e.b.mul(index, const(I64, 2 * _RUNS_PER_HALF)), I16), words.count)
            planes = [e.b.lshr(e.b.bitcast(lowering.run(e, quants, QUANT_BYTES, p), words), places) for p in parts]
            sums = [dot.zero()] * len(totals)
            for run in range(_RUNS_PER_HALF):
                stored = [lowering.run(e, base, RUN_BYTES * run, part) for part in parts]
                for high, nibble in enumerate((low_nibble, high_nibble)):
                    shift = const(words, 4 - (2 * run + high))
                    bits = [e.b.bitcast(e.b.shl(plane, shift), stored[0].type) for plane in planes]
                    weights = [
                        e.b.or_(nibble(e, stored[part]), e.b.and_(bits[part], const(bits[part].type, 16))) for part in parts
                    ]
                    for token, row in enumerate(rows):
                        four = dot.spread(e, e.load(I32, row, columns, 4 * run + GROUP // 2 * high))
                        for part in parts:
                            place = token * len(parts) + part
                            sums[place] = dot.add(e, sums[place], weights[part], four)
            return [e.b.add(total, dot.finish(e, value)) for total, value in zip(totals, sums, strict=True)]

        zeros = [const(vector(I32, lowering.rows), 0)] * (num_tokens * len(parts))
        return e.loop(const(I64, 0), const(I64, 2), half, zeros)
