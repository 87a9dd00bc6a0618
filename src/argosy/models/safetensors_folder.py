"""A Hugging Face folder: which tensors it holds and in which file, checked before anything is loaded. Without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from safetensors import SafetensorError, safe_open

from argosy.errors import ModelFileError, UnsupportedModel
from argosy.models.generation_config import read_json_object

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
ELEMENT_BYTES: Mapping[str, int] = MappingProxyType({"F32": 4, "F16": 2, "BF16": 2})
"""The element types that can be read."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a folder. `dtype` is the format's own name, e.g. "BF16"."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes as stored."""
        return math.prod(self.shape) * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class SafetensorsFolder:
    """A folder with `config.json` and weights. `tensors` are in the order of the files."""

    path: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    @property
    def weights_bytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(t.num_bytes for t in self.tensors.values())


def open_safetensors_folder(path: Path) -> SafetensorsFolder:
    """Read the configuration and every file's header.

    Raises:
        ModelFileError: `config.json` or a weight file is missing or damaged, or the index contradicts the files.
        UnsupportedModel: the weights are quantised, or of an element type that cannot be read.
    """
    config = read_json_object(path / "config.json")
    quantization = config.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, dict) else quantization
        raise UnsupportedModel(
            f"{path}: weights quantised by {method!r} are not supported; use the unquantised or a GGUF file"
        )
    tensors: dict[str, StoredTensor] = {}
    for file, indexed in _files(path).items():
        stored = {t.name: t for t in _read_header(file)}
        if indexed is not None:
            _check_index(file, set(stored), indexed)
        tensors |= stored
    if not tensors:
        raise ModelFileError(f"{path} holds no weights")
    return SafetensorsFolder(path, MappingProxyType(config), MappingProxyType(tensors))


def open_shard(file: Path, framework: str) -> AbstractContextManager[Any]:
    """`safe_open`, with its errors as `ModelFileError`; `framework` is "np" or "pt"."""
    try:
        return safe_open(file, framework=framework)
    except (SafetensorError, OSError) as error:
        raise ModelFileError(f"{file} is not a sound safetensors file: {error}") from error


def _files(path: Path) -> dict[Path, set[str] | None]:
    """The weight files, each with the names that the index puts into it, or None without an index."""
    if (path / SINGLE_FILE).exists():
        return {path / SINGLE_FILE: None}
    if not (path / INDEX_FILE).exists():
        raise ModelFileError(f"{path} holds neither {SINGLE_FILE} nor {INDEX_FILE}; other weight formats cannot be read")
    weight_map = read_json_object(path / INDEX_FILE).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(f"{path / INDEX_FILE} has no weight_map")
    files: dict[Path, set[str] | None] = {}
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard or "\\" in shard or not shard.endswith(".safetensors"):
            raise ModelFileError(f"{path / INDEX_FILE} puts {tensor!r} into {shard!r}, which is no file name of this folder")
        names = files.setdefault(path / shard, set())
        assert names is not None
        names.add(tensor)
    for file in files:
        if not file.exists():
            raise ModelFileError(f"{path}: shard {file.name} named by {INDEX_FILE} is missing; fetch the model again")
    return dict(sorted(files.items()))


def _check_index(file: Path, stored: set[str], indexed: set[str]) -> None:
    for name in sorted(indexed - stored):
        raise ModelFileError(f"{file} lacks {name!r}, which {INDEX_FILE} puts there")
    for name in sorted(stored - indexed):
        raise ModelFileError(f"{file} holds {name!r}, which {INDEX_FILE} does not put there")


def _read_header(file: Path) -> list[StoredTensor]:
    with open_shard(file, "np") as shard:
        entries = [(name, shard.get_slice(name)) for name in shard.keys()]  # noqa: SIM118, not a mapping
        tensors = [StoredTensor(name, file, entry.get_dtype(), tuple(entry.get_shape())) for name, entry in entries]
    for tensor in tensors:
        if tensor.dtype not in ELEMENT_BYTES:
            supported = ", ".join(ELEMENT_BYTES)
            raise UnsupportedModel(f"{file}: tensor {tensor.name!r} is of type {tensor.dtype}; supported are {supported}")
    return tensors
