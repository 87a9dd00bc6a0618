"""The inner loops of attention, on tiles held in registers.

Two products make up attention over a block of `BLOCK_KEYS` keys, for a few query rows at once:

    scores[r][k] = Σ_d q[r][d] · k[k][d]          lanes are keys, so K is transposed first: kt[d][k]
    out[r][d]   += Σ_k p[r][k] · v[k][d]          lanes are elements of the head

Either way a lane is one chain of fused multiply-adds, over ascending d or k, whatever the shape of the tile: bits do not
depend on which rows are computed together. A tile of 6 rows and 2 vectors keeps 12 chains in 12 of 16 registers, and loads
8 operands for 12 products; fewer rows get more vectors, since a chain alone waits 4 cycles for each of its links.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from argosy.kernels.simd import LANES, VECTOR_BYTES, emit_fma, emit_load_bf16, emit_load_f16, emit_pointer, emit_splat

BLOCK_KEYS = 64
"""Keys whose scores are computed, and whose greatest is subtracted, together; blocks begin at multiples of it."""

_ROW_BYTES = 4 * BLOCK_KEYS
_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
_VF = ir.VectorType(_F32, LANES)


def _offset(b: ir.IRBuilder, address: ir.Value, index: ir.Value, stride: int) -> ir.Value:
    return b.add(address, b.mul(index, ir.Constant(_I64, stride)))


def _load(b: ir.IRBuilder, address: ir.Value, offset: int, element: ir.Type = _VF) -> ir.Value:
    return b.load(emit_pointer(b, b.add(address, ir.Constant(_I64, offset))), align=4, typ=element)


def _store(b: ir.IRBuilder, value: ir.Value, address: ir.Value, offset: int) -> None:
    b.store(value, emit_pointer(b, b.add(address, ir.Constant(_I64, offset))), align=4)


def _accumulate(b: ir.IRBuilder, begin: ir.Value, end: ir.Value, sums: list[ir.Value], step: Any) -> list[ir.Value]:
    """`for i in range(begin, end): sums = step(i, sums)`, in registers; at least once."""
    entry, body, after = b.block, b.append_basic_block("body"), b.append_basic_block("after")
    b.branch(body)
    b.position_at_end(body)
    index = b.phi(_I64)
    index.add_incoming(begin, entry)
    carried = [b.phi(_VF) for _ in sums]
    for phi, value in zip(carried, sums, strict=True):
        phi.add_incoming(value, entry)
    results: list[ir.Value] = step(index, carried)
    following = b.add(index, ir.Constant(_I64, 1))
    index.add_incoming(following, b.block)
    for phi, value in zip(carried, results, strict=True):
        phi.add_incoming(value, b.block)
    b.cbranch(b.icmp_signed("<", following, end), body, after)
    b.position_at_end(after)
    return results


def _multiply(b: ir.IRBuilder, columns: list[ir.Value], rows: list[ir.Value], sums: list[ir.Value]) -> list[ir.Value]:
    """sums[r][v] + rows[r] · columns[v]; `rows` are scalars, `sums` lie row by row."""
    results = []
    for r, scalar in enumerate(rows):
        wide = emit_splat(b, scalar)
        for v, column in enumerate(columns):
            results.append(emit_fma(b, wide, column, sums[r * len(columns) + v]))
    return results


def _scores_kernel(rows: int, vectors: int) -> Any:
    """Scores of `rows` query rows and 8 · `vectors` keys."""

    @intrinsic
    def kernel(typing_context: Any, q: Any, q_stride: Any, kt: Any, head_dim: Any, out: Any) -> Any:  # noqa: ARG001
        """`q` f32[rows, head_dim] at a stride in bytes, `kt` f32[head_dim, BLOCK_KEYS], `out` f32[rows, BLOCK_KEYS]."""

        def codegen(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:  # noqa: ARG001
            q, q_stride, kt, head_dim, out = args
            starts = [q]
            for _ in range(rows - 1):
                starts.append(b.add(starts[-1], q_stride))

            def step(d: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
                keys = _offset(b, kt, d, _ROW_BYTES)
                columns = [_load(b, keys, VECTOR_BYTES * v) for v in range(vectors)]
                queries = [_load(b, _offset(b, start, d, 4), 0, _F32) for start in starts]
                return _multiply(b, columns, queries, sums)

            zeros = [ir.Constant(_VF, [0.0] * LANES)] * (rows * vectors)
            sums = _accumulate(b, ir.Constant(_I64, 0), head_dim, zeros, step)
            for i, value in enumerate(sums):
                _store(b, value, out, i // vectors * _ROW_BYTES + i % vectors * VECTOR_BYTES)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 5), codegen

    return kernel


def _values_kernel(rows: int, vectors: int) -> Any:
    """Adds keys' values, weighted, to 8 · `vectors` elements of `rows` outputs."""

    @intrinsic
    def kernel(  # type: ignore[no-untyped-def]
        typing_context: Any,  # noqa: ARG001
        p: Any,  # noqa: ARG001
        v: Any,  # noqa: ARG001
        offset: Any,  # noqa: ARG001
        begin: Any,  # noqa: ARG001
        end: Any,  # noqa: ARG001
        out: Any,  # noqa: ARG001
        out_stride: Any,  # noqa: ARG001
    ):
        """Keys begin..end of the block: `p` f32[rows, BLOCK_KEYS], `v` i64[BLOCK_KEYS] the address of each key's f32 value
        row, read from `offset` bytes on; `out` f32 at a stride in bytes, of which the first 8 · `vectors` change."""

        def codegen(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:  # noqa: ARG001
            p, v, offset, begin, end, out, out_stride = args
            outs = [out]
            for _ in range(rows - 1):
                outs.append(b.add(outs[-1], out_stride))

            def step(k: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
                value_row = b.add(_load(b, _offset(b, v, k, 8), 0, _I64), offset)
                columns = [_load(b, value_row, VECTOR_BYTES * i) for i in range(vectors)]
                weights = _offset(b, p, k, 4)
                return _multiply(b, columns, [_load(b, weights, _ROW_BYTES * r, _F32) for r in range(rows)], sums)

            sums = [_load(b, row, VECTOR_BYTES * i) for row in outs for i in range(vectors)]
            for i, value in enumerate(_accumulate(b, begin, end, sums, step)):
                _store(b, value, outs[i // vectors], i % vectors * VECTOR_BYTES)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 7), codegen

    return kernel


def _transpose(b: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Eight vectors as rows of a matrix, to its columns: exchanges of 1, 2 and then 4 lanes between pairs of vectors."""
    for distance in (1, 2, 4):
        lanes = range(LANES)
        low = [i if not i & distance else i - distance + LANES for i in lanes]
        high = [i + distance if not i & distance else i + LANES for i in lanes]
        masks = [ir.Constant(ir.VectorType(_I32, LANES), mask) for mask in (low, high)]
        swapped = list(rows)
        for i in range(LANES):
            if not i & distance:
                pair = rows[i], rows[i + distance]
                swapped[i], swapped[i + distance] = (b.shuffle_vector(*pair, mask) for mask in masks)
        rows = swapped
    return rows


def _transpose_kernel(load: Any, element_bytes: int) -> Any:
    """Turns eight keys' rows into columns."""

    @intrinsic
    def kernel(typing_context: Any, k: Any, head_dim: Any, out: Any) -> Any:  # noqa: ARG001
        """`k` i64[8] the addresses of eight keys' rows of `head_dim` elements; `out` f32[head_dim, BLOCK_KEYS], of which
        eight columns are written."""

        def codegen(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:  # noqa: ARG001
            k, head_dim, out = args
            starts = [_load(b, k, 8 * i, _I64) for i in range(LANES)]

            def step(i: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
                first = b.mul(i, ir.Constant(_I64, LANES))
                columns = _transpose(b, [load(b, _offset(b, start, first, element_bytes)) for start in starts])
                at = _offset(b, out, first, _ROW_BYTES)
                for d, column in enumerate(columns):
                    _store(b, column, at, d * _ROW_BYTES)
                return sums

            _accumulate(b, ir.Constant(_I64, 0), b.sdiv(head_dim, ir.Constant(_I64, LANES)), [], step)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 3), codegen

    return kernel


def _load_f32(b: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return _load(b, address, 0)


scores_1x8, scores_2x4, scores_3x4, scores_6x2 = (_scores_kernel(*shape) for shape in ((1, 8), (2, 4), (3, 4), (6, 2)))
values_1x8, values_1x4, values_1x2, values_1x1 = (_values_kernel(1, vectors) for vectors in (8, 4, 2, 1))
values_2x4, values_2x2, values_2x1 = (_values_kernel(2, vectors) for vectors in (4, 2, 1))
values_3x4, values_3x2, values_3x1 = (_values_kernel(3, vectors) for vectors in (4, 2, 1))
values_6x2, values_6x1 = (_values_kernel(6, vectors) for vectors in (2, 1))
transpose_f32 = _transpose_kernel(_load_f32, 4)
transpose_bf16 = _transpose_kernel(emit_load_bf16, 2)
transpose_f16 = _transpose_kernel(emit_load_f16, 2)
