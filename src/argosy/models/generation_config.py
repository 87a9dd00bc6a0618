"""What a checkpoint suggests for generation: which ids end a text, and default sampling values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from argosy.errors import ModelFileError

_FROM_HF = MappingProxyType({name: name for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")})
_FROM_GGUF = MappingProxyType(
    {
        "general.sampling.temp": "temperature",
        "general.sampling.top_k": "top_k",
        "general.sampling.top_p": "top_p",
        "general.sampling.min_p": "min_p",
        "general.sampling.penalty_repeat": "repetition_penalty",
    }
)
_RANGES = MappingProxyType(
    {
        "temperature": (0.0, 100.0),
        "top_k": (-1, 2**31),
        "top_p": (1e-9, 1.0),
        "min_p": (0.0, 1.0),
        "repetition_penalty": (0.001, 100.0),
    }
)


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """`sampling` is under the names of `SamplingParams`; only what the checkpoint states is present."""

    eos_token_ids: frozenset[int] = frozenset()
    sampling: Mapping[str, float | int] = field(default_factory=lambda: MappingProxyType({}))


def generation_defaults_from_folder(folder: Path) -> GenerationDefaults:
    """Read `generation_config.json` of a Hugging Face folder; without the file nothing is suggested.

    Raises:
        ModelFileError: the file is not a JSON object, or a value of it is out of range.
    """
    path = folder / "generation_config.json"
    if not path.exists():
        return GenerationDefaults()
    values = read_json_object(path)
    return GenerationDefaults(frozenset(eos_token_ids(values, path)), _sampling(values, _FROM_HF, path))


def generation_defaults_from_gguf(metadata: Mapping[str, Any], path: Path) -> GenerationDefaults:
    """The sampling values a GGUF file suggests under `general.sampling.*`; its end ids belong to the configuration.

    Raises:
        ModelFileError: a value is out of range.
    """
    return GenerationDefaults(sampling=_sampling(metadata, _FROM_GGUF, path))


def eos_token_ids(values: Mapping[str, Any], path: Path) -> tuple[int, ...]:
    """`eos_token_id` of a Hugging Face configuration read from `path`: an id, several, or none."""
    stated = values.get("eos_token_id")
    ids = [] if stated is None else stated if isinstance(stated, list) else [stated]
    if any(type(i) is not int or i < 0 for i in ids):
        raise ModelFileError(f"{path}: eos_token_id must be an id or a list of ids, got {stated!r}")
    return tuple(ids)


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`.

    Raises:
        ModelFileError: the file cannot be read, is not JSON, or holds something else.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelFileError(f"{path} must hold a JSON object, holds a {type(values).__name__}")
    return values


def _sampling(values: Mapping[str, Any], names: Mapping[str, str], path: Path) -> Mapping[str, float | int]:
    sampling: dict[str, float | int] = {}
    for key, name in names.items():
        value = values.get(key)
        if value is None:
            continue
        low, high = _RANGES[name]
        kinds = (int,) if name == "top_k" else (int, float)
        if type(value) not in kinds or math.isnan(value) or not low <= value <= high:
            raise ModelFileError(f"{path}: {key} must be a number within [{low}, {high}], got {value!r}")
        sampling[name] = value
    return MappingProxyType(sampling)
