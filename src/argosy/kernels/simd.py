"""Eight f32 as one value in Numba: `F32x8`, its arithmetic and its memory.

Numba leaves vectorising to LLVM, which must keep the order of floating-point sums and therefore leaves them scalar, or
with fast-math picks an order of its own. Here the order is written down: each function is one or a few instructions on
LLVM's <8 x float>, which every target has in some width, and the same sequence of calls gives the same bits wherever it is
inlined. A product and a sum are fused where the target can (`fma`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core.typing.templates import ConcreteTemplate, infer_global
from numba.extending import intrinsic, lower_builtin, models, register_model

LANES = 8
VECTOR_BYTES = 4 * LANES

_I1, _I8, _I16, _I32 = (ir.IntType(bits) for bits in (1, 8, 16, 32))
_F16, _F32 = ir.HalfType(), ir.FloatType()
_VF, _VI = ir.VectorType(_F32, LANES), ir.VectorType(_I32, LANES)
_PTR = ir.PointerType()


class _VectorType(types.Type):
    """Numba's type of a register of `LANES` f32."""

    def __init__(self) -> None:
        super().__init__(name="F32x8")


F32x8 = _VectorType()


@register_model(_VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, numba_type: Any) -> None:
        super().__init__(manager, numba_type, _VF)


# Pieces of IR, shared by the intrinsics below and by kernels that emit whole loops.


def constant(value: float, vector: ir.VectorType = _VF) -> ir.Constant:
    """`value` in every lane."""
    return ir.Constant(vector, [ir.Constant(vector.element, value)] * vector.count)


def call(b: ir.IRBuilder, name: str, result: ir.Type, *arguments: ir.Value) -> ir.Value:
    """Call an LLVM intrinsic by its full name."""
    known = b.module.globals.get(name)
    return b.call(known or ir.Function(b.module, ir.FunctionType(result, [a.type for a in arguments]), name), arguments)


def emit_splat(b: ir.IRBuilder, scalar: ir.Value, lanes: int = LANES) -> ir.Value:
    """`scalar` in every lane."""
    blank = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
    zeros = ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes)
    return b.shuffle_vector(b.insert_element(blank, scalar, ir.Constant(_I32, 0)), blank, zeros)


def emit_fma(b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """x * y + z, rounded once where the target has the instruction and twice where it has not."""
    return call(b, f"llvm.fmuladd.v{x.type.count}f32", x.type, x, y, z)


def emit_pointer(b: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """An i64 address as a pointer."""
    return b.inttoptr(address, _PTR)


def emit_polynomial(b: ir.IRBuilder, x: ir.Value, coefficients: tuple[float, ...]) -> ir.Value:
    """Horner's scheme, highest power first."""
    result: ir.Value = constant(coefficients[0])
    for coefficient in coefficients[1:]:
        result = emit_fma(b, result, x, constant(coefficient))
    return result


def _pick(b: ir.IRBuilder, value: ir.Value, lanes: list[int]) -> ir.Value:
    mask = ir.Constant(ir.VectorType(_I32, len(lanes)), lanes)
    return b.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), mask)


