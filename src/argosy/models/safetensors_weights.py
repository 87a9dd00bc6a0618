"""The weights of a Hugging Face folder, one tensor at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor

from argosy.errors import ModelFileError
from argosy.models.safetensors_folder import SafetensorsFolder, open_shard
from argosy.models.stored_weights import StoredWeight


def weights_from_folder(folder: SafetensorsFolder) -> Iterator[tuple[str, Tensor]]:
    """Every weight of the language model as (name, tensor), on the CPU and in the stored dtype, grouped by file.

    In a vision-and-text checkpoint the language model's names carry a prefix, which is taken off; the vision tower and its
    projector belong to parts that text never passes through and are left out. A tensor is read
    when it is asked for: a consumer that copies and drops each holds one at a time.

    Raises:
        ModelFileError: a file was damaged since the folder was opened.
    """
    for file in dict.fromkeys(t.file for t in folder.tensors.values()):
        with open_shard(file, "pt") as shard:
            for tensor in folder.tensors.values():
                name = language_model_name(tensor.name)
                if tensor.file == file and name is not None:
                    yield name, _read(shard, tensor.name, file)


def stored_weights_from_folder(folder: SafetensorsFolder) -> Iterator[StoredWeight]:
    """Every weight of the language model as it is stored, named as by `weights_from_folder`; none is read before it is
    asked for."""
    for tensor in folder.tensors.values():
        name = language_model_name(tensor.name)
        if name is not None:
            element_type = GGMLQuantizationType[tensor.dtype]
            yield StoredWeight(name, element_type, tensor.shape, partial(_read_bytes, tensor.name, tensor.file))


def language_model_name(stored: str) -> str | None:
    """A stored name as a text-only checkpoint has it, or None for what belongs to vision.

    >>> language_model_name("language_model.model.norm.weight")
    'model.norm.weight'
    >>> language_model_name("model.language_model.norm.weight")
    'model.norm.weight'
    """
    if stored.removeprefix("model.").startswith(("vision_tower.", "multi_modal_projector.")):
        return None
    if stored.startswith("model.language_model."):
        return "model." + stored.removeprefix("model.language_model.")
    return stored.removeprefix("language_model.")


def _read_bytes(name: str, file: Path) -> NDArray[np.uint8]:
    """uint8 [..., bytes per row]."""
    with open_shard(file, "pt") as shard:
        stored: NDArray[np.uint8] = _read(shard, name, file).contiguous().view(torch.uint8).numpy()
    return stored


def _read(shard: Any, name: str, file: Path) -> Tensor:
    try:
        tensor: Tensor = shard.get_tensor(name)
    except SafetensorError as error:
        raise ModelFileError(f"{file}: tensor {name!r} cannot be read: {error}") from error
    return tensor
