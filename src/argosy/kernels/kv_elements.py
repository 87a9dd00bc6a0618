"""How K and V are stored: the element types of the pool, eight elements at a time."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any

from numba import njit

from argosy.kernels.simd import load, load_bf16, load_f16, store, store_bf16, store_f16


class KVElement(IntEnum):
    """An element type, as ops take it."""

    F32 = 0
    BF16 = 1
    F16 = 2


KV_ELEMENTS: Mapping[str, KVElement] = MappingProxyType(
    {"float32": KVElement.F32, "bfloat16": KVElement.BF16, "float16": KVElement.F16}
)
"""By the names that the engine's settings have for them."""

_F32, _BF16 = int(KVElement.F32), int(KVElement.BF16)


@njit(nogil=True, cache=True, forceinline=True)
def element_bytes(element: int) -> int:
    """Bytes of one element."""
    return 4 if element == _F32 else 2


@njit(nogil=True, cache=True, forceinline=True)
def load_elements(address: int, element: int) -> Any:
    """Eight elements at `address`, as f32."""
    if element == _F32:
        return load(address)
    if element == _BF16:
        return load_bf16(address)
    return load_f16(address)


@njit(nogil=True, cache=True, forceinline=True)
def store_elements(address: int, value: Any, element: int) -> None:
    """Write eight elements, rounded to nearest even."""
    if element == _F32:
        store(address, value)
    elif element == _BF16:
        store_bf16(address, value)
    else:
        store_f16(address, value)
