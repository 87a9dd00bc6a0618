"""Which tile multiplies which kind of weight with which instruction set, and the addresses of the compiled ops."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from argosy.errors import UnsupportedModel
from argosy.kernels.features import Isa
from argosy.kernels.gemm.floats import FloatTile
from argosy.kernels.gemm.int8 import Int8Tile
from argosy.kernels.gemm.op import Tile, build_module
from argosy.kernels.gemm.q2 import Q2Tile
from argosy.kernels.gemm.q4 import NibbleQuants, PlainScales, Quants, Scales, SuperGroupScales, UnsignedTile
from argosy.kernels.gemm.q5 import FiveBitQuants
from argosy.kernels.gemm.q6 import Q6Tile
from argosy.kernels.gemm.q8 import Q8Tile
from argosy.kernels.jit import JitCompiler
from argosy.kernels.packed import WeightKind

_UNSIGNED: Mapping[WeightKind, tuple[Scales, Quants]] = MappingProxyType(
    {
        WeightKind.Q4_0: (PlainScales(has_minimum=False, offset=8.0), NibbleQuants()),
        WeightKind.Q4_1: (PlainScales(has_minimum=True), NibbleQuants()),
        WeightKind.Q4_K: (SuperGroupScales(), NibbleQuants()),
        WeightKind.Q5_0: (PlainScales(has_minimum=False, offset=16.0), FiveBitQuants()),
        WeightKind.Q5_1: (PlainScales(has_minimum=True), FiveBitQuants()),
        WeightKind.Q5_K: (SuperGroupScales(), FiveBitQuants()),
    }
)


def _tiles(isa: Isa) -> dict[WeightKind, Tile]:
    return {
        **{kind: UnsignedTile(isa, scales, quants) for kind, (scales, quants) in _UNSIGNED.items()},
        WeightKind.Q2_K: Q2Tile(isa),
        WeightKind.Q3_K: Q6Tile(isa, high_bits=False, offset=4),
        WeightKind.Q6_K: Q6Tile(isa, high_bits=True, offset=32),
        WeightKind.Q8_0: Q8Tile(isa),
        WeightKind.INT8: Int8Tile(isa),
        **{kind: FloatTile(isa, kind) for kind in (WeightKind.BF16, WeightKind.F16, WeightKind.F32)},
    }


TILES: Mapping[tuple[WeightKind, Isa], Tile] = MappingProxyType(
    {(kind, isa): tile for isa in Isa for kind, tile in _tiles(isa).items()}
)
"""Every product there is a kernel for."""


def gemm_module(kind: WeightKind, isa: Isa) -> tuple[str, str]:
    """IR of the op and the name of its function.

    Raises:
        UnsupportedModel: no kernel multiplies this kind with this instruction set.
    """
    tile = TILES.get((kind, isa))
    if tile is None:
        raise UnsupportedModel(f"no {isa.value} kernel multiplies weights of kind {kind.value}")
    name = f"gemm_{kind.value}_{isa.value}"
    return build_module(name, tile), name


def gemm_address(kind: WeightKind, isa: Isa, jit: JitCompiler) -> int:
    """The address of the op, `void op(int64 *args, int64 begin, int64 end, int64 thread)`; arguments: `GemmArg`.

    Raises:
        UnsupportedModel: no kernel multiplies this kind with this instruction set.
    """
    return jit.address(*gemm_module(kind, isa))
