"""The op around a tile: walks panels and tokens, adds bias and residual, stores rows.

A tile is a panel's 16 rows times a few tokens, accumulated over all columns in registers. Each kind of weight and each
instruction set brings its own way to accumulate one (`Tile`); everything else is emitted here once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from llvmlite import ir

from argosy.kernels.gemm.abi import GemmArg
from argosy.kernels.ir import F32, I64, OP_TYPE, PTR, VOID, Emitter, Value, const, vector
from argosy.kernels.packed import PANEL_ROWS
from argosy.kernels.quantize_vectors import GROUP

TOKEN_BLOCK_BYTES = 256 * 1024
"""Activations that all panels of a chunk are multiplied with before the next tokens' turn; they stay in the L2 cache."""

POINTERS = (
    GemmArg.WEIGHTS,
    GemmArg.ACTIVATIONS,
    GemmArg.SCALES,
    GemmArg.SCALED_SUMS,
    GemmArg.OUT,
    GemmArg.BIAS,
    GemmArg.REFINED_OFFSETS,
)
"""Arguments that are addresses of arrays."""

_TILE_TYPE = ir.FunctionType(VOID, (PTR, PTR, PTR, PTR, I64, I64, I64, I64, PTR, I64, PTR, I64, I64))


@dataclass(frozen=True, slots=True)
class TileInputs:
    """What a tile reads; pointers and i64 values in the function being emitted.

    Attributes:
        weights: the panel.
        activations, activation_stride: first token's activations, bytes to the next token's.
        scales, sums, scale_stride: of the first token, and bytes to the next token's.
        groups: number of column groups.
        panel_bytes: of a panel.
    """

    weights: Value
    activations: Value
    scales: Value
    sums: Value
    activation_stride: Value
    scale_stride: Value
    groups: Value
    panel_bytes: Value


class Tile(Protocol):
    """How one kind of weight is multiplied with one instruction set."""

    @property
    def token_counts(self) -> tuple[int, ...]:
        """Tokens a tile may have, descending, ending in 1."""
        ...

    def accumulate(self, e: Emitter, inputs: TileInputs, num_tokens: int) -> list[list[Value]]:
        """Emit the sum over all groups; per token f32 vectors that together hold the 16 rows.

        What is computed for one token must not depend on `num_tokens`.
        """
        ...


def build_module(name: str, tile: Tile) -> str:
    """IR of a module whose function `name` is the op."""
    module = ir.Module(name)
    functions = {n: _emit_tile(module, f"{name}_tile{n}", tile, n) for n in tile.token_counts}
    _emit_op(module, name, tile, functions)
    return str(module)


