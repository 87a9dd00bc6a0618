"""The model of a question: a catalogue name, a `config.json` (or its folder), or a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path

from argosy.cost.catalogue import find_catalogue_model
from argosy.cost.model_spec import ModelSpec
from argosy.cost.quantity import Grade
from argosy.cost.spec_from_gguf import spec_from_gguf
from argosy.cost.spec_from_hf import spec_from_hf
from argosy.errors import ConfigError


def find_spec(model: str | ModelSpec) -> tuple[ModelSpec, Grade]:
    """The shape of a model and how far it is to be trusted: a file's own configuration is primary.

    Raises:
        ConfigError: an unknown name (near ones are named), or a file that cannot be read or is not a configuration.
        UnsupportedModel: a model of a kind that is not costed.
    """
    if isinstance(model, ModelSpec):
        return model, Grade.PRIMARY
    if not model:
        raise ConfigError("model must be a catalogue name, a config.json or a GGUF file, got an empty name")
    path = Path(model)
    if path.suffix.lower() == ".gguf":
        return _from_gguf(path), Grade.PRIMARY
    if path.suffix.lower() == ".json" or path.is_dir():
        return _from_config(path / "config.json" if path.is_dir() else path), Grade.PRIMARY
    entry = find_catalogue_model(model)
    return entry.spec, entry.grade


def _from_config(path: Path) -> ModelSpec:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"model configuration {path} cannot be read: {error.strerror or error}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"model configuration {path} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"model configuration {path} is not a JSON object")
    return spec_from_hf(config, path.parent.name)


def _from_gguf(path: Path) -> ModelSpec:
    try:
        from argosy.models.gguf_file import GgufFile
    except ImportError:
        raise ConfigError(f"reading {path.name} needs the GGUF reader; install argosy[serve]") from None
    file = GgufFile(path)
    shapes = {name: tuple(tensor.shape) for name, tensor in file.tensors.items()}
    return spec_from_gguf(file.metadata, shapes, str(file.metadata.get("general.name") or path.stem))
