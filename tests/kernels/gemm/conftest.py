from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from argosy.kernels.features import Isa, runnable_isas
from argosy.kernels.gemm.abi import GemmArg
from argosy.kernels.gemm.registry import gemm_module
from argosy.kernels.jit import JitCompiler
from argosy.kernels.packed import PackedMatrix, WeightKind

_OP = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)

_EMULATED_VPDPBUSD = """
define internal <16 x i32> @emulated_vpdpbusd(<16 x i32> %total, <16 x i32> %unsigned, <16 x i32> %signed) noinline {
  %u = bitcast <16 x i32> %unsigned to <64 x i8>
  %s = bitcast <16 x i32> %signed to <64 x i8>
  %uw = zext <64 x i8> %u to <64 x i32>
  %sw = sext <64 x i8> %s to <64 x i32>
  %p = mul <64 x i32> %uw, %sw
  FOLD
  ret <16 x i32> %t3
}
"""
_DECLARED_VPDPBUSD = (
    'declare <16 x i32> @"llvm.x86.avx512.vpdpbusd.512"(<16 x i32> %".1", <16 x i32> %".2", <16 x i32> %".3")'
)


def emulate_vnni(module: str) -> str:
    """The module with `vpdpbusd` written out in plain IR, so that any processor can run it."""
    if "vpdpbusd" not in module:  # a kind of floating-point weights
        return module
    assert _DECLARED_VPDPBUSD in module
    fold = []
    for column in range(4):
        lanes = ", ".join(f"i32 {4 * row + column}" for row in range(16))
        fold.append(f"%c{column} = shufflevector <64 x i32> %p, <64 x i32> poison, <16 x i32> <{lanes}>")
        before = "%total" if column == 0 else f"%t{column - 1}"
        fold.append(f"%t{column} = add <16 x i32> {before}, %c{column}")
    emulation = _EMULATED_VPDPBUSD.replace("FOLD", "\n  ".join(fold))
    return module.replace(_DECLARED_VPDPBUSD, emulation).replace("llvm.x86.avx512.vpdpbusd.512", "emulated_vpdpbusd")


