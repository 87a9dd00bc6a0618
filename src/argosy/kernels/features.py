"""Which instruction sets there are kernels for, and which of them this processor has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

import llvmlite.binding as llvm

from argosy.errors import ConfigError


class Isa(StrEnum):
    """The instructions a kernel is written in.

    GENERIC uses LLVM's vector types only and compiles for any target; the others call instructions by name.
    """

    GENERIC = "generic"
    AVX2 = "avx2"
    AVX512_VNNI = "avx512_vnni"


_AVX2 = frozenset({"avx2", "fma", "f16c"})
REQUIRED_FEATURES: Mapping[Isa, frozenset[str]] = MappingProxyType(
    {
        Isa.GENERIC: frozenset(),
        Isa.AVX2: _AVX2,
        Isa.AVX512_VNNI: _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni"},
    }
)
"""LLVM's names of the features that the kernels of each `Isa` use."""


@dataclass(frozen=True, slots=True)
class Target:
    """What LLVM compiles for: a triple, a processor name and a feature string (`+avx2,-avx512f,…`)."""

    triple: str
    cpu: str
    features: str


def host_features() -> frozenset[str]:
    """LLVM's names of what this processor and its operating system support."""
    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)


def host_target() -> Target:
    """The processor this process runs on."""
    return Target(llvm.get_default_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


def runnable_isas(features: frozenset[str] | None = None) -> tuple[Isa, ...]:
    """The instruction sets a processor with `features` (default: this one) can run, the fastest first."""
    present = host_features() if features is None else features
    return tuple(isa for isa in reversed(Isa) if REQUIRED_FEATURES[isa] <= present)


def choose_isa(forced: Isa | None = None) -> Isa:
    """`forced`, or the fastest instruction set of this processor.

    Raises:
        ConfigError: this processor cannot run `forced`.
    """
    runnable = runnable_isas()
    if forced is None:
        return runnable[0]
    if forced not in runnable:
        missing = ", ".join(sorted(REQUIRED_FEATURES[forced] - host_features()))
        raise ConfigError(
            f"this processor cannot run {forced.value} kernels (it lacks {missing}); leave the choice to argosy"
        )
    return forced
