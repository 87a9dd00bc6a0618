"""What the kernels reach on this machine: memory reading and products, with as many threads as compute.

Every figure is the best of a few rounds: other work on the machine can only slow a round down.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numba import cfunc, njit

from argosy.kernels.features import Isa
from argosy.kernels.gemm.abi import GemmArg
from argosy.kernels.gemm.registry import gemm_address
from argosy.kernels.jit import JitCompiler
from argosy.kernels.pack_ggml import PACKINGS, pack
from argosy.kernels.packed import PANEL_ROWS, WeightKind, aligned_empty
from argosy.kernels.pointers import OP_SIGNATURE
from argosy.kernels.quantize_activations import padded_columns
from argosy.kernels.quantize_vectors import GROUP
from argosy.kernels.simd import LANES, load, splat, store
from argosy.kernels.tape import Arg, PerThread, Tape, TapeBuilder, op_address
from argosy.kernels.team import Team

WORKING_SET_BYTES = 256 * 2**20
"""More than the caches of the processors this runs on."""

_ROUNDS = 5
_READ_CHUNK_BYTES = 64 * 1024
_BYTE = 0x11
"""Fills weights: as scales these bytes are ordinary numbers in every floating-point type."""


@dataclass(frozen=True, slots=True)
class ProductRate:
    """One kind of weight times so many tokens. `weight_bytes` are those of the packed weights read once."""

    kind: WeightKind
    tokens: int
    seconds: float
    weight_bytes: int
    multiply_adds: int

    @property
    def bytes_per_s(self) -> float:
        """Weights read."""
        return self.weight_bytes / self.seconds

    @property
    def multiply_adds_per_s(self) -> float:
        """Products computed."""
        return self.multiply_adds / self.seconds


@njit(nogil=True, cache=True)
def _sum_block(address: int, count: int, out: int) -> None:
    """The sum of `count` floats, a multiple of 32, to `out` f32[LANES]."""
    a, b, c, d = splat(np.float32(0.0)), splat(np.float32(0.0)), splat(np.float32(0.0)), splat(np.float32(0.0))
    for i in range(0, 4 * count, 16 * LANES):
        p = address + i
        a, b = a + load(p), b + load(p + 4 * LANES)
        c, d = c + load(p + 8 * LANES), d + load(p + 12 * LANES)
    store(out, (a + b) + (c + d))


@cfunc(OP_SIGNATURE, cache=True)
def read_op(args: Any, begin: int, end: int, thread: int) -> None:  # noqa: ARG001
    """Read chunks begin..end of `args[1]` bytes each from address `args[0]`; the thread's f32[LANES] at `args[2]`."""
    for item in range(begin, end):
        _sum_block(args[0] + item * args[1], args[1] // 4, args[2])


def measure_reading(team: Team, working_set_bytes: int = WORKING_SET_BYTES) -> float:
    """Bytes that the team reads from memory in a second."""
    data = aligned_empty((working_set_bytes // 4,), np.float32)
    data[...] = 1.0
    sums = aligned_empty((team.num_threads, 2 * LANES), np.float32)
    builder = TapeBuilder(team.num_threads)
    args: list[Arg] = [data.ctypes.data, _READ_CHUNK_BYTES, PerThread(sums.ctypes.data, sums.strides[0])]
    builder.add(op_address(read_op), args, items=working_set_bytes // _READ_CHUNK_BYTES, chunk=4)
    return working_set_bytes / _best_s(team, builder.build())


def measure_product(
    stored_type: GGMLQuantizationType,
    columns: int,
    tokens: int,
    *,
    team: Team,
    isa: Isa,
    jit: JitCompiler,
    working_set_bytes: int = WORKING_SET_BYTES,
) -> ProductRate:
    """Multiply weights of `stored_type`, as many rows of `columns` as fill the working set, with `tokens` tokens.

    Raises:
        UnsupportedModel: there is no kernel for them.
    """
    block_columns, block_bytes = GGML_QUANT_SIZES[stored_type]
    columns = -(-columns // block_columns) * block_columns
    panel = pack(stored_type, np.zeros((PANEL_ROWS, columns // block_columns * block_bytes), np.uint8))
    num_panels = max(1, working_set_bytes // panel.panel_bytes)
    weights = aligned_empty((num_panels, panel.panel_bytes), np.uint8)
    weights[...] = _BYTE
    rows, padded = num_panels * PANEL_ROWS, padded_columns(columns)
    activations = aligned_empty((tokens, 4 * padded), np.uint8)
    activations[...] = 1
    scales = np.full((tokens, padded // GROUP), 0.01, np.float32)
    out = np.zeros((tokens, rows), np.float32)
    count = np.array([tokens], np.int64)
    args = dict.fromkeys(GemmArg, 0) | {
        GemmArg.NUM_TOKENS: count.ctypes.data,
        GemmArg.WEIGHTS: weights.ctypes.data,
        GemmArg.ROWS: rows,
        GemmArg.PANEL_BYTES: panel.panel_bytes,
        GemmArg.GROUPS: padded // GROUP,
        GemmArg.ACTIVATIONS: activations.ctypes.data,
        GemmArg.ACTIVATION_STRIDE_BYTES: activations.strides[0],
        GemmArg.SCALES: scales.ctypes.data,
        GemmArg.SCALED_SUMS: scales.ctypes.data,
        GemmArg.SCALE_STRIDE_BYTES: scales.strides[0],
        GemmArg.OUT: out.ctypes.data,
        GemmArg.OUT_STRIDE_BYTES: out.strides[0],
    }
    builder = TapeBuilder(team.num_threads)
    builder.add(gemm_address(panel.kind, isa, jit), [args[arg] for arg in GemmArg], items=num_panels, chunk=2)
    seconds = _best_s(team, builder.build())
    return ProductRate(panel.kind, tokens, seconds, weights.nbytes, rows * columns * tokens)


def kind_of(stored_type: GGMLQuantizationType) -> WeightKind | None:
    """The kind that weights of `stored_type` are packed to, or None if they are not."""
    packing = PACKINGS.get(stored_type)
    return None if packing is None else packing.kind


def _best_s(team: Team, tape: Tape) -> float:
    team.run(tape)
    return min(_timed_s(team, tape) for _ in range(_ROUNDS))


def _timed_s(team: Team, tape: Tape) -> float:
    started_s = time.perf_counter()
    team.run(tape)
    return time.perf_counter() - started_s
