"""What the instruction sets do differently: dot products of bytes, and conversions to float, for a vector of rows.

A dot product here has four columns per row and step: weights u8 [rows, 4], unsigned and small, times one token's
activations s8 [4], the same for every row. Steps are summed in whatever integers the instructions have; `to_float` ends
the sum. All three give the same integers, so kinds of weight are written once for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from argosy.kernels.ir import F16, F32, I8, I16, I32, Emitter, Value, const, vector


class Lanes(Protocol):
    """One instruction set.

    Attributes:
        rows: output rows that one vector of floats holds.
    """

    rows: int

    def zero(self) -> Value:
        """The sum of no steps."""
        ...

    def spread(self, e: Emitter, four: Value) -> Value:
        """Four activations, an i32 of their bytes, made ready for `dot`."""
        ...

    def dot(self, e: Emitter, total: Value, weights: Value, activations: Value) -> Value:
        """`total` plus weights (vector of 4 * rows bytes) times `activations`.

        `AVX2` and generic code sum in 16 bits: a row's products must stay within ±32767 per pair of columns summed up to
        `to_float`, e.g. eight steps of weights up to 15.
        """
        ...

    def to_float(self, e: Emitter, total: Value) -> Value:
        """The sums over all four columns and steps, f32 per row; exact below 2^24."""
        ...

    def halves(self, e: Emitter, base: Value, offset: int) -> Value:
        """`rows` f16 at `base` + `offset`, as f32."""
        ...

    def fma(self, e: Emitter, x: Value, y: Value, z: Value) -> Value:
        """x * y + z in f32, rounded once where the instruction exists, else twice; never a call."""
        ...


@dataclass(frozen=True, slots=True)
class Avx2Lanes:
    """`vpmaddubsw` adds pairs of products into 16 bits, `vpmaddwd` pairs of these into 32."""

    rows: int = 8

    def zero(self) -> Value:
        """See `Lanes`."""
        return const(vector(I16, 16), 0)

    def spread(self, e: Emitter, four: Value) -> Value:
        """See `Lanes`."""
        return e.b.bitcast(e.splat(four, 8), vector(I8, 32))

    def dot(self, e: Emitter, total: Value, weights: Value, activations: Value) -> Value:
        """See `Lanes`."""
        return e.b.add(total, e.call("llvm.x86.avx2.pmadd.ub.sw", vector(I16, 16), weights, activations))

    def to_float(self, e: Emitter, total: Value) -> Value:
        """See `Lanes`."""
        sums = e.call("llvm.x86.avx2.pmadd.wd", vector(I32, 8), total, const(vector(I16, 16), 1))
        return e.b.sitofp(sums, vector(F32, 8))

    def halves(self, e: Emitter, base: Value, offset: int) -> Value:
        """See `Lanes`."""
        return e.b.fpext(e.load(vector(F16, 8), base, offset), vector(F32, 8))

    def fma(self, e: Emitter, x: Value, y: Value, z: Value) -> Value:
        """See `Lanes`."""
        return e.fma(x, y, z)


@dataclass(frozen=True, slots=True)
class VnniLanes:
    """`vpdpbusd` adds four products to 32 bits in one instruction."""

    rows: int = 16

    def zero(self) -> Value:
        """See `Lanes`."""
        return const(vector(I32, 16), 0)

    def spread(self, e: Emitter, four: Value) -> Value:
        """See `Lanes`."""
        return e.splat(four, 16)

    def dot(self, e: Emitter, total: Value, weights: Value, activations: Value) -> Value:
        """See `Lanes`."""
        words = e.b.bitcast(weights, vector(I32, 16))
        return e.call("llvm.x86.avx512.vpdpbusd.512", vector(I32, 16), total, words, activations)

    def to_float(self, e: Emitter, total: Value) -> Value:
        """See `Lanes`."""
        return e.b.sitofp(total, vector(F32, 16))

    def halves(self, e: Emitter, base: Value, offset: int) -> Value:
        """See `Lanes`."""
        return e.b.fpext(e.load(vector(F16, 16), base, offset), vector(F32, 16))

    def fma(self, e: Emitter, x: Value, y: Value, z: Value) -> Value:
        """See `Lanes`."""
        return e.fma(x, y, z)


@dataclass(frozen=True, slots=True)
class GenericLanes:
    """Vector types and plain arithmetic, for any target: 16-bit products, four columns kept apart until the end."""

    rows: int = 8

    def zero(self) -> Value:
        """See `Lanes`."""
        return const(vector(I16, 32), 0)

    def spread(self, e: Emitter, four: Value) -> Value:
        """See `Lanes`."""
        return e.b.sext(e.b.bitcast(e.splat(four, 8), vector(I8, 32)), vector(I16, 32))

    def dot(self, e: Emitter, total: Value, weights: Value, activations: Value) -> Value:
        """See `Lanes`."""
        return e.b.add(total, e.b.mul(e.b.zext(weights, vector(I16, 32)), activations))

    def to_float(self, e: Emitter, total: Value) -> Value:
        """See `Lanes`."""
        wide = e.b.sext(total, vector(I32, 32))
        first, second, third, fourth = (e.pick(wide, range(column, 32, 4)) for column in range(4))
        return e.b.sitofp(e.b.add(e.b.add(first, second), e.b.add(third, fourth)), vector(F32, 8))

    def halves(self, e: Emitter, base: Value, offset: int) -> Value:
        """See `Lanes`."""
        return e.half_to_float(e.load(vector(I16, 8), base, offset))

    def fma(self, e: Emitter, x: Value, y: Value, z: Value) -> Value:
        """See `Lanes`."""
        return e.mul_add(x, y, z)
