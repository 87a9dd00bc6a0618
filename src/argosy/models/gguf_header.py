"""The header of a GGUF file, parsed with every length checked against the file before it is trusted.

Layout (all little-endian; the GGUF specification, versions 2 and 3):

    magic "GGUF" | version u32 | tensor count u64 | metadata count u64
    metadata:     key string | value type u32 | value                         (one per entry)
    tensor infos: name string | rank u32 | extents u64 x rank | type u32 | offset u64
    padding to `general.alignment`, then the tensor data that the offsets count from

A string is a u64 length and as many bytes of UTF-8. Extents are stored innermost first.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, GGUFValueType

from argosy.errors import ModelFileError, UnsupportedModel

MAGIC = b"GGUF"
SUPPORTED_VERSIONS = (2, 3)
MAX_RANK = 4  # GGML_MAX_DIMS
_MIN_METADATA_BYTES = 8 + 4 + 1  # an empty key, a type, a one-byte value
_MIN_TENSOR_INFO_BYTES = 8 + 4 + 8 + 4 + 8  # an empty name and one extent

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_SCALARS = {
    GGUFValueType.UINT8: np.dtype("<u1"),
    GGUFValueType.INT8: np.dtype("<i1"),
    GGUFValueType.UINT16: np.dtype("<u2"),
    GGUFValueType.INT16: np.dtype("<i2"),
    GGUFValueType.UINT32: np.dtype("<u4"),
    GGUFValueType.INT32: np.dtype("<i4"),
    GGUFValueType.FLOAT32: np.dtype("<f4"),
    GGUFValueType.BOOL: np.dtype("<u1"),
    GGUFValueType.UINT64: np.dtype("<u8"),
    GGUFValueType.INT64: np.dtype("<i8"),
    GGUFValueType.FLOAT64: np.dtype("<f8"),
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where one tensor lies and what it is.

    Attributes:
        type: the element or block format, e.g. `GGMLQuantizationType.Q4_K`.
        shape: row-major, outermost first, in elements.
        offset_bytes: from the start of the file.
        num_bytes: as stored.
    """

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset_bytes: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Everything a GGUF file says before its tensor data. Metadata values are int, float, bool, str or lists of these."""

    version: int
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def parse_header(path: Path, data: memoryview) -> GgufHeader:
    """Parse the header at the start of `data`, the bytes of the whole file `path`.

    Raises:
        ModelFileError: the file is not GGUF, of another version or byte order, truncated, or contradicts itself.
        UnsupportedModel: a tensor has a type this package has never heard of.
    """
    return _Parser(path, data).header()


class _Parser:
    """A cursor over the file that never reads beyond its end. `position` is the only state."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self.path, self.data, self.position = path, data, 0

    def header(self) -> GgufHeader:
        version = self._preamble()
        tensor_count, metadata_count = self._u64("the tensor count"), self._u64("the metadata count")
        self._check_count(metadata_count, _MIN_METADATA_BYTES, "metadata entries")
        self._check_count(tensor_count, _MIN_TENSOR_INFO_BYTES, "tensors")
        metadata: dict[str, Any] = {}
        for _ in range(metadata_count):
            key = self._string("a metadata key")
            if key in metadata:
                self._fail(f"metadata key {key!r} occurs twice")
            metadata[key] = self._value(key)
        infos = [self._tensor_info() for _ in range(tensor_count)]
        return GgufHeader(version, metadata, self._place(infos, self._alignment(metadata)))

    def _preamble(self) -> int:
        if len(self.data) == 0:
            raise ModelFileError(f"{self.path} is empty")
        if self.data[:4] != MAGIC:
            raise ModelFileError(f"{self.path} is not a GGUF file: it starts with {bytes(self.data[:4])!r}, not {MAGIC!r}")
        self.position = 4
        version = self._u32("the version")
        if version not in SUPPORTED_VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            if swapped in SUPPORTED_VERSIONS:
                raise ModelFileError(f"{self.path} is a big-endian GGUF file; convert it to little-endian")
            raise ModelFileError(f"{self.path} has GGUF version {version}; versions {SUPPORTED_VERSIONS} can be read")
        return version

    def _alignment(self, metadata: dict[str, Any]) -> int:
        alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            self._fail(f"general.alignment must be a power of two, got {alignment!r}")
        return alignment

    def _value(self, key: str) -> Any:
        value_type = self._u32(f"the type of {key}")
        if value_type == GGUFValueType.STRING:
            return self._string(key)
        if value_type == GGUFValueType.ARRAY:
            return self._array(key)
        return self._numbers(key, value_type, 1)[0]

    def _array(self, key: str) -> list[Any]:
        element_type, length = self._u32(f"the element type of {key}"), self._u64(f"the length of {key}")
        if element_type == GGUFValueType.STRING:
            self._check_count(length, _U64.size, f"strings in {key}")
            return [self._string(key) for _ in range(length)]
        if element_type == GGUFValueType.ARRAY:
            self._fail(f"{key} is an array of arrays")
        return self._numbers(key, element_type, length)

    def _numbers(self, key: str, value_type: int, count: int) -> list[Any]:
        dtype = _SCALARS.get(value_type)  # type: ignore[call-overload]
        if dtype is None:
            self._fail(f"{key} has the unknown value type {value_type}")
        self._check_count(count, dtype.itemsize, f"numbers in {key}")
        values: list[Any] = np.frombuffer(self._take(count * dtype.itemsize, key), dtype).tolist()
        if value_type != GGUFValueType.BOOL:
            return values
        if any(v > 1 for v in values):
            self._fail(f"{key} holds a truth value that is neither 0 nor 1")
        return [v == 1 for v in values]

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string("a tensor name")
        rank = self._u32(f"the rank of tensor {name!r}")
        if not 1 <= rank <= MAX_RANK:
            self._fail(f"tensor {name!r} has rank {rank}; 1 to {MAX_RANK} are possible")
        extents = [self._u64(f"the extents of tensor {name!r}") for _ in range(rank)]
        if 0 in extents:
            self._fail(f"tensor {name!r} has an extent of 0")
        return name, tuple(reversed(extents)), self._u32(f"the type of tensor {name!r}"), self._u64(f"where {name!r} lies")

    def _place(self, infos: list[tuple[str, tuple[int, ...], int, int]], alignment: int) -> dict[str, GgufTensor]:
        """Check that every tensor lies inside the file and that no two overlap."""
        base = -(-self.position // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, type_id, offset in infos:
            if name in tensors:
                self._fail(f"tensor {name!r} occurs twice")
            try:
                ggml_type = GGMLQuantizationType(type_id)
            except ValueError:
                raise UnsupportedModel(f"{self.path}: tensor {name!r} has the unknown type {type_id}") from None
            block_elements, block_bytes = GGML_QUANT_SIZES[ggml_type]
            if shape[-1] % block_elements:
                self._fail(f"tensor {name!r} has rows of {shape[-1]}, not a multiple of {ggml_type.name}'s {block_elements}")
            if offset % alignment:
                self._fail(f"tensor {name!r} is not aligned to {alignment} bytes")
            num_bytes = math.prod(shape) // block_elements * block_bytes
            if base + offset + num_bytes > len(self.data):
                raise ModelFileError(
                    f"{self.path} is truncated or damaged: tensor {name!r} ends at byte {base + offset + num_bytes}, "
                    f"the file has {len(self.data)}; fetch it again"
                )
            tensors[name] = GgufTensor(name, ggml_type, shape, base + offset, num_bytes)
        end = 0
        for tensor in sorted(tensors.values(), key=lambda t: t.offset_bytes):
            if tensor.offset_bytes < end:
                self._fail(f"tensor {tensor.name!r} overlaps another")
            end = tensor.offset_bytes + tensor.num_bytes
        return tensors

    def _string(self, what: str) -> str:
        raw = self._take(self._u64(f"the length of {what}"), what)
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError:
            self._fail(f"{what} is not UTF-8")

    def _u32(self, what: str) -> int:
        return int(_U32.unpack(self._take(_U32.size, what))[0])

    def _u64(self, what: str) -> int:
        return int(_U64.unpack(self._take(_U64.size, what))[0])

    def _take(self, num_bytes: int, what: str) -> memoryview:
        start, self.position = self.position, self.position + num_bytes
        if self.position > len(self.data):
            raise ModelFileError(
                f"{self.path} is truncated or damaged: {what} ends at byte {self.position}, the file has {len(self.data)}; "
                "fetch it again"
            )
        return self.data[start : self.position]

    def _check_count(self, count: int, min_bytes_each: int, what: str) -> None:
        """Refuse a count the rest of the file cannot hold before anything is allocated for it."""
        if count * min_bytes_each > len(self.data) - self.position:
            self._fail(f"it claims {count} {what}, more than its {len(self.data)} bytes can hold")

    def _fail(self, what: str) -> NoReturn:
        raise ModelFileError(f"{self.path} is damaged: {what}")
