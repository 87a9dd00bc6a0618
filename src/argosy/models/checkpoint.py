"""A checkpoint opened but not loaded: its configuration, sizes and suggestions. Without torch, within milliseconds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from argosy.errors import ModelFileError, UnsupportedModel
from argosy.models.cache import Progress
from argosy.models.config import ModelConfig
from argosy.models.generation_config import (
    GenerationDefaults,
    generation_defaults_from_folder,
    generation_defaults_from_gguf,
)
from argosy.models.gguf_config import model_config_from_gguf
from argosy.models.gguf_file import GgufFile
from argosy.models.hf_config import model_config_from_hf
from argosy.models.resolve import ResolvedModel, resolve
from argosy.models.safetensors_folder import SafetensorsFolder, open_safetensors_folder


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint says of itself.

    Attributes:
        name: as the user gave it.
        source: the open file or folder, from which the weights can be read.
        num_parameters: elements of all stored tensors.
        weights_bytes: size of all tensors as stored.
        eos_token_ids: union of configuration and generation configuration; the tokenizer may add its own.
        default_sampling: under `SamplingParams` names; only what the checkpoint states.
    """

    name: str
    path: Path
    source: GgufFile | SafetensorsFolder
    config: ModelConfig
    num_parameters: int
    weights_bytes: int
    eos_token_ids: frozenset[int]
    default_sampling: Mapping[str, float | int]


def load_config(
    name: str, *, cache_dir: Path | None = None, offline: bool = False, progress: Progress | None = None
) -> Checkpoint:
    """Resolve `name`, fetching it if need be, and open the checkpoint without loading its weights.

    Raises:
        ArgosyError: as `resolve` and `open_checkpoint` do.
    """
    return open_checkpoint(resolve(name, cache_dir=cache_dir, offline=offline, progress=progress))


def open_checkpoint(model: ResolvedModel) -> Checkpoint:
    """Open a resolved model.

    Raises:
        ModelFileError: a file is missing, damaged, or contradicts another.
        UnsupportedModel: an architecture, setting or tensor type this package does not run.
    """
    source: GgufFile | SafetensorsFolder
    if model.kind == "gguf":
        source = GgufFile(model.path)
        config = model_config_from_gguf(source)
        defaults = generation_defaults_from_gguf(source.metadata, model.path)
    else:
        source = open_safetensors_folder(model.path)
        config = _config_of_folder(source)
        defaults = generation_defaults_from_folder(model.path)
    return Checkpoint(
        name=model.name,
        path=model.path,
        source=source,
        config=config,
        num_parameters=sum(math.prod(t.shape) for t in source.tensors.values()),
        weights_bytes=source.weights_bytes,
        eos_token_ids=_eos_ids(config, defaults, model.path),
        default_sampling=defaults.sampling,
    )


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put `path` in front of the message of a model error that does not know its file."""
    try:
        yield
    except (ModelFileError, UnsupportedModel) as error:
        if str(path) in error.message:
            raise
        raise type(error)(f"{path}: {error.message}") from error


def _config_of_folder(folder: SafetensorsFolder) -> ModelConfig:
    with naming(folder.path / "config.json"):
        config = model_config_from_hf(folder.config)
    if config.num_layers > len(folder.tensors):
        raise ModelFileError(f"{folder.path}: {config.num_layers} layers but only {len(folder.tensors)} tensors")
    return config


def _eos_ids(config: ModelConfig, defaults: GenerationDefaults, path: Path) -> frozenset[int]:
    ids = frozenset(config.eos_token_ids) | defaults.eos_token_ids
    outside = sorted(i for i in ids if not 0 <= i < config.vocab_size)
    if outside:
        raise ModelFileError(f"{path}: end-of-text id {outside[0]} is outside the vocabulary of {config.vocab_size}")
    return ids