@dataclass(frozen=True)
class Activations:
    """s8 [T, K], and per group of 32 their scale and scale times sum, f32 [T, K / 32]."""

    q: NDArray[np.int8]
    scales: NDArray[np.float32]
    scaled_sums: NDArray[np.float32]

    @classmethod
    def of(cls, q: NDArray[np.int8], scales: NDArray[np.float32]) -> Activations:
        sums = q.reshape(*scales.shape, 32).sum(axis=2, dtype=np.int32)
        return cls(q, scales, scales * sums.astype(np.float32))

    @classmethod
    def random(cls, rng: np.random.Generator, tokens: int, columns: int) -> Activations:
        q = rng.integers(-127, 128, (tokens, columns), dtype=np.int8)
        return cls.of(q, rng.uniform(0.5, 2.0, (tokens, columns // 32)).astype(np.float32))

    def only(self, token: int) -> Activations:
        return self._part(slice(token, token + 1))

    def first(self, tokens: int) -> Activations:
        return self._part(slice(tokens))

    def _part(self, part: slice) -> Activations:
        return Activations(*(np.ascontiguousarray(a[part]) for a in (self.q, self.scales, self.scaled_sums)))

    def values(self) -> NDArray[np.float64]:
        groups = self.q.reshape(len(self.q), -1, 32) * self.scales[..., None].astype(np.float64)
        return groups.reshape(self.q.shape)


class Gemm:
    """Runs the op of one matrix kind and instruction set on numpy arrays."""

    def __init__(self, jit: JitCompiler, isa: Isa) -> None:
        self._jit, self._isa = jit, isa
        self._functions: dict[WeightKind, Any] = {}

    def __call__(
        self,
        matrix: PackedMatrix,
        activations: Activations,
        *,
        out: NDArray[np.float32] | None = None,
        accumulate: bool = False,
        cuts: tuple[int, ...] = (),
        refined: tuple[int, ...] = (),
    ) -> NDArray[np.float32]:
        """`out` [T, at least rows], made if None; items are done in the chunks between `cuts`. The last groups of the
        activations are the remainders of the `refined` ones."""
        groups = -(-matrix.columns // 32)
        offsets = np.array([group * matrix.panel_bytes // groups for group in refined], np.int64)
        operands = {
            GemmArg.NUM_REFINED: len(refined),
            GemmArg.REFINED_OFFSETS: offsets.ctypes.data,
            GemmArg.ACTIVATIONS: activations.q.ctypes.data,
            GemmArg.ACTIVATION_STRIDE_BYTES: activations.q.shape[1],
            GemmArg.SCALES: activations.scales.ctypes.data,
            GemmArg.SCALED_SUMS: activations.scaled_sums.ctypes.data,
            GemmArg.SCALE_STRIDE_BYTES: 4 * activations.scales.shape[1],
        }
        if out is None:
            out = np.full((len(activations.q), matrix.rows), np.nan, np.float32)
        return self._run(matrix, operands, len(activations.q), out, accumulate, cuts)

    def floats(self, matrix: PackedMatrix, x: NDArray[np.float32], *, cuts: tuple[int, ...] = ()) -> NDArray[np.float32]:
        """As a call, of floating-point weights with activations `x`, f32 [T, columns]."""
        operands = {GemmArg.ACTIVATIONS: x.ctypes.data, GemmArg.ACTIVATION_STRIDE_BYTES: 4 * x.shape[1]}
        return self._run(matrix, operands, len(x), np.full((len(x), matrix.rows), np.nan, np.float32), False, cuts)

    def _run(
        self,
        matrix: PackedMatrix,
        operands: dict[GemmArg, int],
        num_tokens: int,
        out: NDArray[np.float32],
        accumulate: bool,
        cuts: tuple[int, ...],
    ) -> NDArray[np.float32]:
        tokens = np.array([num_tokens], np.int64)
        args = dict.fromkeys(GemmArg, 0) | operands
        args |= {
            GemmArg.NUM_TOKENS: tokens.ctypes.data,
            GemmArg.WEIGHTS: matrix.data.ctypes.data,
            GemmArg.ROWS: matrix.rows,
            GemmArg.GROUPS: -(-matrix.columns // 32),
            GemmArg.OUT: out.ctypes.data,
            GemmArg.OUT_STRIDE_BYTES: out.strides[0],
            GemmArg.BIAS: 0 if matrix.bias is None else matrix.bias.ctypes.data,
            GemmArg.ACCUMULATE: int(accumulate),
            GemmArg.PANEL_BYTES: matrix.panel_bytes,
        }
        words = np.array([args[arg] for arg in GemmArg], np.int64)
        function = self._function(matrix.kind)
        bounds = (0, *cuts, matrix.num_panels)
        for begin, end in itertools.pairwise(bounds):
            function(words.ctypes.data, begin, end, 0)
        return out

    def _function(self, kind: WeightKind) -> Any:
        if kind not in self._functions:
            module, name = gemm_module(kind, self._isa)
            if self._isa is Isa.AVX512_VNNI and self._isa not in runnable_isas():
                module = emulate_vnni(module)
            self._functions[kind] = _OP(self._jit.address(module, name))
        return self._functions[kind]


@pytest.fixture(scope="session")
def jit(tmp_path_factory: pytest.TempPathFactory) -> JitCompiler:
    return JitCompiler(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="session", params=list(Isa), ids=lambda isa: isa.value)
def gemm(request: pytest.FixtureRequest, jit: JitCompiler) -> Gemm:
    """The op with each instruction set this processor has, and with VNNI's instruction emulated where it has not."""
    isa = request.param
    if isa is not Isa.AVX512_VNNI and isa not in runnable_isas():
        pytest.skip(f"this processor has no {isa.value}")
    return Gemm(jit, isa)


@pytest.fixture(scope="session")
def random_activations() -> Callable[[Any, int, int], Activations]:
    """random_activations(rng, tokens, columns)."""
    return Activations.random


@pytest.fixture(scope="session")
def make_activations() -> Callable[[Any, Any], Activations]:
    """make_activations(q, scales)."""
    return Activations.of
