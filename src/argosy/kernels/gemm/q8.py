"""Tiles of 8-bit weights in groups of 32, and 8-bit activations.

For a group of 32 columns, with x[c] = s * a[c] the activations and w[c] = d * q[c] the weights,

    sum over c of x[c] * w[c]  =  (d * s) * (sum of a * q)

The sum of products is exact in integers; the terms are added to a float accumulator, group after group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from argosy.kernels.features import Isa
from argosy.kernels.gemm.byte_dot import BYTE_DOTS
from argosy.kernels.gemm.lowering import LOWERINGS
from argosy.kernels.gemm.op import TileInputs
from argosy.kernels.gemm.prefetch import prefetch_ahead
from argosy.kernels.gemm.q8_layout import GROUP, GROUP_BYTES, NUM_RUNS, QUANTS, RUN_BYTES
from argosy.kernels.ir import I32, I64, Emitter, Value, const, vector

TOKEN_COUNTS: Mapping[Isa, tuple[int, ...]] = MappingProxyType(
    {Isa.GENERIC: (2, 1), Isa.AVX2: (4, 3, 2, 1), Isa.AVX512_VNNI: (8, 4, 2, 1)}
)


@dataclass(frozen=True, slots=True)
class Q8Tile:
    """Q8_0 with one instruction set; see `Tile`."""

    isa: Isa

    @property
    def token_counts(self) -> tuple[int, ...]:
        """See `Tile`."""
        return TOKEN_COUNTS[self.isa]

    def accumulate(self, e: Emitter, inputs: TileInputs, num_tokens: int) -> list[list[Value]]:
        """See `Tile`."""
        lowering = LOWERINGS[self.isa]
        parts = lowering.parts

        def group(index: Value, sums: list[Value]) -> list[Value]:
            base = e.at(inputs.weights, e.b.mul(index, const(I64, GROUP_BYTES)))
            prefetch_ahead(e, base, GROUP_BYTES, num_tokens)
            activations = e.at(inputs.activations, e.b.mul(index, const(I64, GROUP)))
            products = sum_runs(e, self.isa, e.at(base, QUANTS), activations, inputs.activation_stride, NUM_RUNS, num_tokens)
            scales = lowering.token_floats(e, inputs.scales, inputs.scale_stride, index, num_tokens)
            results = []
            for token, scale in enumerate(scales):
                for part in range(parts):
                    place = token * parts + part
                    factor = e.b.fmul(lowering.halves(e, base, 0, part), scale)
                    product = lowering.to_floats(e, products[place])
                    results.append(lowering.multiply_add(e, product, factor, sums[place]))
            return results

        flat = e.loop(const(I64, 0), inputs.groups, group, lowering.zeros(num_tokens * parts))
        return [flat[start : start + parts] for start in range(0, num_tokens * parts, parts)]


def sum_runs(
    e: Emitter, isa: Isa, quants: Value, activations: Value, stride: Value, num_runs: Value | int, num_tokens: int
) -> list[Value]:
    """Integer sums over `num_runs` runs of s8 quants, i32, token after token and within that part after part.

    Args:
        e: of the function.
        isa: instruction set.
        quants: address of the first run; one run of a whole panel after the other.
        activations: address of the first token's activations for the first run.
        stride: bytes from one token's activations to the next one's.
        num_runs: i64 or int.
        num_tokens: of the tile.
    """
    lowering, dot = LOWERINGS[isa], BYTE_DOTS[isa]
    parts = lowering.parts
    rows = [e.at(activations, e.b.mul(stride, const(I64, token))) for token in range(num_tokens)]
    excess = [dot.spread(e, const(I32, 0))] if dot.has_excess else []

    def run(index: Value, totals: list[Value]) -> list[Value]:
        offset = e.b.mul(index, const(I64, 4))
        base = e.at(quants, e.b.mul(index, const(I64, RUN_BYTES)))
        weights = [lowering.run(e, base, 0, part) for part in range(parts)]
        fours = [dot.spread(e, e.load(I32, row, offset)) for row in rows] + excess
        sums = [dot.runs(e, [weight], [four]) for four in fours for weight in weights]
        return [e.b.add(total, value) for total, value in zip(totals, sums, strict=True)]

    end = const(I64, num_runs) if isinstance(num_runs, int) else num_runs
    zeros = [const(vector(I32, lowering.rows), 0)] * ((num_tokens + len(excess)) * parts)
    totals = e.loop(const(I64, 0), end, run, zeros)
    sums, excesses = totals[: num_tokens * parts], totals[num_tokens * parts :] * num_tokens
    return [e.b.sub(*pair) for pair in zip(sums, excesses, strict=True)] if excesses else sums
