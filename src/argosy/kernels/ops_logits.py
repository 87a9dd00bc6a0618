"""Ops of a tape: what is done to logits on the way to greedy tokens.

A row is cut into chunks so that several threads can share it; a second op puts the chunks together. NaN counts as the
greatest value, so that the greatest value tells whether a row is sound.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import cfunc, njit

from argosy.kernels.pointers import OP_SIGNATURE, bits_float, load_f32, load_i64, store_f32, store_i64
from argosy.kernels.simd import LANES, any_at_least, load, load_up_to, maximum, maximum_lane, splat, store_up_to
from argosy.kernels.simd_math import softcap

CHUNK_COLUMNS = 4096
"""Logits of a chunk: the first cache holds them for a second look."""

FOUND_WORDS = 2
"""Words that a chunk leaves: the greatest value (f32), and where it is (i64)."""


class ArgMaxArgs(NamedTuple):
    """Args of `chunk_arg_max_op`, whose items are chunks row by row, `num_chunks(vocab)` each, and of `arg_max_op`, whose
    items are rows.

    Attributes:
        logits: address of f32[rows, vocab]; changed if there is a soft cap.
        vocab: width of a row.
        softcap: x becomes cap · tanh(x / cap), or 0 for none.
        found: address of i64[rows, chunks, FOUND_WORDS], scratch between the two.
        token_ids: address of i64[rows]: where each row's greatest logit is first.
        greatest: address of f32[rows]: its value.
    """

    logits: int
    vocab: int
    softcap: float
    found: int
    token_ids: int
    greatest: int


def num_chunks(vocab: int) -> int:
    """Chunks of a row."""
    return -(-vocab // CHUNK_COLUMNS)


@njit(nogil=True, cache=True)
def greatest_of(x: int, count: int) -> Any:
    """The greatest of the `count` floats at address `x`; NaN if there is one."""
    lowest = splat(np.float32(-np.inf))
    a, b = lowest, lowest
    paired = count // (2 * LANES) * (2 * LANES)
    for i in range(0, paired, 2 * LANES):
        a = maximum(a, load_up_to(x + 4 * i, LANES))
        b = maximum(b, load_up_to(x + 4 * (i + LANES), LANES))
    result = maximum_lane(maximum(a, b))
    for i in range(paired, count):
        value = load_f32(x + 4 * i)
        if value > result or value != value:
            result = value
    return result


@njit(nogil=True, cache=True)
def first_of(x: int, count: int, greatest: Any) -> int:
    """Where `greatest_of` these `count` floats at `x` is first."""
    begin = 0
    while begin + LANES <= count and not any_at_least(load(x + 4 * begin), splat(greatest)) and greatest == greatest:
        begin += LANES
    for i in range(begin, count):
        value = load_f32(x + 4 * i)
        if value == greatest or (value != value and greatest != greatest):
            return i
    return count


@njit(nogil=True, cache=True)
def cap_logits(x: int, count: int, cap: Any) -> None:
    """x ← cap · tanh(x / cap), in place."""
    caps = splat(cap)
    for i in range(0, count, LANES):
        store_up_to(x + 4 * i, softcap(load_up_to(x + 4 * i, count - i), caps), count - i)


@cfunc(OP_SIGNATURE, cache=True)
def chunk_arg_max_op(args: Any, begin: int, end: int, thread: int) -> None:  # noqa: ARG001
    """Chunks begin..end; args: `ArgMaxArgs`."""
    vocab, cap = args[1], bits_float(args[2])
    chunks = (vocab + CHUNK_COLUMNS - 1) // CHUNK_COLUMNS
    for item in range(begin, end):
        row, first = item // chunks, item % chunks * CHUNK_COLUMNS
        count = min(CHUNK_COLUMNS, vocab - first)
        x = args[0] + 4 * (row * vocab + first)
        if cap > 0:
            cap_logits(x, count, cap)
        value = greatest_of(x, count)
        store_f32(args[3] + 8 * FOUND_WORDS * item, value)
        store_i64(args[3] + 8 * FOUND_WORDS * item + 8, first + first_of(x, count, value))


@cfunc(OP_SIGNATURE, cache=True)
def arg_max_op(args: Any, begin: int, end: int, thread: int) -> None:  # noqa: ARG001
    """Rows begin..end, from what their chunks left; args: `ArgMaxArgs`."""
    chunks = (args[1] + CHUNK_COLUMNS - 1) // CHUNK_COLUMNS
    for row in range(begin, end):
        at = args[3] + 8 * FOUND_WORDS * row * chunks
        best, token = load_f32(at), load_i64(at + 8)
        for chunk in range(1, chunks):
            value = load_f32(at + 8 * FOUND_WORDS * chunk)
            if value > best or (value != value and best == best):
                best, token = value, load_i64(at + 8 * FOUND_WORDS * chunk + 8)
        store_i64(args[4] + 8 * row, token)
        store_f32(args[5] + 4 * row, best)
