"""A GGUF file, memory-mapped: metadata as plain values, tensors as stored bytes or dequantised to fp32."""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from argosy.errors import ModelFileError, UnsupportedModel
from argosy.models.gguf_header import GgufTensor, parse_header

READABLE_TYPES = frozenset(
    {
        GGMLQuantizationType.F32,
        GGMLQuantizationType.F16,
        GGMLQuantizationType.BF16,
        GGMLQuantizationType.Q4_0,
        GGMLQuantizationType.Q4_1,
        GGMLQuantizationType.Q5_0,
        GGMLQuantizationType.Q5_1,
        GGMLQuantizationType.Q8_0,
        GGMLQuantizationType.Q2_K,
        GGMLQuantizationType.Q3_K,
        GGMLQuantizationType.Q4_K,
        GGMLQuantizationType.Q5_K,
        GGMLQuantizationType.Q6_K,
    }
)
"""The tensor types `GgufFile.dequantize` takes."""

# Blocks stand alone, so rows may be cut anywhere between them: long rows keep the library's vectors long, and few rows per
# call keep its temporaries small beside the tensor.
_BLOCKS_PER_ROW = 256
_ROWS_PER_CALL = 64


class GgufFile:
    """One GGUF file, open for reading. Immutable; the mapping is released with the object.

    Attributes:
        path: the file.
        version: of the GGUF format.
        metadata: int, float, bool, str, or lists of these, by key.
        tensors: what the file holds, by name, in the order of the file.
        size_bytes: of the whole file.

    Raises:
        ModelFileError: the file cannot be opened, is not GGUF, or is damaged or truncated.
        UnsupportedModel: the file is one part of a split model, or has a tensor of an unknown type.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._data: NDArray[np.uint8] = _map(path)
        except OSError as error:
            raise ModelFileError(f"cannot read {path}: {error.strerror or error}") from error
        self.size_bytes = len(self._data)
        header = parse_header(path, self._data.data)
        self.version = header.version
        self.metadata: Mapping[str, Any] = MappingProxyType(header.metadata)
        self.tensors: Mapping[str, GgufTensor] = MappingProxyType(header.tensors)
        parts = self.metadata.get("split.count", 1)
        if parts != 1:
            raise UnsupportedModel(f"{path} is one of {parts} parts; merge them with `llama-gguf-split --merge` first")

    @property
    def weights_bytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(t.num_bytes for t in self.tensors.values())

    def check_types(self) -> None:
        """Raise `UnsupportedModel` naming the first tensor that `dequantize` would refuse."""
        for tensor in self.tensors.values():
            if tensor.type not in READABLE_TYPES:
                supported = ", ".join(sorted(t.name for t in READABLE_TYPES))
                raise UnsupportedModel(
                    f"{self.path}: tensor {tensor.name!r} has type {tensor.type.name}; supported are {supported}"
                )

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The stored bytes of tensor `name`, a read-only view: uint8 [..., bytes per row]."""
        tensor = self.tensors[name]
        block_elements, block_bytes = GGML_QUANT_SIZES[tensor.type]
        row_bytes = tensor.shape[-1] // block_elements * block_bytes
        return self._stored(tensor).reshape(*tensor.shape[:-1], row_bytes)

    def dequantize(self, name: str) -> NDArray[np.float32]:
        """Tensor `name` in fp32, row-major, a fresh writable array of the tensor's shape.

        Raises:
            UnsupportedModel: its type is not one of `READABLE_TYPES`.
        """
        tensor = self.tensors[name]
        if tensor.type not in READABLE_TYPES:
            raise UnsupportedModel(f"{self.path}: tensor {name!r} has type {tensor.type.name}, which cannot be read")
        block_elements, block_bytes = GGML_QUANT_SIZES[tensor.type]
        blocks_per_row = math.gcd(tensor.num_bytes // block_bytes, _BLOCKS_PER_ROW)
        rows = self._stored(tensor).reshape(-1, blocks_per_row * block_bytes)
        values = np.empty((len(rows), blocks_per_row * block_elements), np.float32)
        with np.errstate(all="ignore"):  # a scale that is not finite shows in the logits, where it is reported
            for start in range(0, len(rows), _ROWS_PER_CALL):
                part = slice(start, start + _ROWS_PER_CALL)
                values[part] = dequantize(rows[part], tensor.type)
        return values.reshape(tensor.shape)

    def release(self) -> None:
        """Let go of the memory behind pages read so far; what is needed again is read from the disk again."""
        if isinstance(self._data, np.memmap) and hasattr(mmap, "MADV_DONTNEED"):
            mapping: mmap.mmap = self._data._mmap  # type: ignore[attr-defined]
            mapping.madvise(mmap.MADV_DONTNEED)

    def _stored(self, tensor: GgufTensor) -> NDArray[np.uint8]:
        return self._data[tensor.offset_bytes : tensor.offset_bytes + tensor.num_bytes]


def _map(path: Path) -> NDArray[np.uint8]:
    """Map `path` into memory; an empty file, which cannot be mapped, gives an empty array."""
    with path.open("rb") as file:
        if file.seek(0, 2) == 0:
            return np.empty(0, np.uint8)
        return np.memmap(file, np.uint8, mode="r")
