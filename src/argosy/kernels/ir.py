"""Vector IR in few words: an `Emitter` around llvmlite's builder with the types, loops and lane operations kernels need.

Addresses are opaque pointers with byte offsets. No instruction carries fast-math flags, so LLVM neither reorders nor
contracts floating-point arithmetic: what is written is what is computed, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

Value = Any
"""An llvmlite value; the library has no type annotations."""

VOID = ir.VoidType()
I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
PTR = ir.PointerType()

_CACHE_LINE_BYTES = 64

OP_TYPE = ir.FunctionType(VOID, (PTR, I64, I64, I64))
"""Every op of a step: `void op(int64 *args, int64 begin, int64 end, int64 thread)`, items [begin, end)."""


def vector(element: ir.Type, lanes: int) -> ir.VectorType:
    """`lanes` of `element`."""
    return ir.VectorType(element, lanes)


def const(type_: ir.Type, value: float) -> ir.Constant:
    """`value` as `type_`, in every lane if that is a vector."""
    if isinstance(type_, ir.VectorType):
        return ir.Constant(type_, [ir.Constant(type_.element, value)] * type_.count)
    return ir.Constant(type_, value)


class Emitter:
    """Emits into one function; `b` is the llvmlite builder, for what has no shorter name here."""

    def __init__(self, function: ir.Function) -> None:
        self.function = function
        self.module = function.module
        self.b = ir.IRBuilder(function.append_basic_block("entry"))

    # Memory.

    def at(self, base: Value, *offsets: Value | int) -> Value:
        """`base` moved by the sum of byte offsets, each an i64 value or an int."""
        for offset in offsets:
            if isinstance(offset, int):
                if offset == 0:
                    continue
                offset = const(I64, offset)
            base = self.b.gep(base, [offset], source_etype=I8)
        return base

    def load(self, type_: ir.Type, base: Value, *offsets: Value | int, align: int = 1) -> Value:
        """A `type_` from `base` plus byte offsets."""
        return self.b.load(self.at(base, *offsets), align=align, typ=type_)

    def store(self, value: Value, base: Value, *offsets: Value | int, align: int = 1) -> None:
        """`value` to `base` plus byte offsets."""
        self.b.store(value, self.at(base, *offsets), align=align)

    def prefetch(self, base: Value, offset: int, num_bytes: int) -> None:
        """Ask for the cache lines of `num_bytes` from `base` + `offset`; the memory need not exist."""
        for line in range(0, num_bytes, _CACHE_LINE_BYTES):
            hints = const(I32, 0), const(I32, 3), const(I32, 1)  # for reading, into all caches, of data
            self.call("llvm.prefetch.p0", VOID, self.at(base, offset + line), *hints)

    def scratch(self, type_: ir.Type) -> Value:
        """A pointer to uninitialised room for a `type_` on the stack, for the length of the call."""
        with self.b.goto_entry_block():
            room = self.b.alloca(type_)
        room.type = PTR  # the builder gives it the old, typed kind of pointer, which takes stores of one type only
        return room

    # Lanes.

    def splat(self, scalar: Value, lanes: int) -> Value:
        """`scalar` in every lane."""
        undefined = ir.Constant(vector(scalar.type, lanes), ir.Undefined)
        first = self.b.insert_element(undefined, scalar, const(I32, 0))
        return self.b.shuffle_vector(first, undefined, const(vector(I32, lanes), 0))

    def pick(self, value: Value, lanes: Sequence[int]) -> Value:
        """The named lanes of one vector, in that order."""
        mask = ir.Constant(vector(I32, len(lanes)), list(lanes))
        return self.b.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), mask)

    def join(self, low: Value, high: Value) -> Value:
        """Two vectors of one type side by side."""
        lanes = low.type.count + high.type.count
        return self.b.shuffle_vector(low, high, ir.Constant(vector(I32, lanes), list(range(lanes))))

    # Arithmetic.

    def call(self, name: str, result: ir.Type, *arguments: Value) -> Value:
        """Call an LLVM intrinsic or a function of this module by name, declaring it if need be."""
        callee = self.module.globals.get(name)
        if callee is None:
            callee = ir.Function(self.module, ir.FunctionType(result, [a.type for a in arguments]), name)
        return self.b.call(callee, arguments)

    def fma(self, x: Value, y: Value, z: Value) -> Value:
        """x * y + z, rounded once. For targets with the instruction: without it LLVM calls libm per lane."""
        lanes = f"v{x.type.count}" if isinstance(x.type, ir.VectorType) else ""
        return self.call(f"llvm.fma.{lanes}f32", x.type, x, y, z)

    def mul_add(self, x: Value, y: Value, z: Value) -> Value:
        """x * y + z, rounded twice; for any target."""
        return self.b.fadd(self.b.fmul(x, y), z)

    def half_to_float(self, bits: Value) -> Value:
        """f32 of IEEE half floats given as a vector of i16, with integer arithmetic; exact, for any target.

        Shifting a half's fields into place leaves the exponent 112 too small, subnormals included; a multiplication mends
        that. Infinities and NaNs get the exponent that marks them.
        """
        wide = vector(I32, bits.type.count)
        floats = vector(F32, bits.type.count)
        x = self.b.zext(bits, wide)
        magnitude = self.b.shl(self.b.and_(x, const(wide, 0x7FFF)), const(wide, 13))
        scaled = self.b.bitcast(self.b.fmul(self.b.bitcast(magnitude, floats), const(floats, 2.0**112)), wide)
        special = self.b.icmp_unsigned(">=", magnitude, const(wide, 0x7C00 << 13))
        marked = self.b.or_(magnitude, const(wide, 0x7F800000))
        sign = self.b.shl(self.b.and_(x, const(wide, 0x8000)), const(wide, 16))
        return self.b.bitcast(self.b.or_(self.b.select(special, marked, scaled), sign), floats)

    # Control.

    def loop(
        self,
        begin: Value,
        end: Value,
        body: Callable[[Value, list[Value]], list[Value]],
        carried: Sequence[Value] = (),
        step: int = 1,
    ) -> list[Value]:
        """`for i in range(begin, end, step): carried = body(i, carried)`; i64 bounds, returns what is carried out."""
        entry = self.b.block
        head, inside, after = (self.b.append_basic_block(name) for name in ("head", "body", "after"))
        self.b.branch(head)
        self.b.position_at_end(head)
        index = self.b.phi(I64)
        index.add_incoming(begin, entry)
        phis = [self.b.phi(value.type) for value in carried]
        for phi, value in zip(phis, carried, strict=True):
            phi.add_incoming(value, entry)
        self.b.cbranch(self.b.icmp_signed("<", index, end), inside, after)
        self.b.position_at_end(inside)
        results = body(index, list(phis))
        following = self.b.add(index, const(I64, step))
        index.add_incoming(following, self.b.block)
        for phi, value in zip(phis, results, strict=True):
            phi.add_incoming(value, self.b.block)
        self.b.branch(head)
        self.b.position_at_end(after)
        return phis

    def when(self, condition: Value, then: Callable[[], None], otherwise: Callable[[], None] | None = None) -> None:
        """`if condition: then() else: otherwise()`, for their effects on memory."""
        if otherwise is None:
            with self.b.if_then(condition):
                then()
            return
        with self.b.if_else(condition) as (yes, no):
            with yes:
                then()
            with no:
                otherwise()
