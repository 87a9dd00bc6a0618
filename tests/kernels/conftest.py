from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from argosy.kernels.tape import ARGS, Arg, TapeBuilder

_OP = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def _run_op(op: Any, args: Sequence[Arg], items: int, chunk: int = 1000) -> None:
    builder = TapeBuilder(1)
    builder.add(op.address, args)
    tape = builder.build()
    words = int(tape.descriptor[0]) + 8 * ARGS
    function = _OP(op.address)
    for begin in range(0, items, chunk):
        function(words, begin, min(begin + chunk, items), 0)


@pytest.fixture(scope="session")
def run_op() -> Callable[..., None]:
    """run_op(op, args, items, chunk=1000): do an op's items on this thread, chunk by chunk."""
    return _run_op


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
