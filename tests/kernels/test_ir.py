from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
from llvmlite import ir

from argosy.kernels.ir import F32, I8, I16, I32, I64, PTR, VOID, Emitter, const, vector
from argosy.kernels.jit import JitCompiler


@pytest.fixture
def run(tmp_path) -> Callable[..., None]:
    """run(emit, *arrays): compile a function whose body `emit(e, *pointers)` emits, and call it with the arrays."""
    compiler = JitCompiler(tmp_path)

    def compile_and_call(emit: Callable[..., None], *arrays: np.ndarray) -> None:
        function = ir.Function(ir.Module(), ir.FunctionType(VOID, [PTR] * len(arrays)), "f")
        e = Emitter(function)
        emit(e, *function.args)
        e.b.ret_void()
        address = compiler.address(str(function.module), "f")
        ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(arrays))(address)(*(a.ctypes.data for a in arrays))

    return compile_and_call


def test_half_to_float_is_exact_for_every_half(run):
    halves = np.arange(2**16, dtype=np.uint16)
    floats = np.zeros(2**16, np.float32)

    def emit(e, source, target):
        def body(index, _):
            bits = e.load(vector(I16, 8), source, e.b.mul(index, const(I64, 2)))
            e.store(e.half_to_float(bits), target, e.b.mul(index, const(I64, 4)))
            return []

        e.loop(const(I64, 0), const(I64, 2**16), body, step=8)

    run(emit, halves, floats)
    expected = halves.view(np.float16).astype(np.float32)
    number = ~np.isnan(expected)
    assert np.array_equal(floats.view(np.uint32)[number], expected.view(np.uint32)[number])
    assert np.isnan(floats[~number]).all()


@pytest.mark.parametrize(("begin", "end", "step"), [(0, 5, 1), (2, 9, 3), (4, 4, 1), (5, 2, 1)])
def test_loop(run, begin, end, step):
    out = np.zeros(2, np.int64)

    def emit(e, target):
        def body(index, carried):
            total, count = carried
            return [e.b.add(total, index), e.b.add(count, const(I64, 1))]

        results = e.loop(const(I64, begin), const(I64, end), body, [const(I64, 0), const(I64, 0)], step=step)
        for position, value in enumerate(results):
            e.store(value, target, 8 * position)

    run(emit, out)
    indices = range(begin, end, step)
    assert out.tolist() == [sum(indices), len(indices)]


def test_lanes(run):
    out = np.zeros(4 + 8 + 2, np.int32)
    source = np.arange(1, 5, dtype=np.int32)

    def emit(e, values, target):
        four = e.load(vector(I32, 4), values)
        e.store(e.splat(e.load(I32, values, 8), 4), target)
        e.store(e.join(four, e.b.add(four, four)), target, 16)
        e.store(e.pick(four, [3, 0]), target, 48)

    run(emit, source, out)
    assert out.tolist() == [3, 3, 3, 3, 1, 2, 3, 4, 2, 4, 6, 8, 4, 1]


def test_fma_rounds_once_and_mul_add_twice(run):
    x = np.float32(1 + 2**-12)
    values = np.array([x, x, -np.float32(x * x)], np.float32)
    out = np.zeros(2, np.float32)

    def emit(e, source, target):
        a, b, c = (e.load(F32, source, 4 * i) for i in range(3))
        e.store(e.fma(a, b, c), target)
        e.store(e.mul_add(a, b, c), target, 4)

    run(emit, values, out)
    assert out[0] == np.float32(float(x) * float(x) + float(values[2])) != 0
    assert out[1] == 0


@pytest.mark.parametrize("condition", [0, 1])
def test_when(run, condition):
    out = np.zeros(2, np.int8)
    chosen = np.array([condition], np.int8)

    def emit(e, source, target):
        is_set = e.b.icmp_signed("!=", e.load(I8, source), const(I8, 0))
        e.when(is_set, lambda: e.store(const(I8, 1), target), lambda: e.store(const(I8, 2), target))
        e.when(is_set, lambda: e.store(const(I8, 3), target, 1))

    run(emit, chosen, out)
    assert out.tolist() == ([1, 3] if condition else [2, 0])


def test_scratch_takes_any_type(run):
    out = np.zeros(2, np.int32)

    def emit(e, target):
        room = e.scratch(vector(I32, 4))
        e.store(const(vector(I16, 4), 7), room)
        e.store(e.load(vector(I32, 2), room), target)

    run(emit, out)
    assert out.tolist() == [7 << 16 | 7] * 2