def _fold(b: ir.IRBuilder, value: ir.Value, combine: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
    """Halves combined until one lane is left: ((0·4)·(2·6))·((1·5)·(3·7))."""
    count = value.type.count
    while count > 1:
        count //= 2
        low, high = (_pick(b, value, list(range(first, first + count))) for first in (0, count))
        value = combine(low, high)
    return b.extract_element(value, ir.Constant(_I32, 0))


def _greater(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def _maximum(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    return call(b, f"llvm.maximum.v{x.type.count}f32", x.type, x, y)


def _any_at_least(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    lanes = b.bitcast(b.fcmp_ordered(">=", x, y), ir.IntType(LANES))
    return b.icmp_unsigned("!=", lanes, ir.Constant(ir.IntType(LANES), 0))


# Intrinsics.

_Emit = Callable[..., ir.Value]


def _returning(context: Any, result: ir.Value | None) -> ir.Value:
    return context.get_dummy_value() if result is None else result


def define_intrinsic(signature: Any, emit: _Emit, doc: str) -> Any:
    """An intrinsic of fixed signature; `emit(builder, *arguments)` returns its value."""

    def codegen(context: Any, b: ir.IRBuilder, _signature: Any, args: Any) -> ir.Value:
        return _returning(context, emit(b, *args))

    def one(typing_context: Any, a: Any) -> Any:  # noqa: ARG001
        return signature, codegen

    def two(typing_context: Any, a: Any, b: Any) -> Any:  # noqa: ARG001
        return signature, codegen

    def three(typing_context: Any, a: Any, b: Any, c: Any) -> Any:  # noqa: ARG001
        return signature, codegen

    def four(typing_context: Any, a: Any, b: Any, c: Any, d: Any) -> Any:  # noqa: ARG001
        return signature, codegen

    definition = (one, two, three, four)[len(signature.args) - 1]
    definition.__doc__ = doc
    return intrinsic(definition)


def emit_load_f32(b: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Eight f32 at an address."""
    return b.load(emit_pointer(b, address), align=4, typ=_VF)


def _emit_store(b: ir.IRBuilder, address: ir.Value, value: ir.Value) -> None:
    b.store(value, emit_pointer(b, address), align=4)


def _first_lanes(b: ir.IRBuilder, count: ir.Value) -> ir.Value:
    lanes = ir.Constant(_VI, list(range(LANES)))
    return b.icmp_signed("<", lanes, emit_splat(b, b.trunc(count, _I32)))


def _emit_load_first(b: ir.IRBuilder, address: ir.Value, count: ir.Value) -> ir.Value:
    arguments = (emit_pointer(b, address), ir.Constant(_I32, 4), _first_lanes(b, count), constant(0.0))
    return call(b, f"llvm.masked.load.v{LANES}f32.p0", _VF, *arguments)


def _emit_store_first(b: ir.IRBuilder, address: ir.Value, value: ir.Value, count: ir.Value) -> None:
    arguments = (value, emit_pointer(b, address), ir.Constant(_I32, 4), _first_lanes(b, count))
    call(b, f"llvm.masked.store.v{LANES}f32.p0", ir.VoidType(), *arguments)


def _keep_lanes(b: ir.IRBuilder, x: ir.Value, low: ir.Value, high: ir.Value, other: ir.Value) -> ir.Value:
    lanes = ir.Constant(_VI, list(range(LANES)))
    above, below = (emit_splat(b, b.trunc(bound, _I32)) for bound in (low, high))
    kept = b.and_(b.icmp_signed(">=", lanes, above), b.icmp_signed("<", lanes, below))
    return b.select(kept, x, emit_splat(b, other))


def emit_load_bf16(b: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Eight bfloat16 at an address, as f32."""
    bits = b.load(emit_pointer(b, address), align=2, typ=ir.VectorType(_I16, LANES))
    return b.bitcast(b.shl(b.zext(bits, _VI), constant(16, _VI)), _VF)


def _emit_store_bf16(b: ir.IRBuilder, address: ir.Value, value: ir.Value) -> None:
    """Rounded to nearest even; a NaN stays one whatever its payload."""
    bits = b.bitcast(value, _VI)
    odd = b.and_(b.lshr(bits, constant(16, _VI)), constant(1, _VI))
    rounded = b.lshr(b.add(bits, b.add(odd, constant(0x7FFF, _VI))), constant(16, _VI))
    is_nan = b.fcmp_unordered("uno", value, value)
    halves = b.trunc(b.select(is_nan, constant(0x7FC0, _VI), rounded), ir.VectorType(_I16, LANES))
    b.store(halves, emit_pointer(b, address), align=2)


def emit_load_f16(b: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Eight IEEE halves at an address, as f32."""
    return b.fpext(b.load(emit_pointer(b, address), align=2, typ=ir.VectorType(_F16, LANES)), _VF)


def _emit_store_f16(b: ir.IRBuilder, address: ir.Value, value: ir.Value) -> None:
    b.store(b.fptrunc(value, ir.VectorType(_F16, LANES)), emit_pointer(b, address), align=2)


_A = types.intp
_F = types.float32
load = define_intrinsic(F32x8(_A), emit_load_f32, "Eight f32 at an address.")
store = define_intrinsic(types.void(_A, F32x8), _emit_store, "Write eight f32 at an address.")
load_first = define_intrinsic(
    F32x8(_A, _A), _emit_load_first, "The first `count` of eight f32 at an address; the rest is 0, unread."
)
store_first = define_intrinsic(types.void(_A, F32x8, _A), _emit_store_first, "Write the first `count` lanes at an address.")
load_bf16 = define_intrinsic(F32x8(_A), emit_load_bf16, "Eight bfloat16 at an address, widened.")
store_bf16 = define_intrinsic(types.void(_A, F32x8), _emit_store_bf16, "Write eight bfloat16, rounded to nearest even.")
load_f16 = define_intrinsic(F32x8(_A), emit_load_f16, "Eight IEEE halves at an address, widened.")
store_f16 = define_intrinsic(types.void(_A, F32x8), _emit_store_f16, "Write eight IEEE halves, rounded to nearest even.")
splat = define_intrinsic(F32x8(_F), emit_splat, "A number in every lane.")
fma = define_intrinsic(F32x8(F32x8, F32x8, F32x8), emit_fma, "x * y + z.")
greater = define_intrinsic(F32x8(F32x8, F32x8), _greater, "The greater of each lane; y if either is NaN.")
keep_lanes = define_intrinsic(F32x8(F32x8, _A, _A, _F), _keep_lanes, "Lanes low <= i < high of x, `other` in the rest.")
maximum = define_intrinsic(F32x8(F32x8, F32x8), _maximum, "The greater of each lane, NaN above all.")
maximum_lane = define_intrinsic(
    _F(F32x8), lambda b, x: _fold(b, x, lambda p, q: _maximum(b, p, q)), "The greatest lane, NaN above all."
)
any_at_least = define_intrinsic(types.boolean(F32x8, F32x8), _any_at_least, "Whether x >= y in any lane.")
sum_lanes = define_intrinsic(_F(F32x8), lambda b, x: _fold(b, x, b.fadd), "The sum of the lanes, halves first.")
max_lanes = define_intrinsic(_F(F32x8), lambda b, x: _fold(b, x, lambda p, q: _greater(b, p, q)), "The greatest lane.")


def _define_operator(function: Any, emit: _Emit) -> None:
    """Give F32x8 the Python operator `function`."""

    class Template(ConcreteTemplate):
        cases = [F32x8(F32x8, F32x8)]  # noqa: RUF012

    infer_global(function)(Template)

    @lower_builtin(function, F32x8, F32x8)
    def lower(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:  # noqa: ARG001
        return emit(b, *args)


_define_operator(operator.add, lambda b, x, y: b.fadd(x, y))
_define_operator(operator.sub, lambda b, x, y: b.fsub(x, y))
_define_operator(operator.mul, lambda b, x, y: b.fmul(x, y))
_define_operator(operator.truediv, lambda b, x, y: b.fdiv(x, y))


@njit(nogil=True, cache=True, forceinline=True)
def load_up_to(address: int, count: int) -> Any:
    """Eight f32 at `address`, or the first `count` of them if that is fewer; the rest is 0."""
    if count >= LANES:
        return load(address)
    return load_first(address, count)


@njit(nogil=True, cache=True, forceinline=True)
def store_up_to(address: int, value: Any, count: int) -> None:
    """Write eight f32, or the first `count` of them if that is fewer. Masked stores are slow on some processors."""
    if count >= LANES:
        store(address, value)
    else:
        store_first(address, value, count)
