"""What threads need to agree without a lock: atomic words, calls through addresses, and sleeping on a word.

All are Numba intrinsics on raw addresses, usable in nopython functions without the GIL and kept by Numba's disk cache: they
name no Python object, and `syscall`, `usleep` and `clock_gettime` are resolved in the C library when the code is loaded.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_intrinsic: Callable[[Any], Any] = intrinsic
"""Typed loosely: what it returns is called from compiled functions, without the context argument."""

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_POINTER_TO_I32, _POINTER_TO_I64 = ir.PointerType(_I32), ir.PointerType(_I64)

_FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98}
FUTEX_NUMBER = _FUTEX_NUMBERS.get(platform.machine(), 0) if sys.platform == "linux" else 0
"""System call number of futex(2), or 0 where threads poll with short sleeps instead."""
_FUTEX_WAIT_PRIVATE = 128
_FUTEX_WAKE_PRIVATE = 129
_LOW_HALF_OFFSET_BYTES = 0 if sys.byteorder == "little" else 4
_POLL_US = 50
_EVERYONE = 2**31 - 1

_PAUSE_X86 = ("llvm.x86.sse2.pause", ())
_YIELD_ARM = ("llvm.aarch64.hint", (ir.Constant(_I32, 1),))
_PAUSES = {"x86_64": _PAUSE_X86, "AMD64": _PAUSE_X86, "aarch64": _YIELD_ARM, "arm64": _YIELD_ARM}


def _declared(module: ir.Module, name: str, function_type: ir.FunctionType) -> ir.Function:
    return module.globals.get(name) or ir.Function(module, function_type, name)


@_intrinsic
def load_i64(_context: Any, _address: Any) -> Any:
    """The 64-bit word at `address`; everything written before the store that it sees is seen too (acquire)."""

    def generate(_target: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], _POINTER_TO_I64), "seq_cst", 8)

    return types.int64(types.int64), generate


@_intrinsic
def store_i64(_context: Any, _address: Any, _value: Any) -> Any:
    """Write the 64-bit word at `address`, after everything written before it (sequentially consistent)."""

    def generate(_target: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], builder.inttoptr(args[0], _POINTER_TO_I64), "seq_cst", 8)

    return types.void(types.int64, types.int64), generate


@_intrinsic
def add_i64(_context: Any, _address: Any, _increment: Any) -> Any:
    """Add to the 64-bit word at `address` in one indivisible step; returns what it was before."""

    def generate(_target: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", builder.inttoptr(args[0], _POINTER_TO_I64), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@_intrinsic
def compare_and_swap_i64(_context: Any, _address: Any, _expected: Any, _desired: Any) -> Any:
    """Replace the 64-bit word at `address` by `desired` if it is `expected`; returns whether it was."""

    def generate(_target: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], _POINTER_TO_I64)
        return builder.extract_value(builder.cmpxchg(pointer, args[1], args[2], "seq_cst"), 1)

    return types.boolean(types.int64, types.int64, types.int64), generate


@_intrinsic
def peek_i64(_context: Any, _address: Any) -> Any:
    """The 64-bit word at `address`, read plainly."""

    def generate(_target: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], _POINTER_TO_I64))

    return types.int64(types.int64), generate


@_intrinsic
def call_op(_context: Any, _function: Any, _args_address: Any, _begin: Any, _end: Any, _thread: Any) -> Any:
    """Call the C function at `function`: `void op(int64 *args, int64 begin, int64 end, int64 thread)`."""
    op_type = ir.FunctionType(ir.VoidType(), [_POINTER_TO_I64, _I64, _I64, _I64])

    def generate(_target: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> Any:
        op = builder.inttoptr(args[0], ir.PointerType(op_type))
        builder.call(op, [builder.inttoptr(args[1], _POINTER_TO_I64), *args[2:]])

    return types.void(*[types.int64] * 5), generate


@_intrinsic
def pause(_context: Any) -> Any:
    """Tell the core that this is a spinning loop: saves power and leaves a sibling hardware thread the execution units."""

    def generate(_target: Any, builder: ir.IRBuilder, _signature: Any, _args: Any) -> Any:
        name, arguments = _PAUSES.get(platform.machine(), ("", ()))
        if name:
            types_of = [argument.type for argument in arguments]
            function = _declared(builder.module, name, ir.FunctionType(ir.VoidType(), types_of))
            builder.call(function, arguments)

    return types.void(), generate


@_intrinsic
def _syscall(_context: Any, _number: Any, _address: Any, _operation: Any, _value: Any, _timeout: Any) -> Any:
    """futex(2); `timeout` is the address of a timespec or 0."""

    def generate(_target: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> Any:
        function = _declared(builder.module, "syscall", ir.FunctionType(_I64, [_I64], var_arg=True))
        zero = ir.Constant(_I64, 0)
        return builder.call(function, [*args, zero, zero])

    return types.int64(*[types.int64] * 5), generate


@_intrinsic
def sleep_us(_context: Any, _microseconds: Any) -> Any:
    """usleep(3): give the core away for at least that long."""

    def generate(_target: Any, builder: ir.IRBuilder, _signature: Any, args: Any) -> Any:
        function = _declared(builder.module, "usleep", ir.FunctionType(_I32, [_I32]))
        builder.call(function, [builder.trunc(args[0], _I32)])

    return types.void(types.int64), generate


@_intrinsic
def monotonic_ns(_context: Any) -> Any:
    """Nanoseconds of a clock that never goes back, from an unknown point (clock_gettime(2))."""

    def generate(_target: Any, builder: ir.IRBuilder, _signature: Any, _args: Any) -> Any:
        timespec = ir.ArrayType(_I64, 2)
        kind = ir.FunctionType(_I32, [_I32, ir.PointerType(timespec)])
        function = _declared(builder.module, "clock_gettime", kind)
        with builder.goto_entry_block():
            room = builder.alloca(timespec)
        builder.call(function, [ir.Constant(_I32, time.CLOCK_MONOTONIC), room])
        seconds, nanoseconds = (builder.extract_value(builder.load(room), i) for i in range(2))
        return builder.add(builder.mul(seconds, ir.Constant(_I64, 10**9)), nanoseconds)

    return types.int64(), generate


@njit(nogil=True, cache=True)
def sleep_while(address: int, word: int, timeout_address: int) -> None:
    """Sleep until the low 32 bits of the 64-bit word at `address` are changed from those of `word` and `wake` is called.

    Returns at once if they differ already, and may return for no reason: the caller looks again. `timeout_address` is that
    of two 64-bit words, seconds and nanoseconds, or 0 to sleep without end. Without futex(2) it sleeps for a moment.
    """
    if FUTEX_NUMBER:
        _syscall(FUTEX_NUMBER, address + _LOW_HALF_OFFSET_BYTES, _FUTEX_WAIT_PRIVATE, word & 0xFFFFFFFF, timeout_address)
    else:
        sleep_us(_POLL_US)


@njit(nogil=True, cache=True)
def wake(address: int) -> None:
    """Wake every thread that sleeps on the word at `address`."""
    if FUTEX_NUMBER:
        _syscall(FUTEX_NUMBER, address + _LOW_HALF_OFFSET_BYTES, _FUTEX_WAKE_PRIVATE, _EVERYONE, 0)
