"""The vector steps of a fast Hadamard transform of floats in memory, as intrinsics for Numba.

Stages with a distance below 8 pair lanes within a vector, where no compiler's loop vectorisation reaches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import extending, types

LANES = 8
"""Floats of a vector."""

UNIT = 64
"""Floats that `rotate_unit` transforms in registers: 8 vectors."""

intrinsic: Any = extending.intrinsic  # callers pass no typing context, which its annotations do not know

_I32, _F32 = ir.IntType(32), ir.FloatType()
_VECTOR = ir.VectorType(_F32, LANES)
_RADIX = 8

Builder = Any
Value = Any


@intrinsic
def rotate_lanes(typing_context: Any, x: Any, factor: Any) -> Any:  # noqa: ARG001
    """Transform the 8 floats at address `x` in place, and multiply them by `factor`."""

    def codegen(context: Any, b: Builder, signature: Any, args: Sequence[Value]) -> Value:  # noqa: ARG001
        x, factor = args
        _store(b, [b.fmul(_within(b, _load(b, x, 0)), _splat(b, factor))], x, [0])
        return context.get_dummy_value()

    return types.void(types.intp, types.float32), codegen


@intrinsic
def rotate_unit(typing_context: Any, x: Any, factor: Any) -> Any:  # noqa: ARG001
    """Transform the 64 floats at address `x` in place, and multiply them by `factor`."""

    def codegen(context: Any, b: Builder, signature: Any, args: Sequence[Value]) -> Value:  # noqa: ARG001
        x, factor = args
        offsets = range(0, UNIT * 4, LANES * 4)
        rotated = _across(b, [_within(b, _load(b, x, offset)) for offset in offsets])
        factors = _splat(b, factor)
        _store(b, [b.fmul(value, factors) for value in rotated], x, offsets)
        return context.get_dummy_value()

    return types.void(types.intp, types.float32), codegen


@intrinsic
def combine_pair(typing_context: Any, x: Any, stride_bytes: Any) -> Any:  # noqa: ARG001
    """One stage on two vectors: those at `x` and `stride_bytes` behind it become their sum and their difference."""
    return types.void(types.intp, types.intp), _combiner(2)


@intrinsic
def combine_eight(typing_context: Any, x: Any, stride_bytes: Any) -> Any:  # noqa: ARG001
    """Three stages on eight vectors, `stride_bytes` apart from `x` on."""
    return types.void(types.intp, types.intp), _combiner(_RADIX)


def _combiner(count: int) -> Any:
    def codegen(context: Any, b: Builder, signature: Any, args: Sequence[Value]) -> Value:  # noqa: ARG001
        x, stride = args
        offsets = [b.mul(stride, ir.Constant(stride.type, i)) for i in range(count)]
        _store(b, _across(b, [_load(b, x, offset) for offset in offsets]), x, offsets)
        return context.get_dummy_value()

    return codegen


def _within(b: Builder, x: Value) -> Value:
    """All three stages inside one vector: lane i becomes x[i ^ h] ± x[i], minus where bit h of i is set."""
    for half in (1, 2, 4):
        mask = ir.Constant(ir.VectorType(_I32, LANES), [lane ^ half for lane in range(LANES)])
        partners = b.shuffle_vector(x, ir.Constant(_VECTOR, ir.Undefined), mask)
        signs = ir.Constant(_VECTOR, [-1.0 if lane & half else 1.0 for lane in range(LANES)])
        x = b.fadd(partners, b.fmul(x, signs))
    return x


def _across(b: Builder, values: list[Value]) -> list[Value]:
    """All stages over the index of `values`, whose number is a power of two."""
    half = 1
    while half < len(values):
        paired = list(values)
        for i in range(len(values)):
            if not i & half:
                paired[i] = b.fadd(values[i], values[i + half])
                paired[i + half] = b.fsub(values[i], values[i + half])
        values = paired
        half *= 2
    return values


def _pointer(b: Builder, x: Value, offset: Value | int) -> Value:
    distance = ir.Constant(x.type, offset) if isinstance(offset, int) else offset
    return b.inttoptr(b.add(x, distance), ir.PointerType(_VECTOR))


def _load(b: Builder, x: Value, offset: Value | int) -> Value:
    value = b.load(_pointer(b, x, offset))
    value.align = 4
    return value


def _store(b: Builder, values: list[Value], x: Value, offsets: Sequence[Value | int]) -> None:
    for value, offset in zip(values, offsets, strict=True):
        b.store(value, _pointer(b, x, offset), align=4)


def _splat(b: Builder, scalar: Value) -> Value:
    blank = ir.Constant(_VECTOR, ir.Undefined)
    zeros = ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES)
    return b.shuffle_vector(b.insert_element(blank, scalar, ir.Constant(_I32, 0)), blank, zeros)
