"""Sums of products of 4-bit weights and 8-bit activations, run by run, for each way instruction sets have.

A run is four consecutive columns of some rows: four bytes per row, each a weight in 0..15. It is multiplied with four
activations of one token, s8 in -127..127 and the same for every row. A group of 32 columns has eight runs, and its sums
fit 16-bit lanes: 8 * 2 * 15 * 127 = 30480.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from argosy.kernels.features import Isa
from argosy.kernels.ir import I8, I16, I32, Emitter, Value, const, vector


class NibbleDot(Protocol):
    """Running sums of at most eight runs, for the rows of one vector."""

    def zero(self) -> Value:
        """The sum of no runs."""
        ...

    def spread(self, e: Emitter, four: Value) -> Value:
        """Four activations, the bytes of an i32, in the form that `add` takes."""
        ...

    def add(self, e: Emitter, total: Value, weights: Value, four: Value) -> Value:
        """`total` plus one run: `weights` as a vector of bytes, `four` from `spread`."""
        ...

    def finish(self, e: Emitter, total: Value) -> Value:
        """The sum of all columns and runs, an i32 per row."""
        ...


@dataclass(frozen=True, slots=True)
class Avx2NibbleDot:
    """`vpmaddubsw` adds pairs of products into 16 bits; `vpmaddwd` adds pairs of these into 32."""

    def zero(self) -> Value:
        """See `NibbleDot`."""
        return const(vector(I16, 16), 0)

    def spread(self, e: Emitter, four: Value) -> Value:
        """See `NibbleDot`."""
        return e.b.bitcast(e.splat(four, 8), vector(I8, 32))

    def add(self, e: Emitter, total: Value, weights: Value, four: Value) -> Value:
        """See `NibbleDot`."""
        return e.b.add(total, e.call("llvm.x86.avx2.pmadd.ub.sw", vector(I16, 16), weights, four))

    def finish(self, e: Emitter, total: Value) -> Value:
        """See `NibbleDot`."""
        return e.call("llvm.x86.avx2.pmadd.wd", vector(I32, 8), total, const(vector(I16, 16), 1))


@dataclass(frozen=True, slots=True)
class VnniNibbleDot:
    """`vpdpbusd` adds four products to 32 bits in one instruction."""

    def zero(self) -> Value:
        """See `NibbleDot`."""
        return const(vector(I32, 16), 0)

    def spread(self, e: Emitter, four: Value) -> Value:
        """See `NibbleDot`."""
        return e.splat(four, 16)

    def add(self, e: Emitter, total: Value, weights: Value, four: Value) -> Value:
        """See `NibbleDot`."""
        words = e.b.bitcast(weights, total.type)
        return e.call("llvm.x86.avx512.vpdpbusd.512", total.type, total, words, four)

    def finish(self, e: Emitter, total: Value) -> Value:  # noqa: ARG002
        """See `NibbleDot`."""
        return total


@dataclass(frozen=True, slots=True)
class GenericNibbleDot:
    """Plain 16-bit vectors; shifts tell even from odd columns, since few targets shuffle bytes cheaply."""

    def zero(self) -> Value:
        """See `NibbleDot`."""
        return const(vector(I16, 32), 0)

    def spread(self, e: Emitter, four: Value) -> Value:
        """See `NibbleDot`."""
        pairs = e.b.bitcast(e.splat(four, 16), vector(I16, 32))
        eight = const(pairs.type, 8)
        return e.join(e.b.ashr(e.b.shl(pairs, eight), eight), e.b.ashr(pairs, eight))

    def add(self, e: Emitter, total: Value, weights: Value, four: Value) -> Value:
        """See `NibbleDot`."""
        pairs = e.b.bitcast(weights, vector(I16, 32))
        even, odd = (e.pick(four, range(start, start + 32)) for start in (0, 32))
        products = e.b.mul(e.b.and_(pairs, const(pairs.type, 0xFF)), even)
        return e.b.add(total, e.b.add(products, e.b.mul(e.b.lshr(pairs, const(pairs.type, 8)), odd)))

    def finish(self, e: Emitter, total: Value) -> Value:
        """See `NibbleDot`."""
        words = e.b.bitcast(total, vector(I32, 16))
        sixteen = const(words.type, 16)
        return e.b.add(e.b.ashr(e.b.shl(words, sixteen), sixteen), e.b.ashr(words, sixteen))


NIBBLE_DOTS: Mapping[Isa, NibbleDot] = MappingProxyType(
    {Isa.GENERIC: GenericNibbleDot(), Isa.AVX2: Avx2NibbleDot(), Isa.AVX512_VNNI: VnniNibbleDot()}
)
"""For weights in 0..15."""
