"""The vector arithmetic of quantising 32 floats to signed bytes, as intrinsics for Numba.

Written as vectors because the loops do not vectorise by themselves: a maximum of floats has an order that a compiler must
keep. Here it is a maximum of bit patterns.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import extending, types

GROUP = 32
"""Activations that share a scale."""

intrinsic: Any = extending.intrinsic  # callers pass no typing context, which its annotations do not know

_I8, _I32, _F32 = ir.IntType(8), ir.IntType(32), ir.FloatType()
_SMALLEST_NORMAL = 2.0**-126
_ROUNDER = 1.5 * 2.0**23  # adding it leaves round_half_even(x) in the low bits, for |x| below 2^22


def _load_group(b: ir.IRBuilder, address: ir.Value, count: ir.Value | None) -> ir.Value:
    """The floats at `address` as <32 x float>; only the first `count` are read, the rest is zero."""
    vector = ir.VectorType(_F32, GROUP)
    pointer = b.inttoptr(address, ir.PointerType(vector))
    if count is None:
        load = b.load(pointer)
        load.align = 4
        return load
    lanes = ir.Constant(ir.VectorType(_I32, GROUP), list(range(GROUP)))
    mask = b.icmp_unsigned("<", lanes, _splat(b, b.trunc(count, _I32)))
    masked = _declare(b, "llvm.masked.load.v32f32.p0", vector, [pointer.type, _I32, mask.type, vector])
    return b.call(masked, [pointer, ir.Constant(_I32, 4), mask, ir.Constant(vector, [0.0] * GROUP)])


def _magnitude(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """The bits of the largest |x[i]|, i32. As integers they are ordered as the numbers are, infinity and NaN above all."""
    bits = b.bitcast(x, ir.VectorType(_I32, GROUP))
    magnitudes = b.and_(bits, ir.Constant(bits.type, [0x7FFFFFFF] * GROUP))
    return b.call(_declare(b, f"llvm.vector.reduce.umax.v{GROUP}i32", _I32, [bits.type]), [magnitudes])


def _round(b: ir.IRBuilder, x: ir.Value, q: ir.Value, scale: ir.Value) -> ir.Value:
    """Store round_half_even(x / scale) at address `q`, zeros if the scale is zero; returns their sum, i32."""
    wide = ir.VectorType(_I32, GROUP)
    ratio = b.fdiv(x, _splat(b, scale))
    bits = b.bitcast(b.fadd(ratio, ir.Constant(x.type, [_ROUNDER] * GROUP)), wide)
    live = _splat(b, b.fcmp_unordered("!=", scale, ir.Constant(_F32, 0.0)))
    rounded = b.trunc(b.select(live, bits, ir.Constant(wide, [0] * GROUP)), ir.VectorType(_I8, GROUP))
    b.store(rounded, b.inttoptr(q, ir.PointerType(rounded.type)), align=1)
    return b.call(_declare(b, f"llvm.vector.reduce.add.v{GROUP}i32", _I32, [wide]), [b.sext(rounded, wide)])


def _splat(b: ir.IRBuilder, scalar: ir.Value) -> ir.Value:
    blank = ir.Constant(ir.VectorType(scalar.type, GROUP), ir.Undefined)
    zeros = ir.Constant(ir.VectorType(_I32, GROUP), [0] * GROUP)
    return b.shuffle_vector(b.insert_element(blank, scalar, ir.Constant(_I32, 0)), blank, zeros)


def _declare(b: ir.IRBuilder, name: str, result: ir.Type, arguments: list[ir.Type]) -> ir.Function:
    known = b.module.globals.get(name)
    return known or ir.Function(b.module, ir.FunctionType(result, arguments), name)


@intrinsic
def group_magnitude(typing_context: Any, x: Any) -> Any:  # noqa: ARG001
    """The bits of the largest magnitude among the 32 floats at address `x`, as i32."""

    def codegen(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:  # noqa: ARG001
        return _magnitude(b, _load_group(b, args[0], None))

    return types.int32(types.intp), codegen


@intrinsic
def tail_magnitude(typing_context: Any, x: Any, count: Any) -> Any:  # noqa: ARG001
    """As `group_magnitude`, of the `count` floats at `x`."""

    def codegen(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:  # noqa: ARG001
        return _magnitude(b, _load_group(b, *args))

    return types.int32(types.intp, types.intp), codegen


@intrinsic
def scale_of(typing_context: Any, magnitude: Any) -> Any:  # noqa: ARG001
    """The scale, f32, of a group whose largest magnitude has these bits."""

    def codegen(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:  # noqa: ARG001
        scale = b.fdiv(b.bitcast(args[0], _F32), ir.Constant(_F32, 127.0))
        subnormal = b.fcmp_ordered("<", scale, ir.Constant(_F32, _SMALLEST_NORMAL))
        return b.select(subnormal, ir.Constant(_F32, 0.0), scale)

    return types.float32(types.int32), codegen


@intrinsic
def round_group(typing_context: Any, x: Any, q: Any, scale: Any) -> Any:  # noqa: ARG001
    """Store the 32 floats at `x` over `scale`, rounded, as bytes at `q`; returns their sum, i32."""

    def codegen(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:  # noqa: ARG001
        return _round(b, _load_group(b, args[0], None), args[1], args[2])

    return types.int32(types.intp, types.intp, types.float32), codegen


@intrinsic
def round_tail(typing_context: Any, x: Any, count: Any, q: Any, scale: Any) -> Any:  # noqa: ARG001
    """As `round_group` with `count` floats at `x`; the other bytes of the group become zero."""

    def codegen(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:  # noqa: ARG001
        return _round(b, _load_group(b, args[0], args[1]), args[2], args[3])

    return types.int32(types.intp, types.intp, types.intp, types.float32), codegen


@intrinsic
def store_scales(typing_context: Any, scale: Any, total: Any, scale_at: Any, scale_sum_at: Any) -> Any:  # noqa: ARG001
    """Store `scale` and scale · total, f32, at the two addresses."""

    def codegen(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:  # noqa: ARG001
        scale, total, scale_at, scale_sum_at = args
        float_pointer = ir.PointerType(_F32)
        b.store(scale, b.inttoptr(scale_at, float_pointer), align=4)
        product = b.fmul(scale, b.sitofp(total, _F32))
        b.store(product, b.inttoptr(scale_sum_at, float_pointer), align=4)
        return context.get_dummy_value()

    return types.void(types.float32, types.int32, types.intp, types.intp), codegen
