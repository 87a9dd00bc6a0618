"""Sums of products of signed weights and 8-bit activations, for each way instruction sets have.

A run is four consecutive columns of some rows: four bytes per row, each a weight. It is multiplied with four activations of
one token, s8 in -127..127 and the same for every row. Sums are i32 and exact.

Where an instruction multiplies unsigned by signed bytes only, activations are made unsigned and the excess, which is the
same for all tokens, is subtracted at the end:

    sum of w * a  =  sum of w * (a + 128)  -  sum of w * 128

As 128 is what an activation of 0 becomes, the excess is what the sum would be for a token whose activations are all 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from argosy.kernels.features import Isa
from argosy.kernels.ir import I1, I8, I16, I32, Emitter, Value, const, vector

_FLIP = -128
"""The bits by which a + 128, unsigned, differs from a, signed."""


class ByteDot(Protocol):
    """Sums of a few runs, for the rows of one vector."""

    @property
    def has_excess(self) -> bool:
        """Activations are made unsigned, and the excess must be subtracted."""
        ...

    def spread(self, e: Emitter, four: Value) -> Value:
        """Four activations, the bytes of an i32, in the form that `runs` takes."""
        ...

    def runs(self, e: Emitter, weights: Sequence[Value], fours: Sequence[Value]) -> Value:
        """The sum of all columns of the runs, an i32 per row: `weights` as vectors of bytes, `fours` from `spread`."""
        ...


@dataclass(frozen=True, slots=True)
class Avx2ByteDot:
    """Weights in -128..127: a weight's sign is moved to the activation, w * a = |w| * (sign(w) a).

    One pair of products fills 16 bits, 2 * 128 * 127 = 32512, so every run is widened by itself.
    """

    has_excess: bool = False

    def spread(self, e: Emitter, four: Value) -> Value:
        """See `ByteDot`."""
        return _spread_bytes(e, four, 8)

    def runs(self, e: Emitter, weights: Sequence[Value], fours: Sequence[Value]) -> Value:
        """See `ByteDot`."""
        sums = []
        for weight, four in zip(weights, fours, strict=True):
            magnitude = e.call("llvm.abs.v32i8", weight.type, weight, const(I1, 0))
            signed = e.call("llvm.x86.avx2.psign.b", weight.type, four, weight)
            sums.append(_widen(e, _multiply_pairs(e, magnitude, signed)))
        return add_all(e, sums)


@dataclass(frozen=True, slots=True)
class Avx2SixBitDot:
    """Weights in -32..31, at most two runs: 2 * 2 * 32 * 255 = 32640 fits 16 bits."""

    has_excess: bool = True

    def spread(self, e: Emitter, four: Value) -> Value:
        """See `ByteDot`."""
        return _make_unsigned(e, _spread_bytes(e, four, 8))

    def runs(self, e: Emitter, weights: Sequence[Value], fours: Sequence[Value]) -> Value:
        """See `ByteDot`."""
        assert len(weights) <= 2
        return _widen(e, add_all(e, [_multiply_pairs(e, f, w) for w, f in zip(weights, fours, strict=True)]))


@dataclass(frozen=True, slots=True)
class VnniByteDot:
    """Weights in -128..127."""

    has_excess: bool = True

    def spread(self, e: Emitter, four: Value) -> Value:
        """See `ByteDot`."""
        # On the scalar: LLVM 22 does not come to an end with the same operation on the spread bytes.
        return e.splat(e.b.xor(four, const(I32, -0x7F7F7F80)), 16)

    def runs(self, e: Emitter, weights: Sequence[Value], fours: Sequence[Value]) -> Value:
        """See `ByteDot`."""
        words = vector(I32, 16)
        total = const(words, 0)
        for weight, four in zip(weights, fours, strict=True):
            total = e.call("llvm.x86.avx512.vpdpbusd.512", words, total, four, e.b.bitcast(weight, words))
        return total


@dataclass(frozen=True, slots=True)
class GenericByteDot:
    """Weights in -128..127 in plain vectors: even and odd columns in 16 bits, where two products fit, 2 * 128 * 127."""

    has_excess: bool = False

    def spread(self, e: Emitter, four: Value) -> Value:
        """See `ByteDot`."""
        return e.splat(four, 16)

    def runs(self, e: Emitter, weights: Sequence[Value], fours: Sequence[Value]) -> Value:
        """See `ByteDot`."""
        sums = []
        for weight, four in zip(weights, fours, strict=True):
            (even, odd), (a_even, a_odd) = (_lower_upper(e, e.b.bitcast(v, vector(I16, 32))) for v in (weight, four))
            pairs = e.b.add(e.b.mul(even, a_even), e.b.mul(odd, a_odd))
            sums.append(e.b.add(*_lower_upper(e, e.b.bitcast(pairs, vector(I32, 16)))))
        return add_all(e, sums)


BYTE_DOTS: Mapping[Isa, ByteDot] = MappingProxyType(
    {Isa.GENERIC: GenericByteDot(), Isa.AVX2: Avx2ByteDot(), Isa.AVX512_VNNI: VnniByteDot()}
)
"""For weights in -128..127."""

SIX_BIT_DOTS: Mapping[Isa, ByteDot] = MappingProxyType({**BYTE_DOTS, Isa.AVX2: Avx2SixBitDot()})
"""For weights in -32..31, two runs at a time."""


def add_all(e: Emitter, values: Sequence[Value]) -> Value:
    """Their sum, from the first to the last; there is at least one."""
    total = values[0]
    for value in values[1:]:
        total = e.b.add(total, value)
    return total


def _spread_bytes(e: Emitter, four: Value, rows: int) -> Value:
    return e.b.bitcast(e.splat(four, rows), vector(I8, 4 * rows))


def _make_unsigned(e: Emitter, bytes_: Value) -> Value:
    return e.b.xor(bytes_, const(bytes_.type, _FLIP))


def _multiply_pairs(e: Emitter, unsigned: Value, signed: Value) -> Value:
    """Products of u8 and s8, neighbours added: s16."""
    return e.call("llvm.x86.avx2.pmadd.ub.sw", vector(I16, 16), unsigned, signed)


def _widen(e: Emitter, pairs: Value) -> Value:
    """Neighbouring s16 added: i32."""
    return e.call("llvm.x86.avx2.pmadd.wd", vector(I32, 8), pairs, const(pairs.type, 1))


def _lower_upper(e: Emitter, values: Value) -> tuple[Value, Value]:
    """The lower and upper half of each lane, sign-extended."""
    shift = const(values.type, values.type.element.width // 2)
    return e.b.ashr(e.b.shl(values, shift), shift), e.b.ashr(values, shift)
