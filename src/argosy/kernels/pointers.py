"""Scalars at raw addresses, for ops whose operands are addresses.

All are Numba intrinsics that compile to one plain load or store; nothing is checked.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

OP_SIGNATURE = types.void(types.CPointer(types.int64), types.int64, types.int64, types.int64)
"""(args, begin, end, thread): one op of a tape, items begin..end."""


@intrinsic
def bits_float(typing_context: Any, bits: Any) -> Any:  # noqa: ARG001
    """The f32 nearest to the fp64 number with these bits: a float among an op's args."""

    def codegen(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:  # noqa: ARG001
        return b.fptrunc(b.bitcast(args[0], ir.DoubleType()), ir.FloatType())

    return types.float32(types.int64), codegen


def _load(element: ir.Type) -> Any:
    def codegen(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:  # noqa: ARG001
        return b.load(b.inttoptr(args[0], ir.PointerType()), align=1, typ=element)

    return codegen


def _store(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:  # noqa: ARG001
    b.store(args[1], b.inttoptr(args[0], ir.PointerType()), align=1)
    return context.get_dummy_value()


@intrinsic
def load_f32(typing_context: Any, address: Any) -> Any:  # noqa: ARG001
    """The f32 at `address`."""
    return types.float32(types.intp), _load(ir.FloatType())


@intrinsic
def load_f64(typing_context: Any, address: Any) -> Any:  # noqa: ARG001
    """The f64 at `address`."""
    return types.float64(types.intp), _load(ir.DoubleType())


@intrinsic
def load_u8(typing_context: Any, address: Any) -> Any:  # noqa: ARG001
    """The byte at `address`."""
    return types.uint8(types.intp), _load(ir.IntType(8))


@intrinsic
def load_s8(typing_context: Any, address: Any) -> Any:  # noqa: ARG001
    """The signed byte at `address`."""
    return types.int8(types.intp), _load(ir.IntType(8))


@intrinsic
def load_f16(typing_context: Any, address: Any) -> Any:  # noqa: ARG001
    """The IEEE half at `address`, as f32."""

    def codegen(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:  # noqa: ARG001
        half = b.load(b.inttoptr(args[0], ir.PointerType()), align=1, typ=ir.HalfType())
        return b.fpext(half, ir.FloatType())

    return types.float32(types.intp), codegen


@intrinsic
def load_bf16(typing_context: Any, address: Any) -> Any:  # noqa: ARG001
    """The bfloat16 at `address`, as f32."""

    def codegen(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:  # noqa: ARG001
        bits = b.load(b.inttoptr(args[0], ir.PointerType()), align=1, typ=ir.IntType(16))
        wide = b.shl(b.zext(bits, ir.IntType(32)), ir.Constant(ir.IntType(32), 16))
        return b.bitcast(wide, ir.FloatType())

    return types.float32(types.intp), codegen


@intrinsic
def load_i32(typing_context: Any, address: Any) -> Any:  # noqa: ARG001
    """The i32 at `address`."""
    return types.int32(types.intp), _load(ir.IntType(32))


@intrinsic
def load_i64(typing_context: Any, address: Any) -> Any:  # noqa: ARG001
    """The i64 at `address`."""
    return types.int64(types.intp), _load(ir.IntType(64))


@intrinsic
def store_f32(typing_context: Any, address: Any, value: Any) -> Any:  # noqa: ARG001
    """Write an f32 at `address`."""
    return types.void(types.intp, types.float32), _store


@intrinsic
def store_i32(typing_context: Any, address: Any, value: Any) -> Any:  # noqa: ARG001
    """Write an i32 at `address`."""
    return types.void(types.intp, types.int32), _store


@intrinsic
def store_i64(typing_context: Any, address: Any, value: Any) -> Any:  # noqa: ARG001
    """Write an i64 at `address`."""
    return types.void(types.intp, types.int64), _store
