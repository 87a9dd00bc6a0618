"""Compiling every kernel before the first request, and telling of it when it takes time.

What was compiled is kept on disk: Numba's code by `numba_cache.py`, the products of matrices by `jit.py`. So the first start
on a processor compiles, which takes about a minute; later ones load.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from numba.core import event

from argosy.kernels.features import Isa
from argosy.kernels.gemm.registry import gemm_address
from argosy.kernels.jit import JitCompiler
from argosy.kernels.packed import WeightKind

OP_MODULES = (
    "quantize_activations",
    "hadamard",
    "ops_embed",
    "ops_norm",
    "ops_rope",
    "attention_plan",
    "ops_attention",
    "ops_activation",
    "ops_logits",
    "ops_copy",
    "sampling",
    "team",
)
"""What importing compiles, in this package."""

Report = Callable[[str], None]
"""Called with a line for people."""


@dataclass
class CompileCount:
    """What was compiled, as opposed to found on disk. Grows while it is watched.

    Attributes:
        functions: names of Numba's functions.
    """

    functions: set[str] = field(default_factory=set)


def compile_ops(report: Report) -> None:
    """Import, and thereby compile or load, every op; reports each module that compiles."""
    for index, name in enumerate(OP_MODULES, start=1):
        line = f"compiling CPU kernels for this processor, once: {name} ({index} of {len(OP_MODULES)})"
        with watching_compilation(partial(report, line)):
            importlib.import_module(f"argosy.kernels.{name}")


def compile_products(kinds: Iterable[WeightKind], isa: Isa, jit: JitCompiler, report: Report) -> dict[WeightKind, int]:
    """Compile or load the matrix products with weights of `kinds`, and return their addresses, which are good as long as
    `jit` lives. Reports how many had to be compiled.

    Raises:
        UnsupportedModel: there is no kernel for one of them.
    """
    before, started_s = jit.num_compiled, time.perf_counter()
    addresses = {kind: gemm_address(kind, isa, jit) for kind in kinds}
    if jit.num_compiled > before:
        taken_s = time.perf_counter() - started_s
        report(f"compiled {jit.num_compiled - before} matrix products for {isa.value} in {taken_s:.1f} s")
    return addresses


@contextmanager
def watching_compilation(on_first: Callable[[], None] = lambda: None) -> Iterator[CompileCount]:
    """Count what Numba compiles while the context is open, in any thread; `on_first` is called before the first of it."""
    count = CompileCount()
    with event.install_listener("numba:run_pass", _Listener(count, on_first)):
        yield count


class _Listener(event.Listener):
    def __init__(self, count: CompileCount, on_first: Callable[[], None]) -> None:
        self._count = count
        self._on_first = on_first

    def on_start(self, event: event.Event) -> None:
        """A pass over some function begins."""
        if not self._count.functions:
            self._on_first()
        self._count.functions.add(str(event.data["qualname"]))

    def on_end(self, event: event.Event) -> None:
        """It ends."""
