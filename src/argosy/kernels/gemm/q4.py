"""Tiles of unsigned weights of few bits (4 here, 5 in `q5.py`) and 8-bit activations.

For a group of 32 columns, with x[c] = s * a[c] the activations and w[c] = d * q[c] + m the weights,

    sum over c of x[c] * w[c]  =  (d * s) * (sum of a * q)  +  m * (s * sum of a)

The sum of products is exact in integers; the two terms are added to a float accumulator in this order, group after group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from argosy.kernels.features import Isa
from argosy.kernels.gemm.lowering import LOWERINGS, Lowering
from argosy.kernels.gemm.nibble_dot import NIBBLE_DOTS
from argosy.kernels.gemm.op import TileInputs
from argosy.kernels.gemm.prefetch import prefetch_ahead
from argosy.kernels.gemm.q4_layout import (
    FACTOR_BYTES,
    GROUP,
    GROUPS_PER_SUPER,
    HALVES_BYTES,
    NUM_RUNS,
    QUANT_BYTES,
    RUN_BYTES,
    SUB_SCALE_BYTES,
)
from argosy.kernels.ir import I8, I16, I32, I64, Emitter, Value, const, vector
from argosy.kernels.packed import PANEL_ROWS

TOKEN_COUNTS: Mapping[Isa, tuple[int, ...]] = MappingProxyType(
    {Isa.GENERIC: (2, 1), Isa.AVX2: (4, 3, 2, 1), Isa.AVX512_VNNI: (8, 4, 2, 1)}
)
"""Tokens of a tile: as many as the registers hold integer sums for."""

Factors = list[tuple[Value, Value]]
"""(d, m) as f32 vectors for each part of a panel's rows."""


class Scales(Protocol):
    """Where the scales of a kind lie."""

    @property
    def groups_per_block(self) -> int:
        """Groups of 32 columns that share what `shared` loads."""
        ...

    @property
    def shared_bytes(self) -> int:
        """Bytes at the start of a block that belong to all its groups."""
        ...

    @property
    def scale_bytes(self) -> int:
        """Bytes of one group after these, in front of its quants."""
        ...

    def shared(self, e: Emitter, lowering: Lowering, block: Value) -> Factors:
        """What all groups of the block at address `block` share."""
        ...

    def of_group(self, e: Emitter, lowering: Lowering, group: Value, shared: Factors) -> Factors:
        """d and m of the group at address `group`."""
        ...


@dataclass(frozen=True, slots=True)
class PlainScales:
    """f16 d per group, and m either stored (Q4_1, Q5_1) or -offset d (Q4_0, Q5_0)."""

    has_minimum: bool
    offset: float = 0.0
    groups_per_block: int = 1
    shared_bytes: int = 0

    @property
    def scale_bytes(self) -> int:
        """See `Scales`."""
        return HALVES_BYTES * (2 if self.has_minimum else 1)

    def shared(self, e: Emitter, lowering: Lowering, block: Value) -> Factors:  # noqa: ARG002
        """See `Scales`."""
        return []

    def of_group(self, e: Emitter, lowering: Lowering, group: Value, shared: Factors) -> Factors:  # noqa: ARG002
        """See `Scales`."""
        scales = [lowering.halves(e, group, 0, part) for part in range(lowering.parts)]
        if self.has_minimum:
            return [(d, lowering.halves(e, group, HALVES_BYTES, part)) for part, d in enumerate(scales)]
        return [(d, e.b.fmul(d, const(d.type, -self.offset))) for d in scales]


@dataclass(frozen=True, slots=True)
class SuperGroupScales:
    """Q4_K and Q5_K: f16 factors per 256 columns, u8 scales and minima per 32."""

    groups_per_block: int = GROUPS_PER_SUPER
    shared_bytes: int = FACTOR_BYTES
    scale_bytes: int = SUB_SCALE_BYTES

    def shared(self, e: Emitter, lowering: Lowering, block: Value) -> Factors:
        """See `Scales`."""
        parts = range(lowering.parts)
        return [(lowering.halves(e, block, 0, p), lowering.halves(e, block, HALVES_BYTES, p)) for p in parts]

    def of_group(self, e: Emitter, lowering: Lowering, group: Value, shared: Factors) -> Factors:
        """See `Scales`."""
        factors = []
        for part, (d, m) in enumerate(shared):
            s, t = (_byte_floats(e, lowering, e.at(group, start + lowering.rows * part)) for start in (0, PANEL_ROWS))
            factors.append((e.b.fmul(d, s), e.b.fneg(e.b.fmul(m, t))))
        return factors


class Quants(Protocol):
    """How the quants of a group are stored."""

    @property
    def num_bytes(self) -> int:
        """Bytes of a group's quants."""
        ...

    def products(
        self, e: Emitter, isa: Isa, quants: Value, activations: Value, stride: Value, num_tokens: int
    ) -> list[Value]:
        """Sums of a * q over the group at address `quants`, i32, token after token and within that part after part.

        `activations` is the address of the first token's activations of the group, `stride` the bytes to the next token's.
        """
        ...


