"""Products of each kind of weight with 1 to 512 tokens, beside what memory and multiplier allow.

    python benchmarks/kernel_rates.py [--json] [--threads N] [--isa avx2] [--types Q4_1,Q4_K] [--shapes 576x960,1536x8960]

A tape multiplies copies of one matrix (outputs x inputs) that together exceed the caches, as a model's layers do, and
reports for every token count the products of one weight and one activation per second, the bytes of weights per second and
their share of the measured read rate; for 4-bit weights also the share of the rate at which the processor adds such
products in registers. The best of several runs counts, and limits are measured between them, so that a neighbour on the
machine disturbs both alike. Writes benchmarks/results/kernel_rates.json.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any, NamedTuple

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from llvmlite import ir

from argosy.kernels.cores import usable_cores
from argosy.kernels.features import Isa, choose_isa
from argosy.kernels.gemm.abi import GemmArg
from argosy.kernels.gemm.lowering import LOWERINGS
from argosy.kernels.gemm.nibble_dot import NIBBLE_DOTS
from argosy.kernels.gemm.registry import gemm_address
from argosy.kernels.ir import F32, I8, I32, I64, OP_TYPE, PTR, Emitter, Value, const, vector
from argosy.kernels.jit import JitCompiler
from argosy.kernels.pack_ggml import PACKINGS, pack
from argosy.kernels.packed import PackedMatrix, WeightKind, aligned_empty
from argosy.kernels.tape import Tape, TapeBuilder
from argosy.kernels.team import Team
from report import machine, write_result

SHAPES = ("960x576", "576x576", "3072x576", "576x1536", "17920x1536", "1536x8960")
"""q, k and v; attention output; gate and up; down of SmolLM2-135M, then the last two of Qwen2.5-1.5B."""
TOKENS = (1, 2, 4, 8, 16, 32, 128, 512)
WORKING_SET_BYTES = 96 << 20
MACS_PER_RUN = 2e9
"""Copies are left out where this many products take long enough to be timed and tokens keep caches from mattering."""
FLOAT_KINDS = (WeightKind.F32, WeightKind.F16, WeightKind.BF16)
READ_ITEM_BYTES = 1 << 16
DOT_STEPS = 100_000
DOT_TOTALS = 8


class Limits(NamedTuple):
    """Best rates seen, of all threads together."""

    read_bytes_per_s: float
    dot_macs_per_s: float


def read_module() -> str:
    """An op that reads items of `READ_ITEM_BYTES` at args[0] and stores their sum at args[1]."""
    function = ir.Function(ir.Module(), OP_TYPE, "read")
    e = Emitter(function)
    args, begin, end, thread = function.args
    data, out = (e.b.inttoptr(e.load(I64, args, 8 * i), PTR) for i in range(2))
    lanes = vector(F32, 16)

    def item(index: Value, sums: list[Value]) -> list[Value]:
        base = e.at(data, e.b.mul(index, const(I64, READ_ITEM_BYTES)))

        def add(offset: Value, sums: list[Value]) -> list[Value]:
            return [e.b.fadd(total, e.load(lanes, base, offset, 64 * i)) for i, total in enumerate(sums)]

        return e.loop(const(I64, 0), const(I64, READ_ITEM_BYTES), add, sums, step=64 * len(sums))

    for i, total in enumerate(e.loop(begin, end, item, [const(lanes, 0.0)] * 4)):
        e.store(total, out, e.b.mul(thread, const(I64, 256)), 64 * i)
    e.b.ret_void()
    return str(function.module)


def dot_module(isa: Isa) -> str:
    """An op whose items are `DOT_STEPS` steps of `DOT_TOTALS` independent 4-bit products in registers."""
    function = ir.Function(ir.Module(), OP_TYPE, "dot")
    e = Emitter(function)
    args, begin, end, thread = function.args
    data, out = (e.b.inttoptr(e.load(I64, args, 8 * i), PTR) for i in range(2))
    dot, rows = NIBBLE_DOTS[isa], LOWERINGS[isa].rows
    weights = [e.load(vector(I8, 4 * rows), data, 64 * i) for i in range(2)]

    def step(index: Value, totals: list[Value]) -> list[Value]:
        # Activations come from changing addresses, or the products would be computed once, before the loop.
        place = e.b.and_(e.b.mul(index, const(I64, 4)), const(I64, 4095))
        fours = [dot.spread(e, e.load(I32, data, place, 4096 * i)) for i in range(DOT_TOTALS // 2)]
        return [dot.add(e, total, weights[i % 2], fours[i // 2]) for i, total in enumerate(totals)]

    def item(_: Value, totals: list[Value]) -> list[Value]:
        return e.loop(const(I64, 0), const(I64, DOT_STEPS), step, totals)

    for i, total in enumerate(e.loop(begin, end, item, [dot.zero()] * DOT_TOTALS)):
        e.store(total, out, e.b.mul(thread, const(I64, 64 * DOT_TOTALS)), 64 * i)
    e.b.ret_void()
    return str(function.module)


class Bench:
    """Tapes, and the team that runs them."""

    def __init__(self, isa: Isa, threads: int) -> None:
        self.isa, self.threads = isa, threads
        self.jit = JitCompiler()
        self.team = Team(threads)
        self.data = aligned_empty((WORKING_SET_BYTES,), np.uint8)
        self.data[:] = 0
        self.out = aligned_empty((threads * 64 * DOT_TOTALS,), np.uint8)
        words = [self.data.ctypes.data, self.out.ctypes.data]
        self.read_tape = self._one_op(self.jit.address(read_module(), "read"), words, WORKING_SET_BYTES // READ_ITEM_BYTES)
        self.dot_tape = self._one_op(self.jit.address(dot_module(isa), "dot"), words, 4 * threads)

    def _one_op(self, function: int, args: list[int], items: int) -> Tape:
        builder = TapeBuilder(self.threads)
        builder.add(function, args, items=items)
        return builder.build()

    def seconds(self, tape: Tape, budget_s: float) -> float:
        """The shortest run of `tape` within `budget_s`, of at least three; CPU time if one thread runs it."""
        clock = time.thread_time if self.threads == 1 else time.perf_counter
        best, runs, deadline = float("inf"), 0, time.perf_counter() + budget_s
        while runs < 3 or time.perf_counter() < deadline:
            begin = clock()
            self.team.run(tape)
            best, runs = min(best, clock() - begin), runs + 1
        return best

    def limits(self) -> Limits:
        macs = 4 * self.threads * DOT_STEPS * DOT_TOTALS * 4 * LOWERINGS[self.isa].rows
        return Limits(WORKING_SET_BYTES / self.seconds(self.read_tape, 0.2), macs / self.seconds(self.dot_tape, 0.1))

    def gemm_tape(self, matrix: PackedMatrix, tokens: int, copies: int, keep: list[Any]) -> Tape:
        """`copies` products; arrays they use are appended to `keep`."""
        rng = np.random.default_rng(0)
        columns, groups = matrix.columns, -(-matrix.columns // 32)
        is_float = matrix.kind in FLOAT_KINDS
        if is_float:
            activations: np.ndarray = rng.standard_normal((tokens, columns)).astype(np.float32)
        else:
            activations = rng.integers(-127, 128, (tokens, columns), dtype=np.int8)
        scales = np.ones((tokens, groups), np.float32)
        out, count = np.zeros((tokens, matrix.rows), np.float32), np.array([tokens], np.int64)
        weights = [matrix.data] + [matrix.data.copy() for _ in range(copies - 1)]
        keep += [activations, scales, out, count, weights]
        builder = TapeBuilder(self.threads)
        for data in weights:
            args = {
                GemmArg.NUM_TOKENS: count.ctypes.data,
                GemmArg.WEIGHTS: data.ctypes.data,
                GemmArg.ROWS: matrix.rows,
                GemmArg.GROUPS: groups,
                GemmArg.ACTIVATIONS: activations.ctypes.data,
                GemmArg.ACTIVATION_STRIDE_BYTES: activations.strides[0],
                GemmArg.SCALES: scales.ctypes.data,
                GemmArg.SCALED_SUMS: scales.ctypes.data,
                GemmArg.SCALE_STRIDE_BYTES: scales.strides[0],
                GemmArg.OUT: out.ctypes.data,
                GemmArg.OUT_STRIDE_BYTES: out.strides[0],
                GemmArg.BIAS: 0,
                GemmArg.ACCUMULATE: 0,
                GemmArg.PANEL_BYTES: matrix.panel_bytes,
            }
            builder.add(gemm_address(matrix.kind, self.isa, self.jit), [args[a] for a in GemmArg], items=matrix.num_panels)
        return builder.build()

    def row(self, ggml_type: GGMLQuantizationType, rows: int, columns: int, tokens: int) -> dict[str, Any]:
        block_columns, block_bytes = GGML_QUANT_SIZES[ggml_type]
        matrix = pack(ggml_type, np.zeros((rows, columns // block_columns * block_bytes), np.uint8))
        copies = max(1, WORKING_SET_BYTES // matrix.num_bytes)
        if tokens >= 8:
            copies = max(1, min(copies, int(MACS_PER_RUN / (rows * columns * tokens))))
        keep: list[Any] = []
        tape = self.gemm_tape(matrix, tokens, copies, keep)
        before = self.limits()
        seconds = self.seconds(tape, 0.4)
        limits = Limits(*(max(pair) for pair in zip(before, self.limits(), strict=True)))
        macs_per_s = copies * rows * columns * tokens / seconds
        bytes_per_s = copies * matrix.num_bytes / seconds
        figures = {"type": ggml_type.name, "shape": f"{rows}x{columns}", "tokens": tokens, "copies": copies}
        figures |= {"gmac_per_s": round(macs_per_s / 1e9, 1), "gb_per_s": round(bytes_per_s / 1e9, 2)}
        figures["share_of_read_rate"] = round(bytes_per_s / limits.read_bytes_per_s, 3)
        if ggml_type.name.startswith("Q4"):
            figures["share_of_dot_rate"] = round(macs_per_s / limits.dot_macs_per_s, 3)
        return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--isa", type=Isa, default=None)
    parser.add_argument("--types", default="Q4_0,Q4_1,Q4_K", help="ggml types, or `all`")
    parser.add_argument("--shapes", default=",".join(SHAPES), help="outputs x inputs")
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    options = parser.parse_args()
    names = [t.name for t in PACKINGS] if options.types == "all" else options.types.split(",")
    bench = Bench(choose_isa(options.isa), options.threads)
    limits = bench.limits()
    if not options.json:
        print(f"{machine()['cpu']}, {bench.isa.value}, {bench.threads} threads")
        print(f"read {limits.read_bytes_per_s / 1e9:.1f} GB/s, 4-bit products {limits.dot_macs_per_s / 1e9:.0f} GMAC/s")
    rows = []
    for name in names:
        for shape in options.shapes.split(","):
            outputs, inputs = map(int, shape.split("x"))
            if inputs % GGML_QUANT_SIZES[GGMLQuantizationType[name]][0]:
                continue  # a row is a whole number of blocks
            for tokens in map(int, options.tokens.split(",")):
                rows.append(bench.row(GGMLQuantizationType[name], outputs, inputs, tokens))
                if not options.json:
                    print("  ".join(f"{key} {value}" for key, value in rows[-1].items()))
    figures = {"isa": bench.isa.value, "threads": bench.threads, "limits": limits._asdict(), "rows": rows}
    path = write_result("kernel_rates", figures)
    print(json.dumps(figures, indent=1) if options.json else f"written to {path}")
    bench.team.close()


if __name__ == "__main__":
    main()