def _emit_tile(module: ir.Module, name: str, tile: Tile, num_tokens: int) -> ir.Function:
    function = ir.Function(module, _TILE_TYPE, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    e = Emitter(function)
    *inputs, out, out_stride, bias, accumulate, rows = function.args
    sums = tile.accumulate(e, TileInputs(*inputs), num_tokens)
    e.when(
        e.b.icmp_signed(">=", rows, const(I64, PANEL_ROWS)),
        lambda: _store_whole(e, sums, out, out_stride, bias, accumulate),
        lambda: _store_partial(e, sums, out, out_stride, bias, accumulate, rows),
    )
    e.b.ret_void()
    return function


def _store_whole(e: Emitter, sums: list[list[Value]], out: Value, out_stride: Value, bias: Value, accumulate: Value) -> None:
    """bias and what is there already are added one after the other, in this order, as in `_store_partial`."""
    has_bias, adds = _is_set(e, bias), e.b.icmp_signed("!=", accumulate, const(I64, 0))
    for token, parts in enumerate(sums):
        row = e.at(out, e.b.mul(out_stride, const(I64, token)))
        for part, value in enumerate(parts):
            offset = 4 * part * value.type.count
            value = _add_if(e, has_bias, value, e.at(bias, offset))
            value = _add_if(e, adds, value, e.at(row, offset))
            e.store(value, row, offset, align=4)


def _store_partial(
    e: Emitter, sums: list[list[Value]], out: Value, out_stride: Value, bias: Value, accumulate: Value, rows: Value
) -> None:
    scratch = e.scratch(vector(F32, PANEL_ROWS))
    has_bias, adds = _is_set(e, bias), e.b.icmp_signed("!=", accumulate, const(I64, 0))
    for token, parts in enumerate(sums):
        row = e.at(out, e.b.mul(out_stride, const(I64, token)))
        for part, value in enumerate(parts):
            e.store(value, scratch, 4 * part * value.type.count, align=4)

        def store_row(index: Value, _: list[Value], row: Value = row) -> list[Value]:
            offset = e.b.mul(index, const(I64, 4))
            value = e.load(F32, scratch, offset, align=4)
            value = _add_if(e, has_bias, value, e.at(bias, offset))
            value = _add_if(e, adds, value, e.at(row, offset))
            e.store(value, row, offset, align=4)
            return []

        e.loop(const(I64, 0), rows, store_row)


def _is_set(e: Emitter, pointer: Value) -> Value:
    return e.b.icmp_unsigned("!=", e.b.ptrtoint(pointer, I64), const(I64, 0))


def _add_if(e: Emitter, condition: Value, value: Value, address: Value) -> Value:
    """value + *address if `condition`, else value."""
    before = e.b.block
    with e.b.if_then(condition):
        added = e.b.fadd(value, e.load(value.type, address, align=4))
        inside = e.b.block
    result = e.b.phi(value.type)
    result.add_incoming(value, before)
    result.add_incoming(added, inside)
    return result


def _emit_op(module: ir.Module, name: str, tile: Tile, tiles: dict[int, ir.Function]) -> None:
    function = ir.Function(module, OP_TYPE, name)
    e = Emitter(function)
    args, begin, end, _ = function.args
    a = {arg: e.load(I64, args, 8 * arg, align=8) for arg in GemmArg}
    pointers = {arg: e.b.inttoptr(a[arg], PTR) for arg in POINTERS}
    num_tokens = e.load(I64, e.b.inttoptr(a[GemmArg.NUM_TOKENS], PTR), align=8)
    bias_mask = e.b.select(e.b.icmp_signed("!=", a[GemmArg.BIAS], const(I64, 0)), const(I64, -1), const(I64, 0))

    def call_tile(panel: Value, token: Value, count: int) -> None:
        row = e.b.mul(panel, const(I64, PANEL_ROWS))
        row_bytes = e.b.mul(row, const(I64, 4))
        scale_offset = e.b.mul(token, a[GemmArg.SCALE_STRIDE_BYTES])
        weights = e.at(pointers[GemmArg.WEIGHTS], e.b.mul(panel, a[GemmArg.PANEL_BYTES]))
        activations = e.at(pointers[GemmArg.ACTIVATIONS], e.b.mul(token, a[GemmArg.ACTIVATION_STRIDE_BYTES]))
        scales = e.at(pointers[GemmArg.SCALES], scale_offset)
        sums = e.at(pointers[GemmArg.SCALED_SUMS], scale_offset)
        strides = [a[GemmArg.ACTIVATION_STRIDE_BYTES], a[GemmArg.SCALE_STRIDE_BYTES]]
        out = [
            e.at(pointers[GemmArg.OUT], e.b.mul(token, a[GemmArg.OUT_STRIDE_BYTES]), row_bytes),
            a[GemmArg.OUT_STRIDE_BYTES],
        ]
        bias = e.at(pointers[GemmArg.BIAS], e.b.and_(row_bytes, bias_mask))
        rows = e.b.sub(a[GemmArg.ROWS], row)
        rest = [a[GemmArg.GROUPS], a[GemmArg.PANEL_BYTES], *out, bias, a[GemmArg.ACCUMULATE], rows]
        e.b.call(tiles[count], [weights, activations, scales, sums, *strides, *rest])

        def refine(index: Value, _: list[Value]) -> list[Value]:
            group = e.b.add(a[GemmArg.GROUPS], index)
            scale = e.b.mul(group, const(I64, 4))
            operands = [
                e.at(weights, e.load(I64, pointers[GemmArg.REFINED_OFFSETS], e.b.mul(index, const(I64, 8)), align=8)),
                e.at(activations, e.b.mul(group, const(I64, GROUP))),
                e.at(scales, scale),
                e.at(sums, scale),
            ]
            adding = [const(I64, 1), a[GemmArg.PANEL_BYTES], *out, ir.Constant(PTR, None), const(I64, 1), rows]
            e.b.call(tiles[count], [*operands, *strides, *adding])
            return []

        e.loop(const(I64, 0), a[GemmArg.NUM_REFINED], refine)

    block_tokens = _block_tokens(e, a[GemmArg.ACTIVATION_STRIDE_BYTES], tile.token_counts[0])

    def token_block(block: Value, _: list[Value]) -> list[Value]:
        first = e.b.mul(block, block_tokens)
        last = _min(e, e.b.add(first, block_tokens), num_tokens)
        e.loop(begin, end, lambda panel, _: _panel(e, tile.token_counts, panel, first, last, call_tile))
        return []

    blocks = e.b.sdiv(e.b.add(num_tokens, e.b.sub(block_tokens, const(I64, 1))), block_tokens)
    e.loop(const(I64, 0), blocks, token_block)
    e.b.ret_void()


def _panel(
    e: Emitter,
    counts: tuple[int, ...],
    panel: Value,
    first: Value,
    last: Value,
    call_tile: Callable[[Value, Value, int], None],
) -> list[Value]:
    """Tiles of the largest count, then of the smaller ones, over tokens [first, last)."""
    token = first
    for count in counts:
        whole = e.b.sub(last, const(I64, count - 1))

        def body(t: Value, _: list[Value], count: int = count) -> list[Value]:
            call_tile(panel, t, count)
            return [e.b.add(t, const(I64, count))]

        (token,) = e.loop(token, whole, body, carried=[token], step=count)
    return []


def _block_tokens(e: Emitter, token_bytes: Value, multiple: int) -> Value:
    """Tokens whose activations fill `TOKEN_BLOCK_BYTES`, a multiple of the largest tile, at least one tile."""
    fitting = e.b.udiv(const(I64, TOKEN_BLOCK_BYTES // multiple), token_bytes)
    at_least_one = e.b.select(e.b.icmp_unsigned(">", fitting, const(I64, 1)), fitting, const(I64, 1))
    return e.b.mul(at_least_one, const(I64, multiple))


def _min(e: Emitter, x: Value, y: Value) -> Value:
    return e.b.select(e.b.icmp_signed("<", x, y), x, y)
