from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from argosy.kernels.tape import ARGS, Arg, TapeBuilder

_FACTOR_OFFSETS: dict[str, tuple[int, ...]] = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "IQ4_NL": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
"""Where a ggml block has its f16 factors."""

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


def _random_blocks(
    rng: np.random.Generator, ggml_type: GGMLQuantizationType, rows: int, columns: int, *, fill: int | None = None
) -> NDArray[np.uint8]:
    block_columns, block_bytes = GGML_QUANT_SIZES[ggml_type]
    blocks = rng.integers(0, 256, (rows, columns // block_columns, block_bytes), dtype=np.uint8)
    if fill is not None:
        blocks[...] = fill
    for offset in _FACTOR_OFFSETS[ggml_type.name]:
        factors = rng.uniform(-1, 1, (*blocks.shape[:2], 1)) if fill is None else np.ones((*blocks.shape[:2], 1))
        blocks[..., offset : offset + 2] = factors.astype(np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


@pytest.fixture(scope="session")
def random_blocks() -> Callable[..., NDArray[np.uint8]]:
    """random_blocks(rng, ggml_type, rows, columns, fill=None): stored rows, uint8 [rows, row bytes], of random bits, or of
    bytes all alike; their f16 factors are between -1 and 1, or 1."""
    return _random_blocks


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
