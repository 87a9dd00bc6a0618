"""The inner loops of attention, on tiles held in registers.

Two products make up attention over a block of `BLOCK_KEYS` keys, for a few query rows at once:

    scores[r][k] = Σ_d q[r][d] · k[k][d]          lanes are keys, so K is transposed first
    out[r][d]   += Σ_k p[r][k] · v[k][d]          lanes are elements of the head

Either way a lane is one chain of fused multiply-adds, over ascending d or k, whatever the shape of the tile: bits do not
depend on which rows are computed together. A tile of 6 rows and 2 vectors keeps 12 chains in 12 of 16 registers and loads 8
operands for 12 products; fewer rows get more vectors, since a chain alone waits 4 cycles for each of its links.

K is transposed in panels of `PANEL_KEYS` keys, which stay in the first cache while the scores of all rows are computed:
kt[vector][d][8]. Stores to adjacent addresses take half as long as to distant ones.
Keys are found through `offsets`, i64[BLOCK_KEYS]: bytes from the pool's first slot to each key's. Slots of different blocks
lie too far apart for a processor to foresee, and decoding reads each of them once. So the kernels ask for the rows at other
offsets, those of the next block (`ahead`), line by line between their products: as a burst they would wait for each other.
Where there are many rows for a key, arithmetic takes longest, and the kernels of 6 rows have a form that asks for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from argosy.kernels.kv_elements import KVElement
from argosy.kernels.simd import (
    LANES,
    VECTOR_BYTES,
    call,
    constant,
    emit_fma,
    emit_load_bf16,
    emit_load_f16,
    emit_load_f32,
    emit_pointer,
    emit_splat,
)

BLOCK_KEYS = 64
"""Keys whose scores are computed, and whose greatest is subtracted, together; blocks begin at multiples of it."""
PANEL_KEYS = 32

_ROW_BYTES = 4 * BLOCK_KEYS
_I16, _I32, _I64, _F32 = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_VF, _VI = ir.VectorType(_F32, LANES), ir.VectorType(_I32, LANES)

_WIDTHS = {1: (8, 4, 2, 1), 2: (4, 2, 1), 3: (4, 2, 1), 6: (2, 1)}
"""Vectors of a tile of values, by its rows: as many as registers allow, then what is left of a head."""

_LOADERS = {KVElement.F32: emit_load_f32, KVElement.BF16: emit_load_bf16, KVElement.F16: emit_load_f16}
_BYTES = {KVElement.F32: 4, KVElement.BF16: 2, KVElement.F16: 2}


def _word(value: int) -> ir.Constant:
    return ir.Constant(_I64, value)


def _at(b: ir.IRBuilder, address: ir.Value, index: ir.Value, stride: int) -> ir.Value:
    return b.add(address, b.mul(index, _word(stride)))


def _load(b: ir.IRBuilder, address: ir.Value, offset: int, element: ir.Type = _VF) -> ir.Value:
    return b.load(emit_pointer(b, b.add(address, _word(offset))), align=4, typ=element)


def _store(b: ir.IRBuilder, value: ir.Value, address: ir.Value, offset: int) -> None:
    b.store(value, emit_pointer(b, b.add(address, _word(offset))), align=4)


def _strided(b: ir.IRBuilder, first: ir.Value, stride: ir.Value, count: int) -> list[ir.Value]:
    addresses = [first]
    for _ in range(count - 1):
        addresses.append(b.add(addresses[-1], stride))
    return addresses


def _loop(
    b: ir.IRBuilder,
    begin: ir.Value,
    end: ir.Value,
    sums: list[ir.Value],
    step: Callable[[ir.Value, list[ir.Value]], list[ir.Value]],
) -> list[ir.Value]:
    """`for i in range(begin, end): sums = step(i, sums)`, in registers; at least once."""
    entry, body, after = b.block, b.append_basic_block("body"), b.append_basic_block("after")
    b.branch(body)
    b.position_at_end(body)
    index = b.phi(_I64)
    index.add_incoming(begin, entry)
    carried = [b.phi(value.type) for value in sums]
    for phi, value in zip(carried, sums, strict=True):
        phi.add_incoming(value, entry)
    results = step(index, carried)
    following = b.add(index, _word(1))
    index.add_incoming(following, b.block)
    for phi, value in zip(carried, results, strict=True):
        phi.add_incoming(value, b.block)
    b.cbranch(b.icmp_signed("<", following, end), body, after)
    b.position_at_end(after)
    return results


def _by_element(b: ir.IRBuilder, element: ir.Value, emit: Callable[[KVElement], None]) -> None:
    """`emit` once for each element type; the code branches to the one that `element` names."""
    after = b.append_basic_block("after")
    cases = {kind: b.append_basic_block(kind.name) for kind in KVElement}
    switch = b.switch(element, cases[KVElement.F32])
    for kind, block in cases.items():
        if kind is not KVElement.F32:
            switch.add_case(_word(int(kind)), block)
        b.position_at_end(block)
        emit(kind)
        b.branch(after)
    b.position_at_end(after)


def _multiply(
    b: ir.IRBuilder,
    columns: Sequence[Callable[[], ir.Value]],
    rows: Sequence[Callable[[], ir.Value]],
    sums: list[ir.Value],
) -> list[ir.Value]:
    """sums[r][v] + rows[r] · columns[v], with `sums` row by row. Loads the scalars `rows` and vectors `columns`: the fewer
    ones beforehand and the others one at a time, for lack of registers."""
    results = list(sums)

    def add(r: int, v: int, scalar: ir.Value, column: ir.Value) -> None:
        results[r * len(columns) + v] = emit_fma(b, scalar, column, sums[r * len(columns) + v])

    if len(rows) > len(columns):
        held = [load() for load in columns]
        for r, load in enumerate(rows):
            scalar = emit_splat(b, load())
            for v, column in enumerate(held):
                add(r, v, scalar, column)
    else:
        held = [emit_splat(b, load()) for load in rows]
        for v, load in enumerate(columns):
            column = load()
            for r, scalar in enumerate(held):
                add(r, v, scalar, column)
    return results


def _prefetch(b: ir.IRBuilder, address: ir.Value) -> None:
    """Ask for a cache line, into the second cache: the first is full of what is computed with."""
    arguments = [ir.Constant(_I32, value) for value in (0, 2, 1)]
    call(b, "llvm.prefetch.p0", ir.VoidType(), emit_pointer(b, address), *arguments)


class _RowWalk:
    """Goes through the lines of `keys` rows at `base` + `ahead[key]`, 16 elements a step, and asks for each.

    A row of head_dim elements takes head_dim / 16 steps, so head_dim steps reach 16 keys; `lanes` of them go side by side.
    """

    def __init__(
        self, b: ir.IRBuilder, base: ir.Value, ahead: ir.Value, head_dim: ir.Value, step_bytes: ir.Value, lanes: int
    ):
        self._b, self._base, self._step_bytes, self._lanes = b, base, step_bytes, lanes
        self._row_bytes = b.mul(step_bytes, b.udiv(b.add(head_dim, _word(15)), _word(16)))
        self.start = [ahead, _word(0)]

    def step(self, state: list[ir.Value]) -> list[ir.Value]:
        """Ask for what `state` (address of an offset, bytes into the row) names; returns the next one."""
        b, (place, into) = self._b, state
        for lane in range(self._lanes):
            row = b.add(_load(b, place, 8 * 16 * lane, _I64), self._base)
            _prefetch(b, b.add(row, into))
        further = b.add(into, self._step_bytes)
        is_done = b.icmp_unsigned(">=", further, self._row_bytes)
        return [b.select(is_done, b.add(place, _word(8)), place), b.select(is_done, _word(0), further)]


def _scores_kernel(rows: int, vectors: int, *, fetches: bool) -> Any:
    """Scores of `rows` query rows and 8 · `vectors` keys; `fetches` tells whether it asks for the next block."""

    @intrinsic
    def kernel(  # type: ignore[no-untyped-def]
        typing_context: Any,  # noqa: ARG001
        q: Any,  # noqa: ARG001
        kt: Any,  # noqa: ARG001
        head_dim: Any,  # noqa: ARG001
        out: Any,  # noqa: ARG001
        k: Any,  # noqa: ARG001
        ahead: Any,  # noqa: ARG001
        step_bytes: Any,  # noqa: ARG001
    ):
        """`q` f32[rows, head_dim], `kt` f32[vectors, head_dim, 8], `out` f32[rows, BLOCK_KEYS]. Asks for as many rows of
        keys at `k` + the offsets at `ahead`; `step_bytes` is what 16 elements of them take."""

        def codegen(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:  # noqa: ARG001
            q, kt, head_dim, out, k, ahead, step_bytes = args
            queries = _strided(b, q, b.mul(head_dim, _word(4)), rows)
            keys = _strided(b, kt, b.mul(head_dim, _word(VECTOR_BYTES)), vectors)
            walk = _RowWalk(b, k, ahead, head_dim, step_bytes, vectors // 2 if fetches else 0)

            def step(d: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
                columns = [lambda start=start: _load(b, _at(b, start, d, VECTOR_BYTES), 0) for start in keys]
                scalars = [lambda start=start: _load(b, _at(b, start, d, 4), 0, _F32) for start in queries]
                return [*walk.step(carried[:2]), *_multiply(b, columns, scalars, carried[2:])]

            sums = _loop(b, _word(0), head_dim, [*walk.start, *[constant(0.0)] * (rows * vectors)], step)[2:]
            for i, value in enumerate(sums):
                _store(b, value, out, i // vectors * _ROW_BYTES + i % vectors * VECTOR_BYTES)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 7), codegen

    return kernel


def _emit_values(b: ir.IRBuilder, rows: int, kind: KVElement, args: Sequence[ir.Value], fetches: bool) -> None:
    """The kernel below for one element type: tiles of the greatest width for as long as they fit, then of the next."""
    p, offsets, v, begin, end, out, head_dim, ahead = args
    outs = _strided(b, out, b.mul(head_dim, _word(4)), rows)
    entry, d = b.block, _word(0)
    for vectors in _WIDTHS[rows]:
        head, body, after = (b.append_basic_block(name) for name in ("head", "tile", "after"))
        b.branch(head)
        b.position_at_end(head)
        first = b.phi(_I64)
        first.add_incoming(d, entry)
        b.cbranch(b.icmp_signed("<=", b.add(first, _word(LANES * vectors)), head_dim), body, after)
        b.position_at_end(body)
        operands = (p, offsets, _at(b, v, first, _BYTES[kind]), begin, end, ahead if fetches else None)
        _emit_values_tile(b, vectors, kind, operands, outs, first)
        first.add_incoming(b.add(first, _word(LANES * vectors)), b.block)
        b.branch(head)
        b.position_at_end(after)
        entry, d = after, first


def _emit_values_tile(
    b: ir.IRBuilder, vectors: int, kind: KVElement, args: Sequence[Any], outs: Sequence[ir.Value], first: ir.Value
) -> None:
    p, offsets, v, begin, end, ahead = args

    def step(k: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        row = b.add(_load(b, _at(b, offsets, k, 8), 0, _I64), v)
        if ahead is not None:
            next_row = b.add(_load(b, _at(b, ahead, k, 8), 0, _I64), v)
            for line in range(0, _BYTES[kind] * LANES * vectors, 64):
                _prefetch(b, b.add(next_row, _word(line)))
        weights = _at(b, p, k, 4)
        columns = [lambda i=i: _LOADERS[kind](b, b.add(row, _word(_BYTES[kind] * LANES * i))) for i in range(vectors)]
        scalars = [lambda r=r: _load(b, weights, _ROW_BYTES * r, _F32) for r in range(len(outs))]
        return _multiply(b, columns, scalars, sums)

    at = [_at(b, out, first, 4) for out in outs]
    sums = [_load(b, address, VECTOR_BYTES * i) for address in at for i in range(vectors)]
    for i, value in enumerate(_loop(b, begin, end, sums, step)):
        _store(b, value, at[i // vectors], i % vectors * VECTOR_BYTES)


def _values_kernel(rows: int, *, fetches: bool) -> Any:
    """Adds keys' values, weighted, to `rows` outputs; `fetches` tells whether it asks for the next block."""

    @intrinsic
    def kernel(  # type: ignore[no-untyped-def]
        typing_context: Any,  # noqa: ARG001
        p: Any,  # noqa: ARG001
        offsets: Any,  # noqa: ARG001
        v: Any,  # noqa: ARG001
        begin: Any,  # noqa: ARG001
        end: Any,  # noqa: ARG001
        out: Any,  # noqa: ARG001
        head_dim: Any,  # noqa: ARG001
        ahead: Any,  # noqa: ARG001
        element: Any,  # noqa: ARG001
    ):
        """Keys begin..end of the block, at least one: `p` f32[rows, BLOCK_KEYS]; a key's values are `head_dim` elements at
        `v` + its offset; `out` f32[rows, head_dim] changes. Asks for as many values at `v` + the offsets at `ahead`."""

        def codegen(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:  # noqa: ARG001
            _by_element(b, args[8], lambda kind: _emit_values(b, rows, kind, args[:8], fetches))
            return context.get_dummy_value()

        return types.void(*[types.intp] * 9), codegen

    return kernel


def _transpose(b: ir.IRBuilder, left: list[ir.Value], right: list[ir.Value]) -> list[ir.Value]:
    """Columns of a matrix of eight rows, given as rows i and i + 4 side by side: their elements 0–3 in `left[i]` and 4–7
    in `right[i]`. Exchanges within halves of a vector are the cheapest."""

    def mix(x: ir.Value, y: ir.Value, lanes: Sequence[int]) -> ir.Value:
        both = [*lanes, *(lane + 4 for lane in lanes)]
        return b.shuffle_vector(x, y, ir.Constant(ir.VectorType(_I32, LANES), both))

    columns = []
    for r0, r1, r2, r3 in (left, right):
        low01, high01, low23, high23 = (
            mix(x, y, lanes) for x, y in ((r0, r1), (r2, r3)) for lanes in ((0, 8, 1, 9), (2, 10, 3, 11))
        )
        for first, second in ((low01, low23), (high01, high23)):
            columns += [mix(first, second, (0, 1, 8, 9)), mix(first, second, (2, 3, 10, 11))]
    return columns


def _halves(b: ir.IRBuilder, starts: list[ir.Value], offset: int, element: ir.Type) -> list[ir.Value]:
    """Four elements each of rows i and i + 4, `offset` bytes from their starts, side by side."""
    half = ir.VectorType(element, 4)
    lanes = ir.Constant(ir.VectorType(_I32, LANES), list(range(LANES)))
    quarters = [_load(b, start, offset, half) for start in starts]
    return [b.shuffle_vector(quarters[i], quarters[i + 4], lanes) for i in range(4)]


def _columns_f32(b: ir.IRBuilder, starts: list[ir.Value]) -> list[ir.Value]:
    """Eight elements of eight rows, as columns."""
    return _transpose(b, _halves(b, starts, 0, _F32), _halves(b, starts, 16, _F32))


def _columns_bf16(b: ir.IRBuilder, starts: list[ir.Value]) -> list[ir.Value]:
    """Pairs of elements are transposed as one, and then taken apart: a bfloat16 is the upper half of an f32."""
    left = _halves(b, starts, 0, _I32)
    blank = ir.Constant(_VI, ir.Undefined)
    columns = []
    for pair in _transpose(b, left, [blank] * 4)[:4]:
        even, odd = b.shl(pair, constant(16, _VI)), b.and_(pair, constant(0xFFFF0000, _VI))
        columns += [b.bitcast(even, _VF), b.bitcast(odd, _VF)]
    return columns


def _columns_f16(b: ir.IRBuilder, starts: list[ir.Value]) -> list[ir.Value]:
    def widened(offset: int) -> list[ir.Value]:
        return [b.fpext(half, _VF) for half in _halves(b, starts, offset, ir.HalfType())]

    return _transpose(b, widened(0), widened(8))


_COLUMNS = {KVElement.F32: _columns_f32, KVElement.BF16: _columns_bf16, KVElement.F16: _columns_f16}


@intrinsic
def transpose_keys(typing_context: Any, offsets: Any, k: Any, head_dim: Any, out: Any, element: Any) -> Any:  # noqa: ARG001
    """Turn eight keys' rows into columns, `out` f32[head_dim, 8]; a key is `head_dim` elements at `k` + its offset."""

    def codegen(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:  # noqa: ARG001
        offsets, k, head_dim, out, element = args
        rows = [b.add(_load(b, offsets, 8 * i, _I64), k) for i in range(LANES)]

        def emit(kind: KVElement) -> None:
            def step(i: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
                starts = [_at(b, row, i, LANES * _BYTES[kind]) for row in rows]
                target = _at(b, out, i, LANES * VECTOR_BYTES)
                for d, column in enumerate(_COLUMNS[kind](b, starts)):
                    _store(b, column, target, d * VECTOR_BYTES)
                return sums

            _loop(b, _word(0), b.sdiv(head_dim, _word(LANES)), [], step)

        _by_element(b, element, emit)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 5), codegen


scores_1x4, scores_2x4, scores_3x4, scores_6x2_fetching = (
    _scores_kernel(*shape, fetches=True) for shape in ((1, 4), (2, 4), (3, 4), (6, 2))
)
values_1, values_2, values_3, values_6_fetching = (_values_kernel(rows, fetches=True) for rows in _WIDTHS)
scores_6x2, values_6 = _scores_kernel(6, 2, fetches=False), _values_kernel(6, fetches=False)
