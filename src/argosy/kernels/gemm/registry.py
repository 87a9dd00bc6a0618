"""Which tile multiplies which kind of weight with which instruction set, and the addresses of the compiled ops."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from argosy.errors import UnsupportedModel
from argosy.kernels.features import Isa
from argosy.kernels.gemm.op import Tile, build_module
from argosy.kernels.gemm.q4 import PlainScales, Q4Scales, Q4Tile, SuperGroupScales
from argosy.kernels.gemm.q8 import Q8Tile
from argosy.kernels.jit import JitCompiler
from argosy.kernels.packed import WeightKind

_Q4_SCALES: Mapping[WeightKind, Q4Scales] = MappingProxyType(
    {
        WeightKind.Q4_0: PlainScales(has_minimum=False),
        WeightKind.Q4_1: PlainScales(has_minimum=True),
        WeightKind.Q4_K: SuperGroupScales(),
    }
)
TILES: Mapping[tuple[WeightKind, Isa], Tile] = MappingProxyType(
    {
        **{(kind, isa): Q4Tile(isa, scales) for kind, scales in _Q4_SCALES.items() for isa in Isa},
        **{(WeightKind.Q8_0, isa): Q8Tile(isa) for isa in Isa},
    }
)


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