@dataclass(frozen=True, slots=True)
class NibbleQuants:
    """4 bits."""

    num_bytes: int = QUANT_BYTES

    def products(
        self, e: Emitter, isa: Isa, quants: Value, activations: Value, stride: Value, num_tokens: int
    ) -> list[Value]:
        """See `Quants`.

        A loop over the stored runs and not its unrolled body: there LLVM would move the loads and unpacking of all runs to
        the front, and spill. As it is, the integer sums of four tokens fill half of AVX2's registers while the float ones
        wait on the stack, which made a quarter more products per second.
        """
        lowering, dot = LOWERINGS[isa], NIBBLE_DOTS[isa]
        rows = [e.at(activations, e.b.mul(stride, const(I64, token))) for token in range(num_tokens)]

        def run(index: Value, totals: list[Value]) -> list[Value]:
            base = e.at(quants, e.b.mul(index, const(I64, RUN_BYTES)))
            offset = e.b.mul(index, const(I64, 4))
            stored = [lowering.run(e, base, 0, part) for part in range(lowering.parts)]
            for first_column, nibble in ((0, low_nibble), (GROUP // 2, high_nibble)):
                weights = [nibble(e, bytes_) for bytes_ in stored]
                for token, row in enumerate(rows):
                    four = dot.spread(e, e.load(I32, row, offset, first_column))
                    for part, weight in enumerate(weights):
                        place = token * lowering.parts + part
                        totals[place] = dot.add(e, totals[place], weight, four)
            return totals

        zeros = [dot.zero()] * (num_tokens * lowering.parts)
        return [dot.finish(e, total) for total in e.loop(const(I64, 0), const(I64, NUM_RUNS), run, zeros)]


@dataclass(frozen=True, slots=True)
class UnsignedTile:
    """One of the kinds with unsigned quants, with one instruction set; see `Tile`."""

    isa: Isa
    scales: Scales
    quants: Quants

    @property
    def token_counts(self) -> tuple[int, ...]:
        """See `Tile`."""
        return TOKEN_COUNTS[self.isa]

    def accumulate(self, e: Emitter, inputs: TileInputs, num_tokens: int) -> list[list[Value]]:
        """See `Tile`."""
        lowering, scales = LOWERINGS[self.isa], self.scales
        per_block = scales.groups_per_block
        group_bytes = scales.scale_bytes + self.quants.num_bytes
        block_bytes = scales.shared_bytes + per_block * group_bytes

        def block(index: Value, sums: list[Value]) -> list[Value]:
            base = e.at(inputs.weights, e.b.mul(index, const(I64, block_bytes)))
            shared = scales.shared(e, lowering, base)

            def group(within: Value, sums: list[Value]) -> list[Value]:
                address = e.at(base, scales.shared_bytes, e.b.mul(within, const(I64, group_bytes)))
                prefetch_ahead(e, address, group_bytes, num_tokens)
                factors = scales.of_group(e, lowering, address, shared)
                number = e.b.add(e.b.mul(index, const(I64, per_block)), within)
                quants = e.at(address, scales.scale_bytes)
                return self._add_group(e, inputs, num_tokens, number, quants, factors, sums)

            if per_block == 1:
                return group(const(I64, 0), sums)
            return e.loop(const(I64, 0), const(I64, per_block), group, sums)

        parts = lowering.parts
        blocks = e.b.sdiv(inputs.groups, const(I64, per_block))
        flat = e.loop(const(I64, 0), blocks, block, lowering.zeros(num_tokens * parts))
        return [flat[start : start + parts] for start in range(0, num_tokens * parts, parts)]

    def _add_group(
        self,
        e: Emitter,
        inputs: TileInputs,
        num_tokens: int,
        number: Value,
        quants: Value,
        factors: Factors,
        sums: list[Value],
    ) -> list[Value]:
        """`sums` (token after token, within that part after part) plus the group with this number."""
        lowering = LOWERINGS[self.isa]
        activations = e.at(inputs.activations, e.b.mul(number, const(I64, GROUP)))
        products = self.quants.products(e, self.isa, quants, activations, inputs.activation_stride, num_tokens)
        token_scales = lowering.token_floats(e, inputs.scales, inputs.scale_stride, number, num_tokens)
        scaled_sums = lowering.token_floats(e, inputs.sums, inputs.scale_stride, number, num_tokens)
        results: list[Value] = []
        for scale, scaled_sum in zip(token_scales, scaled_sums, strict=True):
            for d, m in factors:
                place = len(results)
                product = lowering.to_floats(e, products[place])
                total = lowering.multiply_add(e, product, e.b.fmul(d, scale), sums[place])
                results.append(lowering.multiply_add(e, m, scaled_sum, total))
        return results


def _byte_floats(e: Emitter, lowering: Lowering, address: Value) -> Value:
    """One u8 per row as f32."""
    loaded = e.load(vector(I8, lowering.rows), address)
    return lowering.to_floats(e, e.b.zext(loaded, vector(I32, lowering.rows)))


def low_nibble(e: Emitter, quants: Value) -> Value:
    """The low four bits of each byte."""
    return e.b.and_(quants, const(quants.type, 15))


def high_nibble(e: Emitter, quants: Value) -> Value:
    """The high four bits of each byte."""
    words = vector(I16, quants.type.count // 2)  # x86 has no shift of single bytes
    shifted = e.b.lshr(e.b.bitcast(quants, words), const(words, 4))
    return e.b.and_(e.b.bitcast(shifted, quants.type), const(quants.type, 15))
